"""What a preempted job loses: a few jobs whose ends are computed by hand."""

from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

import gpuyard
from gpuyard.cli import main
from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.values import Preemption, TaskId
from gpuyard.simulator import generated_jobs, trace_jobs
from gpuyard.simulator.clusters import parse_cluster
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.run import Result, simulate_policy
from gpuyard.simulator.workloads.arrival import Arrival
from gpuyard.simulator.workloads.checkpoints import DrawnCheckpoints, read_checkpoints
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster

LONG_AND_SHORT = Job(0, 1000, 8), Job(100, 10, 8)
OBEYING = DrawnCheckpoints(save_every_seconds=30, ignore_sigterm=0.0)
"""All jobs draw one half, which gives the median of every duration."""


def played(checkpoints: DrawnCheckpoints | None, *jobs: Job, cluster: str = "1x8") -> Result:
    workload = JobsOnCluster(jobs, parse_cluster(cluster), checkpoints=checkpoints, chance=lambda _: lambda: 0.5)
    return simulate_policy(workload, policy_variant("srtf"), oracle=True)


def end_of_first(result: Result) -> float | None:
    return result.recorder.lives[TaskId(1)].ended


def lost_gpu_seconds(result: Result) -> float:
    return result.further["preemption_loss_gpu_hours"] * 3600


def test_a_job_that_saves_within_its_grace_period_loses_no_work() -> None:
    found = played(OBEYING, *LONG_AND_SHORT)
    assert end_of_first(found) == pytest.approx(100 + 5 + 10 + 40 + 900)
    assert lost_gpu_seconds(found) == pytest.approx(8 * (5 + 40))


def test_a_job_that_ignores_sigterm_is_killed_after_the_grace_period_and_repeats_the_work_since_its_last_save() -> None:
    found = played(replace(OBEYING, ignore_sigterm=1.0), *LONG_AND_SHORT)
    assert end_of_first(found) == pytest.approx(100 + 10 + 10 + 40 + 910)
    assert lost_gpu_seconds(found) == pytest.approx(8 * (10 + 40 + 10))


def test_a_job_that_needs_longer_to_save_than_its_grace_period_loses_as_much() -> None:
    too_slow = replace(OBEYING, save_seconds=11.0)
    assert end_of_first(played(too_slow, *LONG_AND_SHORT)) == pytest.approx(100 + 10 + 10 + 40 + 910)
    enough = replace(too_slow, grace_seconds=12.0)
    assert end_of_first(played(enough, *LONG_AND_SHORT)) == pytest.approx(100 + 11 + 10 + 40 + 900)


def test_a_job_that_never_saves_by_itself_starts_from_the_beginning_after_a_kill() -> None:
    found = played(replace(OBEYING, save_every_seconds=inf, ignore_sigterm=1.0), *LONG_AND_SHORT)
    assert end_of_first(found) == pytest.approx(100 + 10 + 10 + 40 + 1000)


def test_a_stop_during_a_restart_loses_the_restart_only() -> None:
    found = played(OBEYING, *LONG_AND_SHORT, Job(125, 10, 8))
    assert end_of_first(found) == pytest.approx(125 + 5 + 10 + 40 + 900)
    assert lost_gpu_seconds(found) == pytest.approx(8 * (5 + 10 + 5 + 40))


def test_a_job_on_several_nodes_takes_half_as_long_again_to_restart() -> None:
    found = played(OBEYING, Job(0, 1000, 16), Job(100, 10, 16), cluster="2x8")
    assert end_of_first(found) == pytest.approx(100 + 5 + 10 + 60 + 900)


def test_the_published_rule_keeps_all_work_and_costs_40_seconds() -> None:
    found = played(None, *LONG_AND_SHORT)
    assert end_of_first(found) == pytest.approx(100 + 10 + 40 + 900)
    assert lost_gpu_seconds(found) == pytest.approx(8 * 40)


def arrivals(policy: str = "srtf", **more: object) -> list[Arrival]:
    jobs = generated_jobs(400, "4x8", **more)  # type: ignore[arg-type]
    return [tasks[0] for _, tasks in jobs.workload.arrivals(policy_variant(policy)) if isinstance(tasks, tuple)]


def preemptible(tasks: list[Arrival]) -> set[int]:
    return {it.task for it in tasks if it.spec.preemption is not Preemption.NEVER}


def test_no_job_may_be_preempted_unless_a_share_is_named() -> None:
    assert preemptible(arrivals()) == set()
    assert len(preemptible(arrivals(preemptible=1.0))) == 400


