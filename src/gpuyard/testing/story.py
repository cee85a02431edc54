"""A story of a cluster: methods for what happens and for what is true then. Every invariant is checked after every
step.

At each step the events are also applied a second time to a fresh state, and that state must equal the engine's, byte
for byte: the engine may not know anything that is not in its events.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.settings import Backfill, Moves, Settings
from gpuyard.core.domain.task import NewTask, RunLimit, ranges_in
from gpuyard.core.domain.tenant import QuotaMode, Split, Tenant
from gpuyard.core.domain.values import MILLI, AttemptRef, GpuHealth, NodeId, Outcome, TaskId, TaskStatus, TenantId
from gpuyard.core.engine import invariants, snapshot
from gpuyard.core.engine.apply import apply_recorded
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.explain import Explanation, explain
from gpuyard.core.engine.phases import HOLDING, Running, Suspended
from gpuyard.core.engine.scheduling.advice import Advisor
from gpuyard.core.engine.state import State
from gpuyard.simulator.world import TaskBehavior, World
from gpuyard.testing.builders import TaskBuilder, node


class ClusterStory:
    """A virtual cluster that a test controls by the names of its tasks and nodes."""

    def __init__(self, *, advisor: Advisor | None = None, **settings: Any) -> None:
        self.world = World(Engine(advisor=advisor))
        self.events: list[tuple[float, events.Event]] = []
        self.names: dict[TaskId, str] = {}
        self.numbers: dict[str, TaskId] = {}
        self._twin = State()
        self._nodes = 0
        self._limits_lowered = False
        self.world.listeners.append(self._hear)
        self._tell(command.CreateCluster("story"))
        self.is_split(online=0.5, mode=QuotaMode.BORROW)
        # nodes are reserved at once unless a story is about the wait before it, so that stories stay short
        self.decides_by(**{"reserve_after_seconds": 0.0, **settings})

    # --- setup --------------------------------------------------------------------------------------------------------

    def has_nodes(self, count: int, *, gpus_each: int = 8, **more: Any) -> list[str]:
        """Join identical nodes: node-1, node-2, …"""
        names = [f"node-{self._nodes + place + 1}" for place in range(count)]
        self._nodes += count
        for name in names:
            self.has_node(node(name, gpus=gpus_each, **more))
        return names

    def has_node(self, spec: NodeSpec) -> None:
        """Join a node."""
        self._tell(command.JoinNode(spec))

    def has_tenant(self, name: str, **limits: Any) -> None:
        """Set the limits of a tenant."""
        self._limits_lowered = True
        self._tell(command.SetTenant(Tenant(TenantId(name), **limits)))

    def is_split(self, *, online: float, mode: QuotaMode = QuotaMode.STRICT) -> None:
        """Split the cluster between online and batch work."""
        self._limits_lowered = True
        self._tell(command.SetSplit(Split(online, 1 - online, mode)))

    def decides_by(self, **settings: Any) -> None:
        """Change settings of the engine."""
        known = {field: getattr(self.state.settings, field) for field in Settings.__struct_fields__}
        for field, words in (("backfill", Backfill), ("moves", Moves)):
            if field in settings:
                settings[field] = words(settings[field])
        self._tell(command.ChangeSettings(Settings(**{**known, **settings})))

    # --- actions ------------------------------------------------------------------------------------------------------

    def submits(self, *tasks: TaskBuilder, max_running: int = 0) -> list[TaskId] | Refusal:
        """Submit tasks together; they may refer to each other with `after`. Above 0, at most `max_running` run at a time."""
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
        limits = (RunLimit(batch[0].id, batch[-1].id, max_running),) if max_running else ()
        answer = self.tells(command.SubmitTasks(tuple(batch), limits=limits))
        if isinstance(answer, Refusal):
            return answer
        self.numbers.update(numbers)
        self.names.update({number: name for name, number in numbers.items()})
        self.passes(0)
        return list(numbers.values())

    def submits_many(self, count: int, builder: TaskBuilder, max_running: int = 0) -> list[TaskId] | Refusal:
        """Submit this number of copies of a task: name-1, name-2, …; above 0, at most `max_running` run at a time."""
        copies = (replace(builder, name=f"{builder.name}-{place + 1}") for place in range(count))
        return self.submits(*copies, max_running=max_running)

    def passes(self, seconds: float) -> None:
        """Let time pass."""
        self.world.advance(self.world.now + seconds)
        self._check()

    def runs_out(self) -> None:
        """Let time pass until nothing more is due."""
        self.world.run_to_end()
        self._check()

    def finishes(self, *names: str) -> None:
        """End tasks with success, now."""
        for name in names:
            self._ends(name, Outcome.SUCCEEDED, 0)

    def fails(self, name: str, exit_code: int = 1) -> None:
        """End a task with an error, now."""
        self._ends(name, Outcome.FAILED, exit_code)

    def fails_on(self, name: str, node_name: str, exit_code: int = 1) -> None:
        """End one part of a gang with an error, now."""
        number = self.numbers[name]
        attempt = self.state.tasks[number].attempts
        self._tell(command.ReportEnded(number, attempt, Outcome.FAILED, exit_code, NodeId(node_name)))

    def cancels(self, name: str) -> None:
        """Cancel a task."""
        self._tell(command.CancelTask(self.numbers[name]))

    def holds(self, name: str) -> None:
        """Put a task on hold."""
        self._tell(command.HoldTask(self.numbers[name]))

    def releases(self, name: str) -> None:
        """Release a held task."""
        self._tell(command.ReleaseTask(self.numbers[name]))

    def books(self, gpus: int, *, begins: float, ends: float, tenant: str = "team", **more: Any) -> int:
        """Book GPUs from one instant of the story to another; return the number of the booking."""
        answer = self.tells(command.MakeBooking(TenantId(tenant), begins, ends, gpus, **more))
        assert not isinstance(answer, Refusal), answer.sentence()
        return next(event.booking.id for event in answer if isinstance(event, events.BookingMade))

    def maintains(self, *node_names: str, begins: float, ends: float) -> int:
        """Make a maintenance window; return the number of the booking."""
        nodes = tuple(NodeId(name) for name in node_names)
        return self.books(0, begins=begins, ends=ends, nodes=nodes, maintenance=True)

    def cancels_booking(self, booking: int) -> None:
        """Cancel a booking."""
        self._tell(command.CancelBooking(booking))

    def loses(self, node_name: str) -> None:
        """Lose a node."""
        self._limits_lowered = True
        self._tell(command.LoseNode(NodeId(node_name)))

    def gets_back(self, node_name: str, *still_has: str) -> None:
        """Return a lost node that still runs the first attempts of these tasks."""
        attempts = tuple(AttemptRef(self.numbers[name], 1) for name in still_has)
        self._tell(command.ReturnNode(NodeId(node_name), attempts))

    def cordons(self, node_name: str, *, drain: bool = False, force: bool = False) -> None:
        """Cordon a node; with `drain`, empty it, too."""
        self._tell(command.CordonNode(NodeId(node_name), drain, force))

    def uncordons(self, node_name: str) -> None:
        """Uncordon a node."""
        self._tell(command.UncordonNode(NodeId(node_name)))

    def gpu_becomes(self, node_name: str, gpu: int, health: GpuHealth) -> None:
        """Change the health of a GPU."""
        self._limits_lowered = True
        self._tell(command.SetGpuHealth(NodeId(node_name), gpu, health))

    def tells(self, asked: command.Command) -> Sequence[events.Event] | Refusal:
        """Give the engine any command; return its events or its refusal."""
        answer = self.world.tell(asked)
        self.passes(0)
        return answer

    # --- queries ------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The engine's state."""
        return self.world.engine.state

    @property
    def now(self) -> float:
        """The current instant of the story."""
        return self.world.now

    def status(self, name: str) -> TaskStatus:
        """Return the status of a task, as a user sees it."""
        number = self.numbers[name]
        return self.state.tasks[number].status if number in self.state.tasks else self.state.ended[number]

    def is_running(self, name: str) -> bool:
        """Whether a task runs now."""
        number = self.numbers[name]
        return number in self.state.tasks and isinstance(self.state.tasks[number].phase, Running)

    def is_suspended(self, name: str) -> bool:
        """Whether a task is suspended to host memory now."""
        number = self.numbers[name]
        return number in self.state.tasks and isinstance(self.state.tasks[number].phase, Suspended)

    def running(self) -> list[str]:
        """Return the running tasks, in order of submission."""
        return [name for name in self.numbers if self.is_running(name)]

    def nodes_of(self, name: str) -> tuple[str, ...]:
        """Return the nodes that a task holds."""
        phase = self.state.tasks[self.numbers[name]].phase
        assert isinstance(phase, HOLDING), f"{name} holds no node"
        return phase.placement.nodes

    def gpus_of(self, name: str) -> list[tuple[str, tuple[int, ...]]]:
        """Return the GPUs that a task holds, by node."""
        phase = self.state.tasks[self.numbers[name]].phase
        assert isinstance(phase, HOLDING), f"{name} holds no GPU"
        return [(part.node, part.gpus) for part in phase.placement.slices]

    def placements(self) -> list[str]:
        """Return the tasks in the order in which they were placed, repeats included."""
        return [
            self.names.get(event.task, str(event.task))
            for _, event in self.events
            if isinstance(event, events.TaskPlaced)
        ]

    def started_at(self, name: str) -> float:
        """Return when a task was first placed."""
        number = self.numbers[name]
        return next(at for at, event in self.events if isinstance(event, events.TaskPlaced) and event.task == number)

    def reserved_for(self, name: str) -> tuple[tuple[str, ...], float | None] | None:
        """Return the nodes reserved for a waiting task and the start of the reservation; None: there is none."""
        hold = self.state.reservations.get(self.numbers[name])
        return None if hold is None else (hold.nodes, hold.starts_at)

    def explains(self, name: str) -> Explanation:
        """Return the explanation that a user gets for a waiting task."""
        return explain(self.state, self.numbers[name], self.now)

    def why(self, name: str) -> Refusal | None:
        """Return why a task waits; None: it does not."""
        return self.explains(name).reason

    def gpus_in_use(self) -> float:
        """Return the number of GPUs in use now."""
        return sum(usage.used for usage in self.state.classes) / MILLI

    def events_of(self, name: str) -> list[events.Event]:
        """Return all events about a task."""
        number = self.numbers[name]
        return [event for _, event in self.events if getattr(event, "task", None) == number]

    # --- internals ----------------------------------------------------------------------------------------------------

    def _tell(self, asked: command.Command) -> None:
        answer = self.tells(asked)
        assert not isinstance(answer, Refusal), f"{asked} was refused: {answer.sentence()}"

    def _ends(self, name: str, outcome: Outcome, exit_code: int) -> None:
        number = self.numbers[name]
        assert number in self.state.tasks, f"{name} is over already: {self.status(name)}"
        self._tell(command.ReportEnded(number, self.state.tasks[number].attempts, outcome, exit_code))

    def _check_quotas(self) -> None:
        """Check that no quota is exceeded, except for a while after a limit was lowered below the current usage."""
        try:
            invariants.check_quota_in_force(self.state)
            self._limits_lowered = False
        except AssertionError:
            if not self._limits_lowered:
                raise

    def _hear(self, at: float, new_events: Sequence[events.Event]) -> None:
        for event in new_events:
            self.events.append((at, event))
            invariants.check_before(self._twin, event)
            apply_recorded(self._twin, event, at)

    def _check(self) -> None:
        invariants.check(self.state)
        invariants.check_nothing_stranded(self.state)
        invariants.check_no_wakeup_missed(self.state)
        self._check_quotas()
        self._twin.now = self.state.now
        told, applied = snapshot.dump(self.state), snapshot.dump(self._twin)
        for part, value in told.items():
            assert value == applied[part], f"{part}: the state after applying the events is not the engine's state"
