"""The external input of a live cluster, read from its journal, as the workload of a what-if simulation.

A journal holds events of two kinds. Some were decided by the engine: placements and preemptions. Those are left out,
because the engine decides them again. The others came from outside and are repeated:

    nodes, tenants, split, operator commands       as a command, at their instant
    a task that was submitted                      at its instant, with its own spec
    an attempt that ended by itself                after the same work, in the same way; a retry does what the retry did
    a task that was cancelled while it waited      at its instant
    one that was cancelled while it had GPUs       when it has run as long (leases are given back this way)
    a task that ran into its timeout or deadline   runs until it is told to end
    a launch                                       takes as long as it took

Work is the time that brought a task forward: not the time it was suspended, nor time lost with a node. The run time of
tasks that had not ended when the journal did is unknown; they are left out and counted.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain.causes import CauseKind
from gpuyard.core.domain.errors import NoJournal, WrongInput
from gpuyard.core.domain.task import NewTask, Prerequisite, TaskSpec
from gpuyard.core.domain.values import NodeId, Outcome, TaskId
from gpuyard.core.engine.apply import apply_recorded
from gpuyard.core.engine.phases import ACTIVE, Placed, Settling, Suspended
from gpuyard.core.engine.state import State
from gpuyard.core.journal.records import Record
from gpuyard.core.journal.stores.sqlite import read_folder
from gpuyard.input.files import shown_path
from gpuyard.learn.estimates.history import features_of
from gpuyard.simulator.policy_variants import POLICY_VARIANTS, PolicyVariant, base_name
from gpuyard.simulator.recorder import Recorder
from gpuyard.simulator.workloads.arrival import Arrival, TimedInput
from gpuyard.simulator.world import TaskBehavior

SAME = "same"
"""The variant that decides under the settings of the journal."""
BY_ITSELF = (CauseKind.SUCCEEDED, CauseKind.EXIT_CODE, CauseKind.NOT_LAUNCHED, CauseKind.MEMBER_FAILED)
"""Reasons for the end of an attempt that was not stopped."""


class NothingToReplay(WrongInput):
    """There is nothing in this journal that could be played again."""


@dataclass(frozen=True, slots=True)
class JournalWorkload:
    """The workload of a journal; implements `gpuyard.simulator.workloads.arrival.Workload`."""

    came: Sequence[TimedInput]
    same: PolicyVariant
    """The settings of the journal with their changes over time; all other variants use its final settings."""
    gpus: int
    stop_seconds: float
    """Median time to stop a task in the journal; 0 if none was stopped."""
    happened: Recorder
    """What really happened to the tasks of this workload."""
    still_running: int
    still_waiting: int
    """Number of tasks left out because they, or a task they depend on, had not ended."""

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return sum(len(coming) for _, coming in self.came if isinstance(coming, tuple))

    def restart_seconds(self, spec: TaskSpec) -> float:  # noqa: ARG002
        """Return zero: the cost of a restart is part of the recorded run times."""
        return 0.0

    def slowed_by(self, spec: TaskSpec, other: TaskSpec) -> float:  # noqa: ARG002
        """Return one: the slowdown from sharing is part of the recorded run times."""
        return 1.0

    def opening(self) -> tuple[command.Command, ...]:
        """Return no commands: a journal contains the setup of its cluster."""
        return ()

    @property
    def variants(self) -> dict[str, PolicyVariant]:
        """The policy variants that can be compared on this cluster."""
        return {SAME: self.same} | {name: self.here(each) for name, each in POLICY_VARIANTS.items()}

    def here(self, policy_variant: PolicyVariant) -> PolicyVariant:
        """Return the variant with its own policy settings and all other settings as at the end of the journal."""
        theirs = policy_variant.settings
        settings = msgspec.structs.replace(
            self.same.settings,
            policy=theirs.policy,
            backfill=theirs.backfill,
            preemption=theirs.preemption,
            tiresias_threshold_gpu_seconds=theirs.tiresias_threshold_gpu_seconds,
        )
        return replace(policy_variant, settings=settings)

    def arrivals(self, policy_variant: PolicyVariant) -> Iterator[TimedInput]:
        """Return all external input; changes of settings are included only for the variant `same`."""
        as_recorded = policy_variant.settings == self.same.settings and base_name(policy_variant.name) == SAME
        for at, coming in self.came:
            if as_recorded or not isinstance(coming, command.ChangeSettings):
                yield at, coming


def read_journal(source: Path | str) -> JournalWorkload:
    """Read a journal: of a data folder, in a folder, or in a database by its URL. It is only read, and may be in use."""
    place = Path(source) / "journal" if not is_database(source) and (Path(source) / "journal").is_dir() else source
    shown = _shown(place)
    reader = _Reader()
    for record in _records(place, shown):
        if not reader.read and record.seq > 1:
            raise NothingToReplay(
                f"The journal in {shown} begins with event {record.seq}, and earlier events are "
                "needed: copy it to a folder together with the retired events (storage.retired_dir)."
            )
        reader.hear(record.at, record.event)
    found = reader.found()
    if not found.tasks:
        raise NothingToReplay(f"No task has ended in the journal in {shown}, so there is nothing to simulate.")
    return found


def is_database(source: Path | str) -> bool:
    """Whether this is the URL of a database, and not a folder."""
    return str(source).startswith(("postgresql://", "postgres://"))


def _shown(place: Path | str) -> str:
    return "the database" if is_database(place) else shown_path(Path(place))


def _records(place: Path | str, shown: str) -> Iterator[Record]:
    try:
        if is_database(place):
            from gpuyard.core.journal.stores.postgres_follower import PostgresFollower  # needs psycopg

            with closing(PostgresFollower.open(str(place))) as follower:
                yield from follower.read()
        else:
            yield from read_folder(Path(place))
    except NoJournal:
        raise NothingToReplay(f"There is no journal in {shown}.") from None


class _Reader:
    """Reads the events in order and collects the external input."""

    def __init__(self) -> None:
        self.read = 0
        self._state = State()
        self._came: list[tuple[float, command.Command | list[NewTask]]] = []
        self._events: list[tuple[float, events.Event]] = []
        """Events about tasks."""
        self._runs: dict[TaskId, list[TaskBehavior]] = {}
        """Behavior of each task's attempts that ended by themselves."""
        self._work: dict[TaskId, float] = {}
        """Work done by the current attempt, or by the last one when it ended."""
        self._launch: dict[TaskId, float] = {}
        """Launch time of each task."""
        self._stopping: dict[TaskId, float] = {}
        """Since when each task is being stopped."""
        self._stops: list[float] = []
        self._gpus: dict[NodeId, int] = {}
        self._most_gpus = 0

    def hear(self, at: float, event: events.Event) -> None:
        """Process one event."""
        self.read += 1
        if isinstance(event, events.TaskSubmitted):
            self._submit(at, event)
        elif isinstance(event, events.TaskEnded | events.TaskRequeued):
            self._settle(at, event)
        elif isinstance(event, events.AttemptStarted | events.AttemptStopping | events.AttemptEnded):
            self._note_attempt(at, event)
        self._came += [(at, order) for order in _orders(event, self._state)]
        if isinstance(event, events.NodeJoined):
            self._gpus[event.node.id] = len(event.node.gpus)
            self._most_gpus = max(self._most_gpus, sum(self._gpus.values()))
        elif isinstance(event, events.NodeRemoved):
            del self._gpus[event.node]
        if hasattr(event, "task"):
            self._events.append((at, event))
        apply_recorded(self._state, event, at)

    def _submit(self, at: float, event: events.TaskSubmitted) -> None:
        """Add a task to those of the same instant: they may be from one request and depend on each other."""
        last_at, last = self._came[-1] if self._came else (None, None)
        if last_at != at or not isinstance(last, list):
            self._came.append((at, last := []))
        last.append(NewTask(event.task, event.spec))

    def _note_attempt(
        self, at: float, event: events.AttemptStarted | events.AttemptStopping | events.AttemptEnded
    ) -> None:
        task = self._state.tasks[event.task]
        if isinstance(task.phase, Placed):
            self._launch[task.id] = at - task.placed_at
        self._work[task.id] = task.served_at(at)
        if isinstance(event, events.AttemptStopping):
            self._stopping.setdefault(task.id, at)
        elif isinstance(event, events.AttemptEnded):
            since = self._stopping.pop(task.id, None)
            if since is not None and event.outcome is Outcome.STOPPED:
                self._stops.append(at - since)

    def _settle(self, at: float, event: events.TaskEnded | events.TaskRequeued) -> None:
        """Record how an attempt ended, and the task with it if the attempt was its last."""
        task, why = self._state.tasks[event.task], event.cause.why
        runs = self._runs.setdefault(task.id, [])
        if isinstance(task.phase, Settling) and why in BY_ITSELF:
            runs.append(self._run(task.id, task.phase.outcome, task.phase.exit_code))
        elif isinstance(task.phase, Settling) and why is CauseKind.CANCELLED:
            runs.append(self._run(task.id, Outcome.STOPPED, None))
        elif isinstance(event, events.TaskEnded):
            runs.append(TaskBehavior(inf))
            if why is CauseKind.CANCELLED:
                self._came.append((at, command.CancelTask(task.id)))

    def _run(self, task: TaskId, outcome: Outcome, exit_code: int | None) -> TaskBehavior:
        return TaskBehavior(self._work[task], outcome, exit_code, start_seconds=self._launch[task])

    # --- at the end ------------------------------------------------------------------------------------------------------

    def found(self) -> JournalWorkload:
        """Return the workload collected from all events."""
        left_out = self._left_out()
        came: list[TimedInput] = []
        for at, order in self._came:
            if isinstance(order, command.Command):
                came.append((at, order))
            elif arrivals := tuple(self._arrival(new) for new in order if new.id not in left_out):
                came.append((at, arrivals))
        happened = Recorder()
        kept = ((at, event) for at, event in self._events if event.task not in left_out)  # type: ignore[attr-defined]
        for at, group in groupby(kept, key=lambda each: each[0]):
            happened.hear(at, [event for _, event in group])
        running = sum(isinstance(task.phase, ACTIVE) for task in self._state.tasks.values())
        return JournalWorkload(
            came,
            PolicyVariant(SAME, self._state.settings),
            self._most_gpus,
            median(self._stops) if self._stops else 0.0,
            happened,
            running,
            len(left_out) - running,
        )

    def _left_out(self) -> set[TaskId]:
        """Return the tasks that had not ended, and their dependents, which never ran."""
        left_out = set(self._state.tasks)
        specs = {event.task: event.spec for _, event in self._events if isinstance(event, events.TaskSubmitted)}
        waiting: dict[Prerequisite, list[TaskId]] = {}
        for task, spec in specs.items():
            for key in spec.prerequisites():
                waiting.setdefault(key, []).append(task)
        # Dependents of dependents never ran either: repeat until nothing new is reached.
        while reached := [key for key in waiting if not left_out.isdisjoint(range(key[0], key[1] + 1))]:
            for key in reached:
                left_out.update(waiting.pop(key))
        return left_out

    def _arrival(self, new: NewTask) -> Arrival:
        spec = new.spec
        *earlier, run = self._runs[new.id]
        for before in reversed(earlier):
            run = replace(before, then=run)
        return Arrival(new.id, spec, features_of(spec), run)


