"""Random lives of small clusters. Every step checks every invariant, and that the events alone give the same state.

A failing scenario prints its steps; Hypothesis shrinks them to the relevant ones.
"""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.events import AttemptResuming, TaskEnded, TaskPlaced, TaskSubmitted
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import Estimate, RunLimit, Share
from gpuyard.core.domain.tenant import Budget, QuotaMode
from gpuyard.core.domain.values import GpuHealth, NodeId, OnLost, Outcome, Preemption, TaskId, TenantId
from gpuyard.core.engine import snapshot
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.phases import ACTIVE, Running
from gpuyard.core.engine.policies import POLICIES
from gpuyard.core.engine.scheduling import backfill as backfill_rules
from gpuyard.core.engine.scheduling import defragment
from gpuyard.core.engine.scheduling.advice import Advisor, Rows
from gpuyard.core.placement.scores import SCORES
from gpuyard.testing import ClusterStory, node, task
from tests.property.scenario_count import count_scenario

SCENARIOS_EACH = int(os.environ.get("GPUYARD_SCENARIOS", "20"))
PHASES = tuple(Phase) if "GPUYARD_NO_SHRINK" not in os.environ else (Phase.generate,)
TENANTS = ("red", "green", "blue")
MODELS = ("A100", "H100")
STARTS = (TaskPlaced, AttemptResuming)


