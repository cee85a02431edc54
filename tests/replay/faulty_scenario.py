"""A random scenario with delays and faults, drawn from a seed: the same seed gives the same scenario.

    python -m tests.replay.faulty_scenario FROM TO

runs the scenarios of these seeds and reports which broke an invariant.

Nodes take time to start and stop, one node has GPUs of several models, reports arrive late or twice, parts of
gangs report separately, a suspension fails, a lost node returns with some of its attempts, schedulers are replaced
by ones that read a snapshot, and commands arrive in batches. Beside the engine the scenario keeps its own list of
which attempt really uses which GPU: whatever the engine assumes, no GPU may be used by two.
"""

import sys
from collections.abc import Callable
from random import Random
from typing import Any

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import Estimate, Share
from gpuyard.core.domain.tenant import Budget, QuotaMode, Split, Tenant
from gpuyard.core.domain.values import (
    MILLI,
    AttemptRef,
    GpuHealth,
    Link,
    NodeId,
    OnLost,
    Outcome,
    Preemption,
    TaskId,
    TenantId,
)
from gpuyard.core.engine import invariants, snapshot
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.phases import ACTIVE, Resuming, Suspending
from gpuyard.core.engine.policies import POLICIES
from gpuyard.core.engine.task import OpenTask
from gpuyard.core.placement.scores import SCORES
from gpuyard.simulator.world import World
from gpuyard.testing import ClusterStory, TaskBuilder, cpu_task, gang, node, task

TENANTS = ("red", "green", "blue")
ESTIMATES = (None, Estimate(60.0, 30.0, 120.0), Estimate(5.0, 5.0, 5.0), Estimate(1000.0, 10.0, 4000.0))
BACKFILLS = ("none", "greedy", "easy", "conservative")


class RealNodes(World):
    """A world that knows which attempt really uses which GPU of which node."""

    def __init__(self, start_seconds: float, stop_seconds: float) -> None:
        super().__init__(start_seconds=start_seconds, stop_seconds=stop_seconds)
        self.really: dict[NodeId, dict[AttemptRef, dict[int, int]]] = {}
        """Thousandths of GPUs in use, by node and attempt."""

    def handle(self, asked: command.Command) -> Any:
        """What a node says it did, it did before it said so."""
        self.does(asked)
        return super().handle(asked)

    def does(self, asked: command.Command) -> None:
        """A node does what it is going to say."""
        if isinstance(asked, command.ReportEnded | command.ReportNotResumed):
            self._leaves(asked, forget=True)
        elif isinstance(asked, command.ReportSuspended):
            task = self.engine.state.tasks.get(asked.task)
            if task is not None and task.round == asked.round and isinstance(task.phase, Suspending):
                self._leaves(asked, forget=False)

    def _leaves(self, asked: Any, *, forget: bool) -> None:
        for name, running in self.really.items():
            if asked.node in {None, name}:
                ref = AttemptRef(asked.task, asked.attempt, asked.origin)
                if forget:
                    running.pop(ref, None)
                elif ref in running:
                    running[ref] = {}

    def _effect(self, event: events.Event) -> None:
        if isinstance(event, events.TaskPlaced | events.AttemptResuming):
            task = self.engine.state.tasks[event.task]
            self._uses(AttemptRef(event.task, event.attempt, task.origin), event.placement)
        super()._effect(event)

    def _uses(self, attempt: AttemptRef, placement: Placement) -> None:
        for part in placement.slices:
            here = self.really.setdefault(part.node, {})
            here[attempt] = {}
            for gpu in part.gpus:
                used = sum(cards.get(gpu, 0) for cards in here.values())
                assert used + part.milli <= MILLI, f"GPU {gpu} of {part.node} is really in use, and given to {attempt}"
                here[attempt][gpu] = part.milli


