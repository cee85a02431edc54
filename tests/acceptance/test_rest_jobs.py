"""Plans and simulations over the API, with the real process."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.cli.service.background_job import simulated
from gpuyard.core.domain.commands import ReportEnded, ReportStarted, SetSplit
from gpuyard.core.domain.tenant import QuotaMode, Split
from gpuyard.core.domain.values import Outcome, TaskId
from gpuyard.live.control_plane.access.principal import Role
from gpuyard.live.wire.job_answers import JobOrder, SimulationRequest
from gpuyard.plan.planner.generate import generate
from gpuyard.plan.planner.instance import write_instance
from tests.acceptance.rest_cluster import Reply, RestCluster
from tests.acceptance.waiting import until

PLANS, SIMULATIONS = "/api/v1/plans", "/api/v1/simulations"
PROBLEM = write_instance(generate("agentic", 60, 3, seed=1)).decode()
SMALL = {"source": {"generate": 50, "seed": 1}, "policies": ["fifo", "default"], "nodes": "2x4"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCluster]:
    """Twenty tasks have run, one after the other."""
    with RestCluster(tmp_path_factory.mktemp("jobs")) as cluster:
        cluster.tell(SetSplit(Split(0.5, 0.5, QuotaMode.BORROW)))
        for number in range(1, 21):
            cluster.submit(name=f"x{number % 3}", gpu_count=1 + number % 2)
            cluster.tell(ReportStarted(TaskId(number), 1))
            cluster.tell(ReportEnded(TaskId(number), 1, Outcome.SUCCEEDED, 0))
        until(lambda: not cluster.scheduler.views.tasks)
        yield cluster


def ended(cluster: RestCluster, path: str, reply: Reply, token: str | None = None) -> Any:
    assert reply.status == 202, reply.body
    assert reply.json["status"] in {"queued", "running"}
    name = f"{path}/{reply.json['id']}"
    return until(lambda: job if (job := cluster.get(name, token=token))["finished_at"] else None, 180.0, "the job ends")


def plan(cluster: RestCluster, **more: Any) -> Any:
    body = {"problem": PROBLEM, "seconds": 1, "strategies": ["heft_affinity", "batch"], **more}
    return ended(cluster, PLANS, cluster.ask("POST", PLANS, body))


def simulation(cluster: RestCluster, **more: Any) -> Any:
    return ended(cluster, SIMULATIONS, cluster.ask("POST", SIMULATIONS, {**SMALL, **more}))


def test_a_plan_has_figures_and_bars_of_each_strategy(cluster: RestCluster) -> None:
    told = plan(cluster)
    assert (told["status"], told["error"], told["pareto"]) == ("done", None, None)
    assert [result["strategy"] for result in told["results"]] == ["heft_affinity", "batch"]
    for result in told["results"]:
        assert result["makespan"] >= result["lower_bound"] > 0
        assert result["gap"] == pytest.approx(result["makespan"] / result["lower_bound"] - 1)
        bars = result["assignments"]
        assert max(bar["end"] for bar in bars) == pytest.approx(result["makespan"])
        assert {bar["kind"] for bar in bars} == {"call", "load"}
        assert {bar["gpu"] for bar in bars} <= {0, 1, 2}
        assert sum(bar["calls"] for bar in bars if bar["kind"] == "call") >= 60
        assert all(bar["call"] and bar["request"] for bar in bars if bar["kind"] == "call")


def test_a_pareto_front_has_one_chosen_point(cluster: RestCluster) -> None:
    told = plan(cluster, strategies=["pareto"])
    assert [point["chosen"] for point in told["pareto"]].count(True) == 1
    assert all(point["makespan"] > 0 for point in told["pareto"])


@pytest.mark.parametrize(
    ("problem", "words"),
    [("gpus: [", "line 1"), ("gpus: 2\nmodles: []", "models"), ({}, "."), ("", "."), ("&a [*a, *a]", ".")],
)
def test_a_wrong_problem_is_one_sentence(cluster: RestCluster, problem: object, words: str) -> None:
    told = plan(cluster, problem=problem)
    assert told["status"] == "failed"
    assert words in told["error"]
    assert "Traceback" not in told["error"]


def test_policies_are_compared_on_generated_jobs(cluster: RestCluster) -> None:
    told = simulation(cluster)
    assert (told["status"], told["error"]) == ("done", None)
    fifo, default = told["policies"]
    assert (fifo["policy"], default["policy"], fifo["tasks"]) == ("fifo", "default", 50)
    for figures in (fifo, default):
        assert 0 <= figures["p50_wait"] <= figures["p95_wait"] <= figures["p99_wait"]
        waits = figures["waits"]
        assert waits == sorted(waits)
        assert waits[-1][1] == 1.0
        assert 0 < figures["fairness"] <= 1
        assert figures["gpu_hours"] > 0


def test_the_past_of_the_cluster_is_simulated_while_it_goes_on(cluster: RestCluster) -> None:
    reply = cluster.ask("POST", SIMULATIONS, {"source": "journal", "policies": ["same", "fifo"]})
    before = cluster.scheduler.loop.committed
    for _ in range(5):
        cluster.submit(name="meanwhile")
    told = ended(cluster, SIMULATIONS, reply)
    assert (told["status"], told["error"]) == ("done", None)
    assert [figures["policy"] for figures in told["policies"]] == ["recorded", "same", "fifo"]
    assert {figures["tasks"] for figures in told["policies"]} == {20}
    assert cluster.scheduler.loop.committed > before
    later = simulation(cluster, source="journal", policies=["fifo"], nodes=None, since=time.time() + 60)
    assert later["status"] == "failed"
    assert "nothing to simulate" in later["error"]
    half = simulation(
        cluster, source="journal", policies=["fifo"], nodes=None, until=cluster.get("/api/v1/tasks/11")["created_at"]
    )
    # The API rounds times, so the eleventh may be just before the end.
    assert [figures["tasks"] for figures in half["policies"]] in ([10, 10], [11, 11])


def test_without_the_beginning_of_the_journal_the_archive_is_simulated(cluster: RestCluster, tmp_path: Path) -> None:
    scheduler = cluster.scheduler
    nodes = [view.spec for view in scheduler.views.nodes.values()]
    order = JobOrder(journal=str(tmp_path), archive=str(scheduler.stores.archive.path), nodes=nodes)
    told = simulated(SimulationRequest("journal", ["fifo", "same"]), order)
    assert [figures.policy for figures in told.policies] == ["recorded", "fifo"]
    assert told.policies[1].tasks == 20
    assert any("archive" in note for note in told.notes)
    assert any("same" in note for note in told.notes)


@pytest.mark.parametrize(
    ("path", "change", "field"),
    [
        (PLANS, {"strategies": ["magic"]}, "strategies[0]"),
        (PLANS, {"strategies": []}, "strategies"),
        (PLANS, {"seconds": 61}, "seconds"),
        (PLANS, {"seconds": 50, "strategies": ["search", "auto"]}, "seconds"),
        (PLANS, {"problem": 7}, "problem"),
        (PLANS, {"problme": ""}, "problme"),
        (SIMULATIONS, {"policies": ["evil.py:POLICY"]}, "policies[0]"),
        (SIMULATIONS, {"policies": ["os:system"]}, "policies[0]"),
        (SIMULATIONS, {"policies": ["same"]}, "policies"),
        (SIMULATIONS, {"nodes": None}, "nodes"),
        (SIMULATIONS, {"since": 5}, "since"),
        (SIMULATIONS, {"source": "trace"}, "source"),
        (SIMULATIONS, {"source": "journal", "since": "yesterday"}, "since"),
        (SIMULATIONS, {"source": "journal", "since": 20, "until": 10}, "since"),
    ],
)
def test_a_wrong_request_gets_one_sentence(cluster: RestCluster, path: str, change: dict[str, Any], field: str) -> None:
    body = {"problem": PROBLEM, "seconds": 1} if path == PLANS else SMALL
    reply = cluster.ask("POST", path, {**body, **change})
    assert reply.status == 400
    assert reply.error["field"] == field


def test_nodes_that_cannot_be_meant_fail_with_a_sentence(cluster: RestCluster) -> None:
    assert "NODESxGPUS" in simulation(cluster, nodes="many")["error"]


def test_a_job_can_be_cancelled_and_removed(cluster: RestCluster) -> None:
    reply = cluster.ask("POST", PLANS, {"problem": PROBLEM, "strategies": ["search"], "seconds": 60})
    name = f"{PLANS}/{reply.json['id']}"
    assert cluster.ask("DELETE", name).json["message"].endswith("was cancelled.")
    assert cluster.get(name)["status"] == "cancelled"
    assert cluster.ask("DELETE", name).json["message"].endswith("was removed.")
    assert cluster.ask("GET", name).status == 404
    assert cluster.ask("GET", f"{SIMULATIONS}/{reply.json['id']}").status == 404


def test_members_see_only_jobs_of_their_tenant_and_not_the_journal(cluster: RestCluster) -> None:
    mia, bob = cluster.token_of("mia", Role.MEMBER, "lab"), cluster.token_of("bob", Role.MEMBER, "shop")
    vera = cluster.token_of("vera", Role.VIEWER, "lab")
    reply = cluster.ask("POST", SIMULATIONS, {**SMALL, "policies": ["fifo"]}, token=mia)
    name = f"{SIMULATIONS}/{reply.json['id']}"
    ended(cluster, SIMULATIONS, reply, mia)
    assert cluster.ask("GET", name, token=bob).status == 404
    assert cluster.ask("DELETE", name, token=bob).status == 404
    assert cluster.get(SIMULATIONS, token=bob)["simulations"] == []
    assert [job["username"] for job in cluster.get(SIMULATIONS, token=vera)["simulations"]] == ["mia"]
    assert cluster.ask("POST", SIMULATIONS, SMALL, token=vera).status == 403
    assert cluster.ask("DELETE", name, token=vera).status == 403
    journal = cluster.ask("POST", SIMULATIONS, {"source": "journal", "policies": ["fifo"]}, token=mia)
    assert (journal.status, journal.error["code"]) == (403, "Forbidden")