class RandomCluster(RuleBasedStateMachine):
    """One cluster from its creation on."""

    policy = "priority"
    backfill = "easy"
    advisor: Advisor | None = None

    def __init__(self) -> None:
        super().__init__()
        count_scenario()
        self.story = ClusterStory(
            advisor=self.advisor, policy=self.policy, backfill=self.backfill, preemption_min_run_seconds=20.0
        )
        self.count = 0

    @initialize(
        sizes=st.lists(st.tuples(st.integers(0, 4), st.sampled_from(MODELS)), min_size=1, max_size=4),
        score=st.sampled_from(sorted(SCORES)),
        strict=st.booleans(),
        online=st.sampled_from((0.0, 0.3, 0.5, 0.7, 1.0)),
        stop_seconds=st.sampled_from((0.0, 30.0)),
        makes_room=st.booleans(),
    )
    def found(
        self,
        sizes: list[tuple[int, str]],
        score: str,
        strict: bool,
        online: float,
        stop_seconds: float,
        makes_room: bool,
    ) -> None:
        self.story.world.stop_seconds = stop_seconds
        self.story.decides_by(score=score, defragment=makes_room)
        for place, (gpus, model) in enumerate(sizes):
            self.story.has_node(
                node(f"n{place}", gpus=gpus, model=model, cpus=8, memory_mib=1000, rack=f"r{place % 2}")
            )
        self.story.is_split(online=online, mode=QuotaMode.STRICT if strict else QuotaMode.BORROW)

    # --- people ---------------------------------------------------------------------------------------------------

    @rule(
        gpus=st.integers(0, 4),
        nodes=st.sampled_from((1, 1, 1, 2)),
        whole_nodes=st.sampled_from((False, False, False, True)),
        fraction=st.sampled_from((0, 0, 0, 300, 500, 1000)),
        share_memory=st.sampled_from((0, 0, 10_000)),
        cpus=st.integers(0, 6),
        memory_mib=st.sampled_from((0, 0, 400)),
        models=st.sampled_from(((), (), ("A100",), ("H100", "A100"), ("T4",))),
        speeds=st.sampled_from(((), (), (("A100", 0.5), ("H100", 1.0)), (("T4", 3.0), ("A100", 1.0)))),
        labels=st.sampled_from(((), (), (("rack", "r0"),))),
        tenant=st.sampled_from(TENANTS),
        user=st.sampled_from(("", "ann", "bob")),
        kind_varies=st.sampled_from((False, False, True)),
        levels=st.sampled_from(((), (0, 1, 2, 3), (2, 1), (2,))),
        online=st.booleans(),
        priority=st.sampled_from((0, 20, 50, 80, 100)),
        preemption=st.sampled_from(list(Preemption)),
        on_lost=st.sampled_from(list(OnLost)),
        estimate=st.sampled_from((None, None, 10.0, 60.0, 600.0)),
        timeout=st.sampled_from((None, None, 100.0)),
        deadline=st.sampled_from((None, None, None, 150.0)),
        retries=st.integers(0, 2),
        copies=st.sampled_from((1, 1, 1, 5)),
        max_running=st.sampled_from((0, 0, 1, 2)),
        model_name=st.sampled_from(("", "", "llama", "whisper")),
        unpredictable=st.booleans(),
        depends=st.booleans(),
        data=st.data(),
    )
    def submit(
        self, gpus: int, nodes: int, whole_nodes: bool, fraction: int, share_memory: int, cpus: int, memory_mib: int, models: tuple[str, ...],
        speeds: tuple[tuple[str, float], ...], labels: tuple[tuple[str, str], ...], tenant: str, user: str, kind_varies: bool, levels: tuple[int, ...], online: bool, priority: int, preemption: Preemption,
        on_lost: OnLost, estimate: float | None, timeout: float | None, deadline: float | None, retries: int,
        copies: int, max_running: int, model_name: str, unpredictable: bool, depends: bool, data: st.DataObject,
    ) -> None:  # fmt: skip
        shared = (
            Share(fraction, share_memory) if (fraction or share_memory) and nodes == 1 and not whole_nodes else None
        )
        after: tuple[str, ...] = ()
        after_any: tuple[str, ...] = ()
        if depends and self.story.numbers:
            names = st.lists(st.sampled_from(sorted(self.story.numbers)), max_size=2, unique=True)
            after, after_any = tuple(data.draw(names)), tuple(data.draw(names))
        tasks = []
        for _ in range(copies):
            self.count += 1
            tasks.append(
                task(
                    f"t{self.count}", gpus=0 if shared else max(gpus, int(whole_nodes)), nodes=nodes, whole_nodes=whole_nodes, share=shared,
                    cpus=cpus, memory_mib=memory_mib, models=() if not gpus and not shared else models, speeds=speeds, labels=labels, tenant=tenant,
                    user=user, kind_varies=kind_varies, remaining_time_levels=levels, online=online, priority=priority, preemption=preemption, on_lost=on_lost, retries=retries,
                    estimate=None
                    if estimate is None
                    else Estimate(estimate, estimate / 2, estimate * 2, from_other_work=unpredictable),
                    timeout_seconds=timeout, deadline=None if deadline is None else self.story.now + deadline,
                    after=after, after_any=after_any, model_name=model_name, unpredictable=unpredictable,
                )
            )  # fmt: skip
        self.story.submits(*tasks, max_running=max_running)

    @precondition(lambda self: self.story.state.tasks)
    @rule(data=st.data(), most=st.sampled_from((0, 1, 2, 5)), more=st.integers(0, 6))
    def limit_running(self, data: st.DataObject, most: int, more: int) -> None:
        """Limit tasks that may have been submitted apart, so that they request different resources."""
        number = data.draw(st.sampled_from(sorted(self.story.state.tasks)))
        last = min(number + more, self.story.state.last_task)
        self.story.tells(command.SetRunLimit(number, RunLimit(number, TaskId(last), most)))

    @precondition(lambda self: self.story.state.tasks)
    @rule(data=st.data(), asked=st.sampled_from((
        command.CancelTask, command.HoldTask, command.ReleaseTask, command.SuspendTask, command.ResumeTask,
    )))  # fmt: skip
    def ask(self, data: st.DataObject, asked: type[command.Command]) -> None:
        number = data.draw(st.sampled_from(sorted(self.story.state.tasks)))
        self.story.tells(asked(number))

    @precondition(lambda self: self.story.state.tasks)
    @rule(data=st.data(), priority=st.sampled_from((0, 50, 100)), estimate=st.sampled_from((None, 5.0, 500.0)))
    def revise(self, data: st.DataObject, priority: int, estimate: float | None) -> None:
        number = data.draw(st.sampled_from(sorted(self.story.state.tasks)))
        self.story.tells(command.ChangePriority(number, priority))
        revised = None if estimate is None else Estimate(estimate, estimate, estimate)
        self.story.tells(command.ReviseEstimate(number, revised))

    # --- nodes ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: any(isinstance(task.phase, ACTIVE) for task in self.story.state.tasks.values()))
    @rule(data=st.data(), outcome=st.sampled_from(list(Outcome)))
    def end(self, data: st.DataObject, outcome: Outcome) -> None:
        active = [task for task in self.story.state.tasks.values() if isinstance(task.phase, ACTIVE)]
        task = data.draw(st.sampled_from(active))
        assert isinstance(task.phase, ACTIVE)
        nodes = task.phase.placement.nodes
        where = data.draw(st.sampled_from((None, *nodes))) if len(nodes) > 1 else None
        self.story.tells(command.ReportEnded(task.id, task.attempts, outcome, 1, where))

    @precondition(lambda self: any(isinstance(task.phase, Running) for task in self.story.state.tasks.values()))
    @rule()
    def all_running_end(self) -> None:
        for running in list(self.story.state.tasks.values()):
            if isinstance(running.phase, Running):
                self.story.tells(command.ReportEnded(running.id, running.attempts, Outcome.SUCCEEDED, 0))

    @rule(
        data=st.data(),
        asked=st.sampled_from(
            (command.LoseNode, command.ReturnNode, command.CordonNode, command.UncordonNode, command.RemoveNode)
        ),
    )
    def node_changes(self, data: st.DataObject, asked: type[command.Command]) -> None:
        if nodes := sorted(self.story.state.index.hosts):
            self.story._limits_lowered = True
            self.story.tells(asked(data.draw(st.sampled_from(nodes))))

    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        if nodes := sorted(self.story.state.index.hosts):
            self.story.tells(command.CordonNode(data.draw(st.sampled_from(nodes)), drain=True))

    @rule(
        place=st.integers(0, 5),
        gpus=st.integers(0, 4),
        model=st.sampled_from(MODELS),
        gpu_memory_mib=st.sampled_from((40_960, 40_960, 20_000, 81_920)),
    )
    def join(self, place: int, gpus: int, model: str, gpu_memory_mib: int) -> None:
        self.story._limits_lowered = True
        cards: dict[str, Any] = {"gpus": gpus, "model": model, "gpu_memory_mib": gpu_memory_mib}
        self.story.tells(command.JoinNode(node(f"n{place}", **cards, cpus=8, memory_mib=1000)))

    @rule(place=st.integers(0, 3), gpu=st.integers(0, 3), health=st.sampled_from(list(GpuHealth)))
    def gpu_changes(self, place: int, gpu: int, health: GpuHealth) -> None:
        self.story._limits_lowered = True
        self.story.tells(command.SetGpuHealth(NodeId(f"n{place}"), gpu, health))

    # --- the admin ------------------------------------------------------------------------------------------------

    @rule(
        tenant=st.sampled_from((*TENANTS, "default")),
        max_gpus=st.sampled_from((None, 1, 3, 6)),
        by_model=st.sampled_from(((), (("A100", 2),), (("A100", 1), ("H100", 2)))),
        guaranteed=st.sampled_from((None, 0, 1, 3)),
        budget=st.sampled_from((None, None, Budget(0.05, 400.0))),
    )
    def limit(
        self,
        tenant: str,
        max_gpus: int | None,
        by_model: tuple[tuple[str, int], ...],
        guaranteed: int | None,
        budget: Budget | None,
    ) -> None:
        if guaranteed is not None and max_gpus is not None:
            guaranteed = min(guaranteed, max_gpus)
        self.story.has_tenant(
            tenant, max_gpus=max_gpus, max_gpus_by_model=by_model, guaranteed_gpus=guaranteed, budget=budget
        )

    @rule(online=st.sampled_from((0.0, 0.5, 0.9)), mode=st.sampled_from(list(QuotaMode)))
    def split(self, online: float, mode: QuotaMode) -> None:
        self.story.is_split(online=online, mode=mode)

    @rule(policy=st.sampled_from(sorted(POLICIES)))
    def change_policy(self, policy: str) -> None:
        self.story.decides_by(policy=policy)

    # --- time -----------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from((1.0, 10.0, 50.0, 200.0)))
    def time_passes(self, seconds: float) -> None:
        self.story.passes(seconds)

    @rule()
    def restart(self) -> None:
        """A scheduler that goes on from a snapshot starts nothing that the old one had not; it may promise anew."""
        document = snapshot.dump(self.story.state)
        engine = Engine(snapshot.load(document))
        assert snapshot.dump(engine.state) == document
        started = [event for event in engine.decide(self.story.state.now) if isinstance(event, STARTS)]
        assert started == [] or self.advisor is not None, "only an advisor may be of another mind when asked again"

    @rule(data=st.data())
    def explain_somebody(self, data: st.DataObject) -> None:
        if self.story.state.tasks:
            number = data.draw(st.sampled_from(sorted(self.story.state.tasks)))
            explanation = self.story.explains(self.story.names[number])
            waiting = self.story.state.tasks[number]
            waits = waiting.group is not None or waiting.is_parked
            assert not waits or isinstance(explanation.reason, Refusal), f"task {number} waits without a reason"

    def teardown(self) -> None:
        ids = [event.task for _, event in self.story.events if isinstance(event, TaskSubmitted)]
        ended = [event.task for _, event in self.story.events if isinstance(event, TaskEnded)]
        assert len(ended) == len(set(ended)), "a task ended twice"
        assert set(ids) == set(ended) | set(self.story.state.tasks), "a task was lost"


