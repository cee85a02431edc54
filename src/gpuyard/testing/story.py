"""A story of a cluster: say what happens, ask what is so. Every invariant is checked after every step.

At each step the facts are also folded a second time into a fresh state, and that state must equal the engine's, byte
for byte: nothing the engine knows may come from anywhere but its facts.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events as fact
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.settings import Backfill, Moves, Settings
from gpuyard.core.domain.task import NewTask, ranges_in
from gpuyard.core.domain.tenant import QuotaMode, Split, Tenant
from gpuyard.core.domain.values import MILLI, AttemptRef, GpuHealth, NodeId, Outcome, TaskId, TaskStatus, TenantId
from gpuyard.core.engine import invariants, snapshot
from gpuyard.core.engine.advice import Advisor
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.explain import Explanation, explain
from gpuyard.core.engine.folds import apply
from gpuyard.core.engine.phases import HOLDING, Running, Suspended
from gpuyard.core.engine.state import State
from gpuyard.simulator.world import TaskBehavior, World
from gpuyard.testing.builders import TaskBuilder, node


class ClusterStory:
    """A virtual cluster that a test talks to by the names of its tasks and nodes."""

    def __init__(self, *, advisor: Advisor | None = None, **settings: Any) -> None:
        self.world = World(Engine(advisor=advisor))
        self.facts: list[tuple[float, fact.Event]] = []
        self.names: dict[TaskId, str] = {}
        self.numbers: dict[str, TaskId] = {}
        self._twin = State()
        self._nodes = 0
        self._limits_lowered = False
        self.world.listeners.append(self._hear)
        self._tell(command.FoundYard("story"))
        self.is_split(online=0.5, mode=QuotaMode.BORROW)
        if settings:
            self.decides_by(**settings)

    # --- what is there -------------------------------------------------------------------------------------------

    def has_nodes(self, count: int, *, gpus_each: int = 8, **more: Any) -> list[str]:
        """Equal nodes join: node-1, node-2, …"""
        names = [f"node-{self._nodes + place + 1}" for place in range(count)]
        self._nodes += count
        for name in names:
            self.has_node(node(name, gpus=gpus_each, **more))
        return names

    def has_node(self, spec: NodeSpec) -> None:
        """A node joins."""
        self._tell(command.JoinNode(spec))

    def has_tenant(self, name: str, **limits: Any) -> None:
        """A tenant has these limits from now on."""
        self._limits_lowered = True
        self._tell(command.SetTenant(Tenant(TenantId(name), **limits)))

    def is_split(self, *, online: float, mode: QuotaMode = QuotaMode.STRICT) -> None:
        """The yard is split so from now on."""
        self._limits_lowered = True
        self._tell(command.SetSplit(Split(online, 1 - online, mode)))

    def decides_by(self, **settings: Any) -> None:
        """The engine decides so from now on."""
        known = {field: getattr(self.state.settings, field) for field in Settings.__struct_fields__}
        for field, words in (("backfill", Backfill), ("moves", Moves)):
            if field in settings:
                settings[field] = words(settings[field])
        self._tell(command.ChangeSettings(Settings(**{**known, **settings})))

    # --- what happens --------------------------------------------------------------------------------------------

    def submits(self, *tasks: TaskBuilder) -> list[TaskId] | Refusal:
        """Tasks are submitted together; they may name each other with `after`."""
        first = self.state.last_task + 1
        numbers = {builder.name: TaskId(first + place) for place, builder in enumerate(tasks)}
        known = {**self.numbers, **numbers}
        batch = []
        for builder in tasks:
            fields = {field: getattr(builder.spec, field) for field in builder.spec.__struct_fields__}
            for field, names in (("after_success", builder.after), ("after_any", builder.after_any)):
                single, ranges = ranges_in((known[name] for name in names), least=2)
                fields[field] += single
                fields[f"{field}_ranges"] += ranges
            batch.append(NewTask(numbers[builder.name], type(builder.spec)(**fields)))
            if builder.runs_for is not None:
                self.world.runs[numbers[builder.name]] = TaskBehavior(builder.runs_for)
        answer = self.tells(command.SubmitTasks(tuple(batch)))
        if isinstance(answer, Refusal):
            return answer
        self.numbers.update(numbers)
        self.names.update({number: name for name, number in numbers.items()})
        self.passes(0)
        return list(numbers.values())

    def submits_many(self, count: int, builder: TaskBuilder) -> list[TaskId] | Refusal:
        """So many like this one: name-1, name-2, …"""
        return self.submits(*(replace(builder, name=f"{builder.name}-{place + 1}") for place in range(count)))

    def passes(self, seconds: float) -> None:
        """Time passes."""
        self.world.advance(self.world.now + seconds)
        self._check()

    def runs_out(self) -> None:
        """Time passes until nothing is due any more."""
        self.world.run_to_end()
        self._check()

    def finishes(self, *names: str) -> None:
        """Tasks end well, now."""
        for name in names:
            self._ends(name, Outcome.SUCCEEDED, 0)

    def fails(self, name: str, exit_code: int = 1) -> None:
        """A task ends with an error, now."""
        self._ends(name, Outcome.FAILED, exit_code)

    def fails_on(self, name: str, node_name: str, exit_code: int = 1) -> None:
        """One part of a gang ends with an error, now."""
        number = self.numbers[name]
        attempt = self.state.tasks[number].attempts
        self._tell(command.ReportEnded(number, attempt, Outcome.FAILED, exit_code, NodeId(node_name)))

    def cancels(self, name: str) -> None:
        """A task is cancelled."""
        self._tell(command.CancelTask(self.numbers[name]))

    def holds(self, name: str) -> None:
        """A task is put on hold."""
        self._tell(command.HoldTask(self.numbers[name]))

    def releases(self, name: str) -> None:
        """A held task is released."""
        self._tell(command.ReleaseTask(self.numbers[name]))

    def loses(self, node_name: str) -> None:
        """A node is lost."""
        self._limits_lowered = True
        self._tell(command.LoseNode(NodeId(node_name)))

    def gets_back(self, node_name: str, *still_has: str) -> None:
        """A lost node returns, with the first attempts of these tasks."""
        attempts = tuple(AttemptRef(self.numbers[name], 1) for name in still_has)
        self._tell(command.ReturnNode(NodeId(node_name), attempts))

    def cordons(self, node_name: str, *, drain: bool = False, force: bool = False) -> None:
        """A node is closed, or emptied."""
        self._tell(command.CordonNode(NodeId(node_name), drain, force))

    def uncordons(self, node_name: str) -> None:
        """A node is open again."""
        self._tell(command.UncordonNode(NodeId(node_name)))

    def gpu_becomes(self, node_name: str, gpu: int, health: GpuHealth) -> None:
        """A card changes its health."""
        self._limits_lowered = True
        self._tell(command.SetGpuHealth(NodeId(node_name), gpu, health))

    def tells(self, asked: command.Command) -> Sequence[fact.Event] | Refusal:
        """Any command; the answer may be a refusal."""
        answer = self.world.tell(asked)
        self.passes(0)
        return answer

    # --- what is so ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The engine's state."""
        return self.world.engine.state

    @property
    def now(self) -> float:
        """The story's instant."""
        return self.world.now

    def status(self, name: str) -> TaskStatus:
        """What a user is told of a task."""
        number = self.numbers[name]
        return self.state.tasks[number].status if number in self.state.tasks else self.state.ended[number]

    def is_running(self, name: str) -> bool:
        """Whether it runs at this instant."""
        number = self.numbers[name]
        return number in self.state.tasks and isinstance(self.state.tasks[number].phase, Running)

    def is_suspended(self, name: str) -> bool:
        """Whether it is in host memory at this instant."""
        number = self.numbers[name]
        return number in self.state.tasks and isinstance(self.state.tasks[number].phase, Suspended)

    def running(self) -> list[str]:
        """What runs, in order of submission."""
        return [name for name in self.numbers if self.is_running(name)]

    def nodes_of(self, name: str) -> tuple[str, ...]:
        """The nodes a task holds."""
        phase = self.state.tasks[self.numbers[name]].phase
        assert isinstance(phase, HOLDING), f"{name} holds no node"
        return phase.placement.nodes

    def gpus_of(self, name: str) -> list[tuple[str, tuple[int, ...]]]:
        """The cards a task holds, node by node."""
        phase = self.state.tasks[self.numbers[name]].phase
        assert isinstance(phase, HOLDING), f"{name} holds no GPU"
        return [(part.node, part.gpus) for part in phase.placement.slices]

    def placements(self) -> list[str]:
        """Which tasks were placed, in that order, repeats included."""
        return [
            self.names.get(event.task, str(event.task)) for _, event in self.facts if isinstance(event, fact.TaskPlaced)
        ]

    def started_at(self, name: str) -> float:
        """When a task was first placed."""
        number = self.numbers[name]
        return next(at for at, event in self.facts if isinstance(event, fact.TaskPlaced) and event.task == number)

    def reserved_for(self, name: str) -> tuple[tuple[str, ...], float | None] | None:
        """The nodes promised to a waiting task, and from when on."""
        hold = self.state.reservations.get(self.numbers[name])
        return None if hold is None else (hold.nodes, hold.starts_at)

    def explains(self, name: str) -> Explanation:
        """What a user is told about a waiting task."""
        return explain(self.state, self.numbers[name], self.now)

    def why(self, name: str) -> Refusal | None:
        """Why a task waits."""
        return self.explains(name).reason

    def gpus_in_use(self) -> float:
        """GPUs given out at this instant."""
        return sum(usage.used for usage in self.state.classes) / MILLI

    def facts_of(self, name: str) -> list[fact.Event]:
        """Everything that happened to a task."""
        number = self.numbers[name]
        return [event for _, event in self.facts if getattr(event, "task", None) == number]

    # --- behind the scenes ---------------------------------------------------------------------------------------

    def _tell(self, asked: command.Command) -> None:
        answer = self.tells(asked)
        assert not isinstance(answer, Refusal), f"{asked} was refused: {answer.sentence()}"

    def _ends(self, name: str, outcome: Outcome, exit_code: int) -> None:
        number = self.numbers[name]
        assert number in self.state.tasks, f"{name} is over already: {self.status(name)}"
        self._tell(command.ReportEnded(number, self.state.tasks[number].attempts, outcome, exit_code))

    def _check_quotas(self) -> None:
        """Nobody is above a limit, except for a while after the limit was lowered under what ran."""
        try:
            invariants.check_quota_in_force(self.state)
            self._limits_lowered = False
        except AssertionError:
            if not self._limits_lowered:
                raise

    def _hear(self, at: float, facts: Sequence[fact.Event]) -> None:
        for event in facts:
            self.facts.append((at, event))
            apply(self._twin, event, at)

    def _check(self) -> None:
        invariants.check(self.state)
        invariants.check_nothing_stranded(self.state)
        invariants.check_no_wakeup_missed(self.state)
        self._check_quotas()
        self._twin.now = self.state.now
        told, folded = snapshot.dump(self.state), snapshot.dump(self._twin)
        for part, value in told.items():
            assert value == folded[part], f"{part}: the fold of the facts is not the engine's state"
