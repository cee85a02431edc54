"""A world for the engine: a virtual clock, and nodes that start, suspend and end attempts when they are told to.

It drives the engine exactly as a control plane does: commands in, facts out, effects only from facts, and one decision
for everything that happens at one instant. What the outside would decide (how much work a task really is, with which
exit code it ends, how fast it is where, that a node dies) is said by whoever builds the world; nothing here draws lots. A
listener sees every batch of facts with its instant, in order.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Protocol

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events as fact
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import TaskSpec
from gpuyard.core.domain.values import MILLI, NodeId, Outcome, TaskId
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.phases import ACTIVE, Running
from gpuyard.core.placement.speeds import Speeds, speed_of

REPORTS = (command.ReportStarted, command.ReportSuspended, command.ReportResumed, command.ReportEnded)
Listener = Callable[[float, Sequence[fact.Event]], None]
TimedCommand = tuple[float, command.Command | Callable[[], command.Command]]
"""A command, or how to make it when its instant has come."""
GpuKey = tuple[NodeId, int]
"""A GPU: its node, and which one."""


@dataclass(frozen=True, slots=True)
class TaskBehavior:
    """How a task really behaves, once it runs."""

    seconds: float
    """On the fastest GPU model, without a stop; infinite: until it is told to end."""
    outcome: Outcome = Outcome.SUCCEEDED
    """`STOPPED`: its user cancels it then."""
    exit_code: int | None = 0
    start_seconds: float | None = None
    """From the placement to the start; none: what is usual in its world."""
    speeds: Speeds | None = None
    """On GPU models, where 1 is the fastest; none: as the task says."""
    then: "TaskBehavior | None" = None
    """What the attempt after a failure does; none: the same."""


class WorldActor(Protocol):
    """Somebody outside who watches the yard and acts at instants of its own: a pool that grows, nodes that fail."""

    def due(self) -> float | None:
        """When it wants to act next, as things are."""
        ...

    def act(self, now: float) -> Iterable[command.Command]:
        """What it does now; it is asked when everything else of this instant has happened and was decided."""
        ...


class _EndedByUser(command.ReportEnded, frozen=True):
    """Its user has had enough of it."""


class World:
    """An engine, a clock and virtual nodes."""

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
        """What tasks do; one not named runs until it is told to end."""
        self.start_seconds = start_seconds
        self.stop_seconds = stop_seconds
        self.restart_seconds = restart_seconds
        """Work that a task has to do once more when it goes on after a stop that kept what it had done."""
        self.slowed_by = slowed_by
        """What a task keeps of its speed beside another on the same card."""
        self.listeners: list[Listener] = []
        self.actors: list[WorldActor] = []
        self._agenda: list[tuple[float, int, command.Command]] = []
        self._source: Iterator[TimedCommand] = iter(())
        self._next: TimedCommand | None = None
        self._count = 0
        self._lost: set[NodeId] = set()
        self._unsaid: list[tuple[int, command.Command]] = []
        self._ends: dict[TaskId, int] = {}
        """Which entry of the agenda ends a task by itself; a task that was stopped meanwhile has a later one."""
        self._left: dict[TaskId, float] = {}
        """Work that is left of tasks that have begun, as of the last start or stop."""
        self._since: dict[TaskId, tuple[float, float]] = {}
        """Since when a task works, and how fast."""
        self._sharing: dict[GpuKey, dict[TaskId, tuple[TaskSpec, Placement]]] = {}
        """Tasks that work on a card of which they have a part."""
        self._cards: dict[TaskId, GpuKey] = {}
        """Where each of these works."""

    # --- time ----------------------------------------------------------------------------------------------------------

    def tell(self, asked: command.Command) -> Sequence[fact.Event] | Refusal:
        """Hand a command to the engine and let it decide."""
        answer = self.handle(asked)
        if isinstance(answer, Refusal):
            return answer
        return self._publish([*answer, *self.engine.decide(self.now)])

    def handle(self, asked: command.Command) -> Sequence[fact.Event] | Refusal:
        """Hand a command to the engine; whoever calls this publishes the answer and lets it decide."""
        return self.engine.handle(asked, self.now)

    def later(self, at: float, asked: command.Command) -> int:
        """Hand a command to the engine at an instant to come."""
        self._count += 1
        heappush(self._agenda, (at, self._count, asked))
        return self._count

    def feed(self, source: Iterator[TimedCommand]) -> None:
        """Hand over these commands at their instants, which only grow; each is asked for when the one before was due."""
        self._source = source
        self._next = next(source, None)

    @property
    def is_over(self) -> bool:
        """Whether no task is open, and none comes."""
        return self._next is None and not self.engine.state.tasks and not self._agenda

    def next_event(self) -> float | None:
        """The instant at which something happens next, if nobody says anything."""
        times = [due for actor in self.actors if (due := actor.due()) is not None]
        own = self._next_own()
        if own is not None:
            times.append(own)
        return max(self.now, min(times)) if times else None

    def _next_own(self) -> float | None:
        """The same, whatever the actors do."""
        times = [self._agenda[0][0]] if self._agenda else []
        if self._next is not None:
            times.append(self._next[0])
        wakeup = self.engine.next_wakeup()
        if wakeup is not None:
            times.append(wakeup)
        return min(times) if times else None

    def advance(self, until: float) -> None:
        """Let time pass; everything due happens at its own instant, and one decision is made for all of one instant."""
        self.run_to_end(until)
        self.now = max(self.now, until)

    def run_to_end(self, limit: float = 1e12) -> None:
        """Let time pass until nothing is due any more."""
        while (due := self.next_event()) is not None and due <= limit:
            self._happen(due)

    def _happen(self, due: float) -> None:
        """All that is due at an instant."""
        self.now = due
        facts: list[fact.Event] = []
        if self.actors and ((own := self._next_own()) is None or own > due):
            for actor in self.actors:
                if (at := actor.due()) is not None and at <= due:
                    for asked in actor.act(due):
                        facts += self._handled(asked)
        agenda = self._agenda
        while agenda and agenda[0][0] <= due:
            _, entry, asked = heappop(agenda)
            if self._is_said(asked, entry):
                facts += self._handled(asked)
        while self._next is not None and self._next[0] <= due:
            order = self._next[1]
            facts += self._handled(order if isinstance(order, command.Command) else order())
            self._next = next(self._source, None)
        self._publish([*facts, *self.engine.decide(due)])

    def _handled(self, asked: command.Command) -> Sequence[fact.Event]:
        answer = self.handle(command.CancelTask(asked.task) if isinstance(asked, _EndedByUser) else asked)
        return () if isinstance(answer, Refusal) else answer

    def _is_said(self, asked: command.Command, entry: int) -> bool:
        """Whether what is due is still so. What a lost node has to say waits until it returns."""
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

    def _publish(self, facts: list[fact.Event]) -> Sequence[fact.Event]:
        if facts:
            for listener in self.listeners:
                listener(self.now, facts)
            for event in facts:
                self._effect(event)
        return facts

    def _effect(self, event: fact.Event) -> None:
        """What nodes do when they hear of a fact."""
        match event:
            case fact.TaskPlaced(task, attempt):
                run = self.runs.get(task)
                seconds = run.start_seconds if run is not None else None
                seconds = self.start_seconds if seconds is None else seconds
                self.later(self.now + seconds, command.ReportStarted(task, attempt, origin=self.engine.state.origin))
            case fact.AttemptStarted() | fact.AttemptResumed() | fact.SuspensionFailed() | fact.AttemptRecovered():
                self._begin(event)
            case fact.AttemptEnded(task, _, outcome):
                self._pause(task)
                self._ends.pop(task, None)
                run = self.runs.get(task)
                if run is not None and run.then is not None and outcome is run.outcome:
                    self.runs[task] = run.then
            case fact.TaskEnded(task):
                self._forget(task)
            case fact.AttemptResuming(task, attempt):
                runs = command.ReportResumed(task, attempt, event.round, origin=self._origin(task))
                self.later(self.now + self.start_seconds, runs)
            case fact.AttemptSuspending(task, attempt):
                self._pause(task)
                held = command.ReportSuspended(task, attempt, event.round, origin=self._origin(task))
                self.later(self.now + self.stop_seconds, held)
            case fact.AttemptStopping():
                self._stop(event)
            case fact.NodeLost(node):
                self._lost.add(node)
            case fact.NodeReturned(node) | fact.NodeRemoved(node):
                self._lost.discard(node)
                unsaid, self._unsaid = self._unsaid, []
                for entry, report in unsaid:
                    heappush(self._agenda, (self.now, entry, report))

    def _origin(self, number: TaskId) -> int:
        task = self.engine.state.tasks.get(number)
        return task.origin if task is not None else 0

    def _begin(
        self, event: fact.AttemptStarted | fact.AttemptResumed | fact.SuspensionFailed | fact.AttemptRecovered
    ) -> None:
        """It works: until nothing is left, if its work is known."""
        run = self.runs.get(event.task)
        task = self.engine.state.tasks.get(event.task)
        if run is None or task is None or not isinstance(task.phase, Running):
            return
        left = self._left.get(event.task, run.seconds)
        if isinstance(event, fact.AttemptStarted) and not task.served_seconds:
            left = run.seconds  # what an earlier attempt did is lost
        elif event.task in self._left and not isinstance(event, fact.SuspensionFailed | fact.AttemptRecovered):
            left += self.restart_seconds(task.spec)
        self._left[event.task] = left
        placement = task.phase.placement
        if card := _shared_card(placement):
            self._cards[event.task] = card
            self._sharing.setdefault(card, {})[event.task] = (task.spec, placement)
            for each in self._sharing[card]:
                self._work_on(each, card)
        else:
            self._set_speed(event.task, self._alone(event.task, task.spec, placement))

    def _alone(self, number: TaskId, spec: TaskSpec, placement: Placement) -> float:
        """How fast it is with what it has of its cards to itself."""
        speeds = self.runs[number].speeds
        return speed_of(spec.resources.speeds if speeds is None else speeds, placement, self.engine.state.index)

    def _set_speed(self, number: TaskId, speed: float) -> None:
        """It works this fast from now on, and ends accordingly."""
        self._settle(number)
        self._since[number] = (self.now, speed)
        task, run, left = self.engine.state.tasks.get(number), self.runs.get(number), self._left[number]
        if run is not None and task is not None and isinstance(task.phase, Running) and left < inf:
            end = _EndedByUser if run.outcome is Outcome.STOPPED else command.ReportEnded
            report = end(number, task.phase.attempt, run.outcome, run.exit_code, origin=task.origin)
            self._ends[number] = self.later(self.now + left / speed, report)

    def _work_on(self, number: TaskId, card: GpuKey) -> None:
        """It works as fast as those let it who share its card."""
        sharing = self._sharing[card]
        spec, placement = sharing[number]
        speed = self._alone(number, spec, placement)
        for other, (theirs, _) in sharing.items():
            if other != number:
                speed *= self.slowed_by(spec, theirs)
        self._set_speed(number, speed)

    def _settle(self, task: TaskId) -> None:
        """Count what it has done since it works at this speed."""
        worked = self._since.pop(task, None)
        if worked is not None:
            since, speed = worked
            self._left[task] = max(0.0, self._left[task] - (self.now - since) * speed)

    def _pause(self, task: TaskId) -> None:
        """It works no longer, and those who shared its card are faster."""
        self._settle(task)
        card = self._cards.pop(task, None)
        if card is not None:
            sharing = self._sharing[card]
            del sharing[task]
            for each in sharing:
                self._work_on(each, card)
            if not sharing:
                del self._sharing[card]

    def _stop(self, event: fact.AttemptStopping) -> None:
        """It is being ended: its nodes say so when it is."""
        self._pause(event.task)
        task = self.engine.state.tasks.get(event.task)
        if task is not None and isinstance(task.phase, ACTIVE):  # it may have ended in the same step
            for node in task.phase.placement.nodes:
                report = command.ReportEnded(event.task, event.attempt, Outcome.STOPPED, node=node, origin=task.origin)
                self.later(self.now + self.stop_seconds, report)

    def _forget(self, task: TaskId) -> None:
        """It is over."""
        self._left.pop(task, None)
        self._since.pop(task, None)
        self._ends.pop(task, None)
        self.runs.pop(task, None)


def _shared_card(placement: Placement) -> GpuKey | None:
    """The card that a placement has a part of, if it has only a part."""
    first = placement.slices[0]
    return (first.node, first.gpus[0]) if first.milli < MILLI and first.gpus else None