class FragmentedCluster(RandomCluster):
    """A cluster where small tasks that may be moved stand in the way of large ones."""

    @initialize(
        nodes=st.integers(2, 4),
        small=st.integers(3, 8),
        apart=st.sets(st.integers(0, 7), min_size=1),
        score=st.sampled_from(("spread", "best_fit")),
        stop_seconds=st.sampled_from((0.0, 30.0)),
    )
    def found(self, nodes: int, small: int, apart: set[int], score: str, stop_seconds: float) -> None:
        self.story.world.stop_seconds = stop_seconds
        self.story.decides_by(score=score, defragment=True, preemption_min_run_seconds=1.0)
        self.story.is_split(online=0.0, mode=QuotaMode.NONE)
        for place in range(nodes):
            self.story.has_node(node(f"n{place}", gpus=4, model=MODELS[place % 2], cpus=16, memory_mib=4000))
        kept = [f"s{place}" for place in range(small) if place not in apart]
        for place in range(small):
            mode = Preemption.REQUEUE if place % 4 == 3 else Preemption.CHECKPOINT
            self.story.submits(
                task(f"s{place}", gpus=1 + place % 2, cpus=1, preemption=mode, tenant=TENANTS[place % 3])
            )
        for place in sorted(apart):
            name = f"s{place}"
            if place < small and self.story.is_running(name) and kept:
                self.story.finishes(name)
        self.story.submits(task("large", gpus=4, tenant="red"), task("gang", gpus=3, nodes=2, tenant="green"))
        self.story.passes(100.0)