# --- outside events as commands ---------------------------------------------------------------------------------------


def _orders(event: events.Event, state: State) -> tuple[command.Command, ...]:
    """Return the commands that reproduce an external event; none for an event that the engine decides."""
    match event:
        case events.TaskReleased(task):
            suspended = isinstance(state.tasks[task].phase, Suspended)
            return (command.ResumeTask(task) if suspended else command.ReleaseTask(task),)
        case events.AttemptSuspending(task, _, cause) if cause.why is CauseKind.SUSPENDED_BY_USER:
            return (command.SuspendTask(task),)
    say = _SAID.get(type(event))
    return () if say is None else say(event)


_SAID: dict[type[events.Event], Callable[[Any], tuple[command.Command, ...]]] = {
    events.TaskHeld: lambda it: (command.HoldTask(it.task),),
    events.PriorityChanged: lambda it: (command.ChangePriority(it.task, it.priority),),
    events.EstimateRevised: lambda it: (command.ReviseEstimate(it.task, it.estimate),),
    events.TaskExtended: lambda it: (command.ExtendTask(it.task, it.timeout_seconds, it.deadline),),
    events.NodeJoined: lambda it: (command.JoinNode(it.node),),
    events.NodeChanged: lambda it: (command.JoinNode(it.node),),
    events.NodeLost: lambda it: (command.LoseNode(it.node),),
    events.NodeReturned: lambda it: (command.ReturnNode(it.node),),
    # The node was idle when it was removed but may not be in the simulation: its tasks are lost with it.
    events.NodeRemoved: lambda it: (command.LoseNode(it.node), command.RemoveNode(it.node)),
    events.NodeCordoned: lambda it: (command.CordonNode(it.node, it.draining),),
    events.NodeUncordoned: lambda it: (command.UncordonNode(it.node),),
    events.GpuHealthChanged: lambda it: (command.SetGpuHealth(it.node, it.gpu, it.health),),
    events.TenantSet: lambda it: (command.SetTenant(it.tenant),),
    events.SplitSet: lambda it: (command.SetSplit(it.split),),
    events.SettingsChanged: lambda it: (command.ChangeSettings(it.settings),),
}
