"""A world for the engine: a virtual clock, and nodes that start, suspend and end attempts on request.

It drives the engine exactly as a control plane does: commands in, events out, effects only from events, and one decision
for everything that happens at one instant. External inputs (how much work a task really is, its exit code, its speed on
each GPU model, how it saves its work, node failures) are supplied by the caller; nothing here is random. A listener
receives every batch of events with its instant, in order.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import TaskSpec
from gpuyard.core.domain.values import MILLI, NodeId, Outcome, TaskId
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.phases import ACTIVE, Running
from gpuyard.core.placement.speeds import Speeds, speed_of

REPORTS = (command.ReportStarted, command.ReportSuspended, command.ReportResumed, command.ReportEnded)
Listener = Callable[[float, Sequence[events.Event]], None]
TimedCommand = tuple[float, command.Command | Callable[[], command.Command]]
"""A command with its instant, or a function that creates it when the instant has come."""
GpuKey = tuple[NodeId, int]
"""A GPU: its node and its index there."""
INSTANTS_PER_CHECK, STUCK_CHECKS = 1_000, 10
"""After this many instants it is checked whether a task can still end; after this many checks without one, a simulation
ends."""


@dataclass(frozen=True, slots=True)
class SavingBehavior:
    """How a task saves its work, and what it loses when it is stopped. The engine does not know any of this."""

    save_every_seconds: float
    """Work between two saves that it makes by itself, counted from the start of an attempt."""
    save_seconds: float
    """Time to save when it is told to stop."""
    restart_seconds: float
    """Time until it continues its work after a stop, as seconds of work."""
    grace_seconds: float
    """Time from SIGTERM to SIGKILL."""
    ignores_sigterm: bool = False

    @property
    def saves_when_stopped(self) -> bool:
        """Whether a stop loses nothing: the task obeys the signal and saves within the grace period."""
        return not self.ignores_sigterm and self.save_seconds <= self.grace_seconds

    @property
    def stop_seconds(self) -> float:
        """Time from the signal to its end."""
        return self.save_seconds if self.saves_when_stopped else self.grace_seconds

    def kept(self, work: float) -> float:
        """Return how much of the work of an attempt is left after a stop."""
        if self.saves_when_stopped:
            return work
        return work // self.save_every_seconds * self.save_every_seconds if self.save_every_seconds < inf else 0.0


@dataclass(frozen=True, slots=True)
class TaskBehavior:
    """How a task really behaves once it runs."""

    seconds: float
    """Work, in seconds on the fastest GPU model without interruption; infinite means until it is told to end."""
    outcome: Outcome = Outcome.SUCCEEDED
    """Outcome when the work is done; `STOPPED` means that its user cancels it then."""
    exit_code: int | None = 0
    start_seconds: float | None = None
    """Time from placement to start; None means the default of the world."""
    speeds: Speeds | None = None
    """Relative speed on GPU models, where 1 is the fastest; None means as the task declares."""
    saving: SavingBehavior | None = None
    """How it saves its work; None means that a stop loses nothing and costs the restart of the world."""
    then: "TaskBehavior | None" = None
    """Behavior of the attempt after a failure; None means the same again."""


class WorldActor(Protocol):
    """An external actor that observes the cluster and acts at times of its own: an elastic pool, failing nodes."""

    def due(self) -> float | None:
        """Return when it acts next, given the current state; None means never."""
        ...

    def act(self, now: float) -> Iterable[command.Command]:
        """Return its commands for now; called after all other events of this instant were handled and decided."""
        ...


class _EndedByUser(command.ReportEnded, frozen=True):
    """The end of a task whose user cancels it at that point."""


class World:
    """An engine, a virtual clock and virtual nodes."""

    def __init__(
        self,
        engine: Engine | None = None,
        *,
        start_seconds: float = 0.0,
        stop_seconds: float = 0.0,
        restart_seconds: Callable[[TaskSpec], float] = lambda _: 0.0,
        slowed_by: Callable[[TaskSpec, TaskSpec], float] = lambda *_: 1.0,
    ) -> None:
        self.engine = engine or Engine()
        self.now = self.engine.state.now
        self.runs: dict[TaskId, TaskBehavior] = {}
        """Behavior of each task; a task without an entry runs until it is told to end."""
        self.start_seconds = start_seconds
        self.stop_seconds = stop_seconds
        self.restart_seconds = restart_seconds
        """Work a task repeats when it continues after a stop that kept its progress, in seconds."""
        self.slowed_by = slowed_by
        """Share of its speed that a task keeps next to another on the same GPU."""
        self.listeners: list[Listener] = []
        self.actors: list[WorldActor] = []
        self._agenda: list[tuple[float, int, command.Command]] = []
        self._source: Iterator[TimedCommand] = iter(())
        self._next: TimedCommand | None = None
        self._count = 0
        self._lost: set[NodeId] = set()
        self._unsaid: list[tuple[int, command.Command]] = []
        self._ends: dict[TaskId, int] = {}
        """Agenda entry that ends each task. A change of speed adds a new entry; older ones are then ignored."""
        self._left: dict[TaskId, float] = {}
        """Remaining work of tasks that have begun, as of the last start, stop or change of speed."""
        self._opened: dict[TaskId, tuple[float, float]] = {}
        """Remaining work and restart cost at the start of the current attempt, of tasks with a saving behavior."""
        self.preemption_loss_gpu_seconds = 0.0
        """GPU-seconds of preempted tasks that did not advance them: repeated work, stopping, restarting."""
        self._since: dict[TaskId, tuple[float, float]] = {}
        """Since when a task has run at its current speed, and that speed."""
        self._sharing: dict[GpuKey, dict[TaskId, tuple[TaskSpec, Placement]]] = {}
        """Running tasks on each GPU of which they hold only a share."""
        self._shared_gpus: dict[TaskId, GpuKey] = {}
        """The shared GPU of each of these tasks."""

    # --- time ----------------------------------------------------------------------------------------------------------

    def tell(self, asked: command.Command) -> Sequence[events.Event] | Refusal:
        """Handle a command now and let the engine decide."""
        answer = self.handle(asked)
        if isinstance(answer, Refusal):
            return answer
        return self._publish([*answer, *self.engine.decide(self.now)])

    def handle(self, asked: command.Command) -> Sequence[events.Event] | Refusal:
        """Handle a command now; the caller must publish the answer and let the engine decide."""
        return self.engine.handle(asked, self.now)

    def later(self, at: float, asked: command.Command) -> int:
        """Schedule a command for an instant to come; return the number of its agenda entry."""
        self._count += 1
        heappush(self._agenda, (at, self._count, asked))
        return self._count

    def feed(self, source: Iterator[TimedCommand]) -> None:
        """Handle these commands at their instants, which must not decrease; each is fetched after the previous one."""
        self._source = source
        self._next = next(source, None)

    @property
    def is_over(self) -> bool:
        """Whether no task is open and none will arrive."""
        return self._next is None and not self.engine.state.tasks and not self._agenda

    def next_event(self) -> float | None:
        """Return the next instant at which something happens without further input; None if nothing is due."""
        times = [due for actor in self.actors if (due := actor.due()) is not None]
        own = self._next_own()
        if own is not None:
            times.append(own)
        return max(self.now, min(times)) if times else None

    def _next_own(self) -> float | None:
        """Return the next instant of the agenda, the source or the engine, without the actors."""
        times = [self._agenda[0][0]] if self._agenda else []
        if self._next is not None:
            times.append(self._next[0])
        wakeup = self.engine.next_wakeup()
        if wakeup is not None:
            times.append(wakeup)
        return min(times) if times else None

    def advance(self, until: float) -> None:
        """Advance the clock; everything due happens at its own instant, with one engine decision per instant."""
        while (due := self.next_event()) is not None and due <= until:
            self._happen(due)
        self.now = max(self.now, until)

    def run_to_end(self) -> None:
        """Advance the clock until nothing is due any more, or only timers of tasks that never end are left.

        A task that runs until it is cancelled keeps others waiting for their budget: the engine then tries them again
        in every period, without end.
        """
        instants = stuck = 0
        while (due := self.next_event()) is not None and stuck < STUCK_CHECKS:
            self._happen(due)
            instants += 1
            if instants % INSTANTS_PER_CHECK == 0:
                stuck = stuck + 1 if self._next is None and not self._ends_by_itself() else 0

    def _ends_by_itself(self) -> bool:
        """Return whether a running task ends, by itself or by a limit of its time, or an actor may change its nodes."""
        return (
            any(actor.due() is not None for actor in self.actors)
            or any(self._left[number] < inf for number in self._since)
            or any(
                isinstance(task.phase, ACTIVE)
                and (task.spec.timeout_seconds is not None or task.spec.deadline is not None)
                for task in self.engine.state.tasks.values()
            )
        )

    def _happen(self, due: float) -> None:
        """Process everything that is due at an instant."""
        self.now = due
        new_events: list[events.Event] = []
        # Actors wait until everything else of this instant was decided; they are then due at the same instant again.
        if self.actors and ((own := self._next_own()) is None or own > due):
            for actor in self.actors:
                if (at := actor.due()) is not None and at <= due:
                    for asked in actor.act(due):
                        new_events += self._handled(asked)
        agenda = self._agenda
        while agenda and agenda[0][0] <= due:
            _, entry, asked = heappop(agenda)
            if self._is_said(asked, entry):
                new_events += self._handled(asked)
        while self._next is not None and self._next[0] <= due:
            order = self._next[1]
            new_events += self._handled(order if isinstance(order, command.Command) else order())
            self._next = next(self._source, None)
        self._publish([*new_events, *self.engine.decide(due)])

    def _handled(self, asked: command.Command) -> Sequence[events.Event]:
        answer = self.handle(command.CancelTask(asked.task) if isinstance(asked, _EndedByUser) else asked)
        return () if isinstance(answer, Refusal) else answer

    def _is_said(self, asked: command.Command, entry: int) -> bool:
        """Return whether a report still applies. Reports of a lost node are held back until the node returns."""
        if not isinstance(asked, REPORTS):
            return True
        task = self.engine.state.tasks.get(asked.task)
        if task is None or not isinstance(task.phase, ACTIVE) or task.phase.attempt != asked.attempt:
            return False
        by_itself = isinstance(asked, _EndedByUser) or (
            isinstance(asked, command.ReportEnded) and asked.outcome is not Outcome.STOPPED
        )
        if by_itself and (self._ends.get(asked.task) != entry or not isinstance(task.phase, Running)):
            return False
        if self._lost:
            part = asked.node if isinstance(asked, command.ReportEnded) else None
            if self._lost & ({part} if part else set(task.phase.placement.nodes)):
                self._unsaid.append((entry, asked))
                return False
        return True

    # --- what nodes do ---------------------------------------------------------------------------------------------------

    def _publish(self, new_events: list[events.Event]) -> Sequence[events.Event]:
        if new_events:
            for listener in self.listeners:
                listener(self.now, new_events)
            for event in new_events:
                self._effect(event)
        return new_events

    def _effect(self, event: events.Event) -> None:
        """Do what the nodes do in response to an event."""
        match event:
            case events.TaskPlaced(task, attempt):
                run = self.runs.get(task)
                seconds = run.start_seconds if run is not None else None
                seconds = self.start_seconds if seconds is None else seconds
                self.later(self.now + seconds, command.ReportStarted(task, attempt, origin=self.engine.state.origin))
            case (
                events.AttemptStarted()
                | events.AttemptResumed()
                | events.SuspensionFailed()
                | events.AttemptRecovered()
            ):
                self._begin(event)
            case events.AttemptEnded(task, _, outcome):
                self._pause(task)
                self._ends.pop(task, None)
                run = self.runs.get(task)
                if run is not None and run.then is not None and outcome is run.outcome:
                    self.runs[task] = run.then
            case events.TaskEnded(task):
                self._forget(task)
            case events.AttemptResuming(task, attempt):
                runs = command.ReportResumed(task, attempt, event.round, origin=self._origin(task))
                self.later(self.now + self.start_seconds, runs)
            case events.AttemptSuspending(task, attempt):
                self._pause(task)
                held = command.ReportSuspended(task, attempt, event.round, origin=self._origin(task))
                self.later(self.now + self.stop_seconds, held)
            case events.AttemptStopping():
                self._stop(event)
            case events.NodeLost(node):
                self._lost.add(node)
            case events.NodeReturned(node) | events.NodeRemoved(node):
                self._lost.discard(node)
                unsaid, self._unsaid = self._unsaid, []
                for entry, report in unsaid:
                    heappush(self._agenda, (self.now, entry, report))

    def _origin(self, number: TaskId) -> int:
        task = self.engine.state.tasks.get(number)
        return task.origin if task is not None else 0

    def _begin(
        self, event: events.AttemptStarted | events.AttemptResumed | events.SuspensionFailed | events.AttemptRecovered
    ) -> None:
        """Start the task's work and schedule its end if its amount of work is known."""
        run = self.runs.get(event.task)
        task = self.engine.state.tasks.get(event.task)
        if run is None or task is None or not isinstance(task.phase, Running):
            return
        left, restart = self._left.get(event.task, run.seconds), 0.0
        if isinstance(event, events.AttemptStarted) and not task.served_seconds:
            left = run.seconds  # the progress of earlier attempts is lost
        elif event.task in self._left and not isinstance(event, events.SuspensionFailed | events.AttemptRecovered):
            restart = self.restart_seconds(task.spec) if run.saving is None else run.saving.restart_seconds
        if run.saving is not None:
            self._opened[event.task] = left, restart
        self._left[event.task] = left + restart
        placement = task.phase.placement
        if gpu := _shared_gpu(placement):
            self._shared_gpus[event.task] = gpu
            self._sharing.setdefault(gpu, {})[event.task] = (task.spec, placement)
            for each in self._sharing[gpu]:
                self._work_on(each, gpu)
        else:
            self._set_speed(event.task, self._alone(event.task, task.spec, placement))
        self._count_loss(placement, restart / self._since[event.task][1])

    def _count_loss(self, placement: Placement, seconds: float) -> None:
        self.preemption_loss_gpu_seconds += seconds * placement.charge_milli / MILLI

    def _alone(self, number: TaskId, spec: TaskSpec, placement: Placement) -> float:
        """Return the speed of a task without neighbors on its GPUs."""
        speeds = self.runs[number].speeds
        return speed_of(spec.resources.speeds if speeds is None else speeds, placement, self.engine.state.index)

    def _set_speed(self, number: TaskId, speed: float) -> None:
        """Set the speed of a task from now on and schedule its end accordingly."""
        self._settle(number)
        self._since[number] = (self.now, speed)
        task, run, left = self.engine.state.tasks.get(number), self.runs.get(number), self._left[number]
        if run is not None and task is not None and isinstance(task.phase, Running) and left < inf:
            end = _EndedByUser if run.outcome is Outcome.STOPPED else command.ReportEnded
            report = end(number, task.phase.attempt, run.outcome, run.exit_code, origin=task.origin)
            self._ends[number] = self.later(self.now + left / speed, report)

    def _work_on(self, number: TaskId, gpu: GpuKey) -> None:
        """Set the speed of a task from the tasks that share its GPU."""
        sharing = self._sharing[gpu]
        spec, placement = sharing[number]
        speed = self._alone(number, spec, placement)
        for other, (theirs, _) in sharing.items():
            if other != number:
                speed *= self.slowed_by(spec, theirs)
        self._set_speed(number, speed)

    def _settle(self, task: TaskId) -> None:
        """Subtract the work done at the current speed from the remaining work."""
        worked = self._since.pop(task, None)
        if worked is not None:
            since, speed = worked
            self._left[task] = max(0.0, self._left[task] - (self.now - since) * speed)

    def _pause(self, task: TaskId) -> None:
        """Stop the task's work and speed up the tasks that shared its GPU."""
        self._settle(task)
        gpu = self._shared_gpus.pop(task, None)
        if gpu is not None:
            sharing = self._sharing[gpu]
            del sharing[task]
            for each in sharing:
                self._work_on(each, gpu)
            if not sharing:
                del self._sharing[gpu]

    def _stop(self, event: events.AttemptStopping) -> None:
        """Stop the task's work and schedule the reports of its nodes that it has ended."""
        speed = self._since[event.task][1] if event.task in self._since else 1.0
        self._pause(event.task)
        task = self.engine.state.tasks.get(event.task)
        if task is not None and isinstance(task.phase, ACTIVE):  # it may have ended at the same instant
            placement, seconds = task.phase.placement, self.stop_seconds
            opened, run = self._opened.pop(event.task, None), self.runs.get(event.task)
            if opened is not None and run is not None and run.saving is not None:
                seconds = run.saving.stop_seconds
                self._count_loss(placement, seconds + self._lose(event.task, run.saving, *opened) / speed)
            for node in placement.nodes:
                report = command.ReportEnded(event.task, event.attempt, Outcome.STOPPED, node=node, origin=task.origin)
                self.later(self.now + seconds, report)

    def _lose(self, task: TaskId, saving: SavingBehavior, before: float, restart: float) -> float:
        """Set the remaining work of a stopped task back to what it had saved; return the work that is lost.

        `before` and `restart` are the remaining work and the restart cost at the start of the attempt. A restart that
        was interrupted was counted as a loss in full, so its unused part is returned as negative.
        """
        done = before + restart - self._left[task]
        work = max(0.0, done - restart)
        kept = saving.kept(work)
        self._left[task] = before - kept
        return work - kept - max(0.0, restart - done)

    def _forget(self, task: TaskId) -> None:
        """Drop the state of a task that has ended."""
        self._left.pop(task, None)
        self._opened.pop(task, None)
        self._since.pop(task, None)
        self._ends.pop(task, None)
        self.runs.pop(task, None)


def _shared_gpu(placement: Placement) -> GpuKey | None:
    """Return the GPU of which a placement holds only a share; None if it holds whole GPUs."""
    first = placement.slices[0]
    return (first.node, first.gpus[0]) if first.milli < MILLI and first.gpus else None