class BookedCluster(RandomCluster):
    """A cluster where GPUs are booked and nodes are closed for maintenance."""

    @rule(
        gpus=st.integers(1, 6),
        tenant=st.sampled_from(TENANTS),
        begins=st.sampled_from((0.0, 20.0, 100.0, 400.0)),
        lasts=st.sampled_from((10.0, 100.0, 300.0)),
        models=st.sampled_from(((), (), ("A100",))),
        maintenance=st.sampled_from((False, False, False, True)),
        preempt=st.booleans(),
        place=st.sampled_from((None, None, 0, 1)),
    )
    def book(
        self, gpus: int, tenant: str, begins: float, lasts: float, models: tuple[str, ...], maintenance: bool,
        preempt: bool, place: int | None,
    ) -> None:  # fmt: skip
        nodes = (NodeId(f"n{place or 0}"),) if maintenance or place is not None else ()
        at = self.story.now + begins
        self.story.tells(
            command.MakeBooking(
                TenantId(tenant), at, at + lasts, gpus, models, nodes, maintenance=maintenance, preempt=preempt
            )
        )

    @precondition(lambda self: self.story.state.bookings)
    @rule(
        data=st.data(),
        gpus=st.integers(0, 3),
        fraction=st.sampled_from((300, 1000)),
        nodes=st.sampled_from((1, 1, 2)),
        preemption=st.sampled_from(list(Preemption)),
        timeout=st.sampled_from((None, 50.0)),
    )
    def submit_to_booking(
        self, data: st.DataObject, gpus: int, fraction: int, nodes: int, preemption: Preemption, timeout: float | None
    ) -> None:
        number = data.draw(st.sampled_from(sorted(self.story.state.bookings)))
        tenant = self.story.state.bookings[number].booking.tenant
        self.count += 1
        self.story.submits(
            task(
                f"t{self.count}", gpus=gpus, share=None if gpus else Share(fraction), nodes=nodes if gpus else 1,
                tenant=tenant, preemption=preemption, timeout_seconds=timeout, booking=number,
            )
        )  # fmt: skip

    @precondition(lambda self: self.story.state.bookings)
    @rule(data=st.data())
    def cancel_booking(self, data: st.DataObject) -> None:
        self.story.tells(command.CancelBooking(data.draw(st.sampled_from(sorted(self.story.state.bookings)))))


