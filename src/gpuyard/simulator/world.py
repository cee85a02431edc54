"""A world for the engine: a virtual clock, and nodes that start, suspend and end attempts when they are told to.

It drives the engine exactly as a control plane does: commands in, facts out, effects only from facts. What the outside
would decide (how long a task really runs, with which exit code it ends, that a node dies) is said by whoever builds
the world; nothing here draws lots. A listener sees every batch of facts with its instant, in order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from gpuyard.domain import commands as command
from gpuyard.domain import events as fact
from gpuyard.domain.refusals import Refusal
from gpuyard.domain.values import NodeId, Outcome, TaskId
from gpuyard.engine.engine import Engine
from gpuyard.engine.phases import ACTIVE, Running

REPORTS = (command.ReportStarted, command.ReportSuspended, command.ReportResumed, command.ReportEnded)
Listener = Callable[[float, Sequence[fact.Event]], None]


@dataclass(frozen=True, slots=True)
class Run:
    """How a task really behaves, once it runs."""

    seconds: float
    outcome: Outcome = Outcome.SUCCEEDED
    exit_code: int | None = 0


class World:
    """An engine, a clock and virtual nodes."""

    def __init__(self, engine: Engine | None = None, *, start_seconds: float = 0.0, stop_seconds: float = 0.0) -> None:
        self.engine = engine or Engine()
        self.now = self.engine.state.now
        self.runs: dict[TaskId, Run] = {}
        """What tasks do; one not named runs until it is told to end."""
        self.start_seconds = start_seconds
        self.stop_seconds = stop_seconds
        self.listeners: list[Listener] = []
        self._agenda: list[tuple[float, int, command.Command]] = []
        self._count = 0
        self._lost: set[NodeId] = set()
        self._unsaid: list[tuple[int, command.Command]] = []
        self._ends: dict[TaskId, int] = {}
        """Which entry of the agenda ends a task by itself; a task that was suspended meanwhile has a later one."""

    def tell(self, asked: command.Command) -> Sequence[fact.Event] | Refusal:
        """Hand a command to the engine and let it decide."""
        answer = self.engine.handle(asked, self.now)
        if isinstance(answer, Refusal):
            return answer
        return self._publish([*answer, *self.engine.decide(self.now)])

    def later(self, at: float, asked: command.Command) -> int:
        """Hand a command to the engine at an instant to come."""
        self._count += 1
        heappush(self._agenda, (at, self._count, asked))
        return self._count

    def next_event(self) -> float | None:
        """The instant at which something happens next, if nobody says anything."""
        times = [self._agenda[0][0]] if self._agenda else []
        wakeup = self.engine.next_wakeup()
        if wakeup is not None:
            times.append(max(wakeup, self.now))
        return min(times, default=None)

    def advance(self, until: float) -> None:
        """Let time pass; everything due happens at its own instant."""
        while (due := self.next_event()) is not None and due <= until:
            self.now = max(self.now, due)
            if self._agenda and self._agenda[0][0] <= self.now:
                _, entry, asked = heappop(self._agenda)
                self._report(asked, entry)
            else:
                self._publish(self.engine.decide(self.now))
        self.now = max(self.now, until)

    def run_out(self, limit: float = 1e12) -> None:
        """Let time pass until nothing is due any more."""
        while (due := self.next_event()) is not None and due <= limit:
            self.advance(due)

    def _report(self, asked: command.Command, entry: int) -> None:
        """Say what is due. What a lost node has to say waits until it returns."""
        if isinstance(asked, REPORTS):
            task = self.engine.state.tasks.get(asked.task)
            if task is None or not isinstance(task.phase, ACTIVE) or task.phase.attempt != asked.attempt:
                return
            by_itself = isinstance(asked, command.ReportEnded) and asked.outcome is not Outcome.STOPPED
            if by_itself and (self._ends.get(asked.task) != entry or not isinstance(task.phase, Running)):
                return
            part = asked.node if isinstance(asked, command.ReportEnded) else None
            if self._lost & ({part} if part else set(task.phase.placement.nodes)):
                self._unsaid.append((entry, asked))
                return
        self.tell(asked)

    def _publish(self, facts: list[fact.Event]) -> Sequence[fact.Event]:
        if facts:
            for listener in self.listeners:
                listener(self.now, facts)
            for event in facts:
                self._effect(event)
        return facts

    def _effect(self, event: fact.Event) -> None:
        """What nodes do when they hear of a fact."""
        if isinstance(event, fact.NodeLost):
            self._lost.add(event.node)
        elif isinstance(event, fact.NodeReturned | fact.NodeRemoved):
            self._lost.discard(event.node)
            unsaid, self._unsaid = self._unsaid, []
            for entry, report in unsaid:
                heappush(self._agenda, (self.now, entry, report))
        elif isinstance(event, fact.TaskPlaced):
            self.later(self.now + self.start_seconds, command.ReportStarted(event.task, event.attempt))
        elif isinstance(event, fact.AttemptResuming):
            self.later(self.now + self.start_seconds, command.ReportResumed(event.task, event.attempt, event.round))
        elif isinstance(event, fact.AttemptStarted | fact.AttemptResumed) and event.task in self.runs:
            run = self.runs[event.task]
            left = max(0.0, run.seconds - self.engine.state.tasks[event.task].served_seconds)
            report = command.ReportEnded(event.task, event.attempt, run.outcome, run.exit_code)
            self._ends[event.task] = self.later(self.now + left, report)
        elif isinstance(event, fact.AttemptSuspending):
            self.later(self.now + self.stop_seconds, command.ReportSuspended(event.task, event.attempt, event.round))
        elif isinstance(event, fact.AttemptStopping):
            task = self.engine.state.tasks.get(event.task)
            if task is not None and isinstance(task.phase, ACTIVE):  # it may have ended in the same step
                for node in task.phase.placement.nodes:
                    report = command.ReportEnded(event.task, event.attempt, Outcome.STOPPED, node=node)
                    self.later(self.now + self.stop_seconds, report)