class FaultyScenario:
    """A story of random steps, on nodes that are slow, lose attempts and lose their connection."""

    def __init__(self, seed: int) -> None:
        self.draw = draw = Random(seed)
        self.count = 0
        self.said: list[command.Command] = []
        self.story = ClusterStory()
        self.world = RealNodes(draw.choice((0.0, 3.0, 25.0)), draw.choice((0.0, 5.0, 40.0)))
        self.world.engine, self.world.listeners = self.story.world.engine, self.story.world.listeners
        self.story.world = self.world
        self.story.decides_by(
            policy=draw.choice(sorted(POLICIES)), backfill=draw.choice(BACKFILLS), score=draw.choice(sorted(SCORES)),
            preemption_min_run_seconds=20.0, reservations=draw.choice((2, 16)), search_depth=draw.choice((1, 64)),
            remember_ended=draw.choice((3, 10_000)),
        )  # fmt: skip
        for place in range(draw.randrange(1, 5)):
            self.story.has_node(self._node(place))
        self.story.is_split(online=draw.choice((0.0, 0.3, 0.5, 1.0)), mode=draw.choice(list(QuotaMode)))

    def takes_steps(self, steps: int) -> None:
        for _ in range(steps):
            self.draw.choice(STEPS)(self)
        self._decides()

    # --- what can happen ------------------------------------------------------------------------------------------

    def submits(self) -> None:
        draw = self.draw
        more: dict[str, Any] = {
            "tenant": draw.choice(TENANTS),
            "online": draw.random() < 0.4,
            "priority": draw.choice((0, 20, 50, 100)),
            "preemption": draw.choice(list(Preemption)),
            "estimate": draw.choice(ESTIMATES),
            "runs_for": draw.choice((None, None, 15.0, 80.0)),
            "retries": draw.choice((0, 2)),
            "timeout_seconds": draw.choice((None, None, 50.0)),
            "deadline": draw.choice((None, None, None, self.world.now + 90)),
            "on_lost": draw.choice(list(OnLost)),
            "memory_mib": draw.choice((0, 0, 400, 900)),
            "cpus": draw.choice((0, 0, 2, 6)),
            "models": draw.choice(((), (), ("A100",), ("A100", "H100"))),
            "labels": draw.choice(((), (), (("rack", "r0"),))),
            "link": draw.choice(list(Link)),
        }
        gpus, memory, whole = draw.choice((1, 1, 2, 3, 4)), draw.choice((0, 60_000)), draw.random() < 0.15
        kinds: tuple[Callable[[str], TaskBuilder], ...] = (
            *(lambda name: task(name, gpus=gpus, gpu_memory_mib=memory, whole_nodes=whole, **more),) * 3,
            lambda name: gang(name, members=2, gpus_each=min(gpus, 2), whole_nodes=whole, **more),
            lambda name: task(name, share=Share(gpus * 250), **more),
            lambda name: task(name, share=Share(0, gpus * 10_000), **more),
            lambda name: cpu_task(name, **{**more, "models": (), "cpus": 1 + gpus}),
        )
        build = draw.choice(kinds)
        tasks = []
        for _ in range(draw.choice((1, 1, 1, 4))):
            self.count += 1
            tasks.append(build(f"t{self.count}"))
        self._decides()
        self.story.submits(*tasks)

    def asks(self) -> None:
        kinds: tuple[Callable[[TaskId], command.Command], ...] = (
            command.CancelTask,
            command.HoldTask,
            command.ReleaseTask,
            *(command.SuspendTask,) * 3,
            *(command.ResumeTask,) * 3,
            lambda number: command.ChangePriority(number, self.draw.choice((0, 50, 100))),
            lambda number: command.ReviseEstimate(number, self.draw.choice(ESTIMATES)),
            lambda number: command.ExtendTask(number, timeout_seconds=self.draw.choice((60.0, 200.0))),
        )
        if tasks := sorted(self.story.state.tasks):
            self._tells(self.draw.choice(kinds)(self.draw.choice(tasks)))

    def reports(self) -> None:
        """A node sends a report: correct, too early, or repeated."""
        if (one := self._somebody(ACTIVE)) is None:
            return
        nodes = one.active.placement.nodes
        if any(self.story.state.index.hosts[name].lost for name in nodes):
            return  # no scheduler receives it
        where = self.draw.choice((None, *nodes))
        stale = self.draw.choice((one.round, one.round, 1))
        kinds: tuple[Callable[[], command.Command], ...] = (
            lambda: command.ReportStarted(one.id, one.attempts, where, one.origin),
            lambda: command.ReportSuspended(one.id, one.attempts, stale, where, one.origin),
            lambda: command.ReportResumed(one.id, one.attempts, stale, where, one.origin),
            *(lambda: self._ended(one, where, self.draw.choice(list(Outcome))),) * 3,
        )
        self._tells(self.draw.choice(kinds)())

    def _ended(self, one: OpenTask, where: NodeId | None, outcome: Outcome) -> command.ReportEnded:
        return command.ReportEnded(one.id, one.attempts, outcome, 1, where, origin=one.origin)

    def fails_to_move(self) -> None:
        """A suspension, or the way back from it, fails."""
        if one := self._somebody((Suspending,)):
            self._tells(
                command.ReportNotSuspended(one.id, one.attempts, one.round, "It cannot be moved.", None, one.origin)
            )
        if one := self._somebody((Resuming,)):
            where = self.draw.choice((None, *one.active.placement.nodes))
            if not any(self.story.state.index.hosts[name].lost for name in one.active.placement.nodes):
                self._tells(command.ReportNotResumed(one.id, one.attempts, one.round, "It is gone.", where, one.origin))

    def repeats(self) -> None:
        """Something is said a second time, long after; nothing happens on the nodes by that.

        What a node has is not among it: an old list would be a lie, and registrations are answered calls.
        """
        if self.said:
            asked = self.draw.choice(self.said)
            if not isinstance(asked, command.JoinNode | command.ReturnNode):
                self._tells(asked, really=False)

    def loses_or_gets_back(self) -> None:
        """A node is lost; a lost one returns with what it still has of what it ran."""
        name = self._any_node()
        if name is None:
            return
        host = self.story.state.index.hosts[name]
        if not host.lost and not host.away:
            stops = self.draw.random() < 0.2
            self._tells(command.StopNode(name, 60.0) if stops else command.LoseNode(name))
            return
        if host.away and not host.lost and self.draw.random() < 0.3:
            self._tells(command.LoseNode(name))
            return
        self._registers(host.spec, joins=self.draw.random() < 0.7)

    def begins_an_epoch(self) -> None:
        """Another scheduler begins; some nodes register with it at once."""
        self._tells(command.BeginEpoch("0.1.0", origin=self.draw.randrange(1, 2**63)))
        for name in sorted(self.story.state.index.hosts):
            if self.draw.random() < 0.8:
                self._registers(self.story.state.index.hosts[name].spec, joins=True)

    def _registers(self, spec: NodeSpec, *, joins: bool) -> bool:
        """A node says what it has; what runs there is said to run now and then, and never what does not."""
        has = self._has(spec.id)
        runs = tuple(ref for ref in has if self._runs(spec.id, ref) and self.draw.random() < 0.7)
        asked: command.Command = command.ReturnNode(spec.id, has, runs)
        if joins:
            asked = command.JoinNode(spec, has, runs, tuple((ref, self._part(spec.id, ref)) for ref in has))
        if isinstance(self._tells(asked), Refusal):
            return False
        self._reconciles(spec.id, has)
        return True

    def _runs(self, name: NodeId, ref: AttemptRef) -> bool:
        left = self.story.state.orphaned_attempts.get(name, {}).get(ref)
        return left is not None and set(self.world.really[name][ref]) == set(left.part.gpus)

    def _part(self, name: NodeId, ref: AttemptRef) -> Slice:
        cards = self.world.really[name][ref]
        return Slice(name, tuple(sorted(cards)), min(cards.values(), default=MILLI))

    def what_remains_ends(self) -> None:
        """What a node ran on with is stopped there."""
        for name, left in self.story.state.orphaned_attempts.items():
            host = self.story.state.index.hosts[name]
            if not host.lost and left:
                number, attempt, origin = self.draw.choice(sorted(left))
                self._tells(command.ReportEnded(number, attempt, Outcome.STOPPED, node=name, origin=origin))
                return

    def changes_a_node(self) -> None:
        if name := self._any_node():
            kinds: tuple[Callable[[], command.Command], ...] = (
                lambda: command.CordonNode(name),
                lambda: command.CordonNode(name, drain=True, force=self.draw.random() < 0.5),
                *(lambda: command.UncordonNode(name),) * 3,
                lambda: command.RemoveNode(name),
            )
            self._tells(self.draw.choice(kinds)())

    def joins(self) -> None:
        self._registers(self._node(self.draw.randrange(5)), joins=True)

    def changes_a_card(self) -> None:
        where, gpu = NodeId(f"n{self.draw.randrange(4)}"), self.draw.randrange(4)
        self._tells(command.SetGpuHealth(where, gpu, self.draw.choice(list(GpuHealth))))

    def limits(self) -> None:
        draw = self.draw
        tenant = Tenant(
            TenantId(draw.choice((*TENANTS, "default"))),
            max_gpus=draw.choice((None, 1, 3, 6)),
            max_gpus_by_model=draw.choice(((), (("A100", 2),), (("A100", 1), ("H100", 2)))),
            guaranteed_gpus=draw.choice((None, 0, 1)),
            budget=draw.choice((None, None, Budget(0.05, 400.0))),
            weight=draw.choice((1.0, 3.0)),
        )
        self._tells(command.SetTenant(tenant))

    def splits(self) -> None:
        online = self.draw.choice((0.0, 0.5, 0.9))
        self._tells(command.SetSplit(Split(online, 1 - online, self.draw.choice(list(QuotaMode)))))

    def decides_otherwise(self) -> None:
        self._decides()
        self.story.decides_by(policy=self.draw.choice(sorted(POLICIES)))

    def waits(self) -> None:
        self._decides()
        self.story.passes(self.draw.choice((1.0, 7.0, 10.0, 60.0, 200.0)))

    def restarts(self) -> None:
        """Another scheduler goes on from a snapshot."""
        document = snapshot.dump(self.story.state)
        self.world.engine = Engine(snapshot.load(document))
        assert snapshot.dump(self.story.state) == document, "what was written is not what was read"
        self._decides()

    def explains(self) -> None:
        self._decides()
        for number in list(self.story.state.tasks)[:5]:
            waits = self.story.state.tasks[number].group is not None
            reason = self.story.explains(self.story.names[number]).reason
            assert not waits or isinstance(reason, Refusal), f"task {number} waits without a reason"

    # --- how it is told -------------------------------------------------------------------------------------------

    def _tells(self, asked: command.Command, *, really: bool = True) -> Any:
        """Tell the engine something, of nodes only what is really so; now and then it may decide only later."""
        self.said.append(asked)
        self.story._limits_lowered = True
        if really and self.draw.random() < 0.8:
            answer = self.world.tell(asked)
            self._decides()  # a refusal does not, and others may have been told something before
            return answer
        if really:
            self.world.does(asked)
        answer = self.world.engine.handle(asked, self.world.now)
        if not isinstance(answer, Refusal):
            self.world._publish(list(answer))
        invariants.check(self.story.state)
        return answer

    def _decides(self) -> None:
        self.world._publish(self.world.engine.decide(self.world.now))
        self.story.passes(0)

    def _node(self, place: int) -> NodeSpec:
        draw, name, rack = self.draw, f"n{place}", f"r{place % 2}"
        if draw.random() < 0.4:
            gpus = tuple(
                Gpu(draw.choice(("A100", "H100")), draw.choice((40_000, 80_000)), numa=at // 2, nvlink=draw.choice((None, 0)))
                for at in range(draw.randrange(0, 5))
            )  # fmt: skip
            return NodeSpec(NodeId(name), gpus, draw.choice((8, 16)), 1000, (("rack", rack),))
        model, memory = draw.choice(("A100", "H100")), draw.choice((40_000, 80_000))
        gpus_each, driver = draw.choice((0, 1, 2, 4)), draw.choice(("570", "571"))
        return node(name, gpus=gpus_each, model=model, gpu_memory_mib=memory, cpus=8, memory_mib=1000, rack=rack, driver=driver)  # fmt: skip

    def _any_node(self) -> NodeId | None:
        names = sorted(self.story.state.index.hosts)
        return self.draw.choice(names) if names else None

    def _somebody(self, phases: tuple[type[Any], ...]) -> OpenTask | None:
        found = [one for one in self.story.state.tasks.values() if isinstance(one.phase, phases)]
        return self.draw.choice(found) if found else None

    def _has(self, name: NodeId) -> tuple[AttemptRef, ...]:
        """What a node still has; of what is not to run there any more, some may have ended meanwhile."""
        running = self.world.really.get(name, {})
        for what in list(running):
            one = self.story.state.tasks.get(what[0])
            present = one is not None and isinstance(one.phase, ACTIVE) and (one.attempts, one.origin) == what[1:]
            if not present and self.draw.random() < 0.5:
                del running[what]
        return tuple(running)

    def _reconciles(self, name: NodeId, has: tuple[AttemptRef, ...]) -> None:
        """A scheduler that hears what a node has reports for it what it should have and has not."""
        state = self.story.state
        for one in list(state.on_node.get(name, {}).values()):
            gone = AttemptRef(one.id, one.attempts, one.origin) not in has
            if gone and name not in (one.members or {}) and one.id in state.tasks:
                self._tells(command.ReportEnded(one.id, one.attempts, Outcome.LOST, node=name, origin=one.origin))


STEPS: tuple[Callable[[FaultyScenario], None], ...] = (
    *(FaultyScenario.submits,) * 12, *(FaultyScenario.waits,) * 8, *(FaultyScenario.asks,) * 5, *(FaultyScenario.reports,) * 4,
    *(FaultyScenario.loses_or_gets_back,) * 4, *(FaultyScenario.what_remains_ends,) * 2, *(FaultyScenario.changes_a_node,) * 2,
    FaultyScenario.fails_to_move, FaultyScenario.repeats, FaultyScenario.joins, FaultyScenario.changes_a_card, FaultyScenario.limits,
    FaultyScenario.begins_an_epoch, FaultyScenario.splits, FaultyScenario.decides_otherwise, FaultyScenario.restarts, FaultyScenario.explains,
)  # fmt: skip


if __name__ == "__main__":
    broken = 0
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            FaultyScenario(number).takes_steps(60)
        except Exception as error:
            broken += 1
            print(f"{number}: {error!r}"[:240], flush=True)
    print(f"{broken} of {int(sys.argv[2]) - int(sys.argv[1])} scenarios broke an invariant.")