class Fickle:
    """An advisor that picks any of the candidates, the same whenever it sees the same."""

    def pick(self, rows: Rows) -> int:
        assert len(rows) > 1, "it was asked although there is nothing to choose"
        return int(sum(map(sum, rows)) * 1000) % len(rows)


@pytest.mark.parametrize("backfill", ["none", "greedy", "easy", "conservative"])
def test_with_any_advice_nothing_is_over_committed_stranded_or_lost(backfill: str) -> None:
    _live(type("Life", (RandomCluster,), {"policy": "dqn", "backfill": backfill, "advisor": Fickle()}))


@pytest.mark.parametrize("backfill", ["none", "greedy", "easy", "conservative"])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_in_any_scenario_nothing_is_over_committed_stranded_or_lost(policy: str, backfill: str) -> None:
    _live(type("Life", (RandomCluster,), {"policy": policy, "backfill": backfill}))


@pytest.mark.parametrize("backfill", ["none", "greedy", "easy", "conservative"])
@pytest.mark.parametrize("policy", ["default", "fair_share", "fifo", "priority"])
def test_if_tasks_move_at_any_price_to_make_room_nothing_is_over_committed_stranded_or_lost(
    policy: str, backfill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("LOOK_EVERY_SECONDS", "REST_SECONDS", "MARGIN", "UNSAVED_SECONDS"):
        monkeypatch.setattr(defragment, limit, 1e-3)
    _live(type("Life", (FragmentedCluster,), {"policy": policy, "backfill": backfill}))


@pytest.mark.parametrize("backfill", ["none", "greedy", "easy", "conservative"])
@pytest.mark.parametrize("policy", ["default", "fair_share", "fifo", "priority"])
def test_with_any_bookings_nothing_is_over_committed_stranded_or_lost(
    policy: str, backfill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_rules, "ASSUMED_SECONDS", 150.0)
    _live(type("Life", (BookedCluster,), {"policy": policy, "backfill": backfill}))


def _live(scenario: type[RandomCluster]) -> None:
    run_state_machine_as_test(
        scenario,
        settings=settings(
            max_examples=SCENARIOS_EACH,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
            phases=PHASES,
        ),
    )