def test_a_larger_share_contains_the_jobs_of_a_smaller_one_whatever_the_policy_and_the_checkpoints() -> None:
    quarter, half = preemptible(arrivals(preemptible=0.25)), preemptible(arrivals("default", preemptible=0.5))
    assert quarter < half
    assert len(quarter) == pytest.approx(100, abs=25)
    assert quarter == preemptible(arrivals(preemptible=0.25, checkpoints="published"))
    assert quarter != preemptible(arrivals(preemptible=0.25, seed=1))


def test_a_job_draws_the_same_behavior_under_every_policy() -> None:
    first, second = arrivals(preemptible=1.0), arrivals("default", preemptible=1.0)
    assert [it.run for it in first] == [it.run for it in second]
    drawn = [it.run.saving for it in first if it.run.saving is not None]
    assert len({it.save_every_seconds for it in drawn}) == 400
    assert sum(it.ignores_sigterm for it in drawn) == pytest.approx(100, abs=25)
    assert sorted(it.save_seconds for it in drawn)[200] == pytest.approx(5.0, rel=0.2)


def test_losses_are_greater_where_jobs_ignore_the_signal(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    rows = [f"{place * 60},{3000 if place % 4 else 30000},{1 + place % 8}" for place in range(200)]
    trace.write_text("submit_s,duration_s,gpu_num\n" + "\n".join(rows) + "\n")

    def lost(checkpoints: str) -> float:
        jobs = trace_jobs(trace, "2x8", preemptible=1.0, checkpoints=checkpoints)
        (run,) = gpuyard.simulate(jobs, "srtf", oracle=True)
        return run.result.further["preemption_loss_gpu_hours"]

    assert lost("drawn:ignore_sigterm=0:save_seconds=1") < lost("drawn") < lost("drawn:ignore_sigterm=1")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("none", "Checkpoints are published or drawn"),
        ("published:grace_seconds=3", "Checkpoints are published or drawn"),
        ("drawn:grace=3", "'grace=3' is not a property of checkpoints; did you mean 'grace_seconds'?"),
        ("drawn:save_seconds=x", "save_seconds must be a number of seconds, at least 0."),
        ("drawn:save_seconds=-1", "save_seconds must be a number of seconds, at least 0."),
        ("drawn:save_seconds=inf", "save_seconds must be a number of seconds, at least 0."),
        ("drawn:save_every_seconds=0", "save_every_seconds must be at least 1 second, or inf."),
        ("drawn:ignore_sigterm=2", "ignore_sigterm must be a share from 0 to 1."),
        ("drawn:ignore_sigterm=nan", "ignore_sigterm must be a share from 0 to 1."),
    ],
)
def test_checkpoints_that_can_not_be_meant_are_refused_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(WrongInput) as error:
        generated_jobs(5, "1x4", checkpoints=text)
    assert sentence in str(error.value)


def test_every_property_of_checkpoints_can_be_named() -> None:
    text = "drawn:save_every_seconds=inf:save_seconds=2:restart_seconds=3:ignore_sigterm=0.5:grace_seconds=6"
    assert read_checkpoints(text) == DrawnCheckpoints(inf, 2, 3, 0.5, 6)


def simulated(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    common = ("simulate", "--generate", "60:1.2", "--cluster", "1x4", "--policy", "srtf")
    monkeypatch.setattr("sys.argv", ["gpuyard", *common, *words])
    return main()


def test_the_command_says_which_jobs_could_be_preempted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulated(monkeypatch) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("No job may be preempted, like a live task by default")
    assert simulated(monkeypatch, "--preemptible", "0.5", "--checkpoints", "drawn:grace_seconds=60") == 0
    printed = capsys.readouterr().out
    assert "50% of the jobs may be preempted; checkpoints: drawn:grace_seconds=60." in printed
    assert "PREEMPTION LOSS" in printed
    assert simulated(monkeypatch, "--preemptible", "0.5", "--json") == 0
    assert '"checkpoints": "drawn"' in capsys.readouterr().out


def test_a_journal_says_itself_which_tasks_may_be_preempted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for words in (("--preemptible", "0.5"), ("--checkpoints", "drawn")):
        monkeypatch.setattr("sys.argv", ["gpuyard", "simulate", "--journal", str(tmp_path), "--policy", "same", *words])
        assert main() == 2
        assert "a journal records for each task whether it may be preempted" in capsys.readouterr().err
