"""The engine: commands in, events out.

`handle` answers one command with the events it produces, or with a refusal and no events. `decide` advances the time and
places waiting tasks; call it after one command or after a thousand. The caller makes the events durable before it
publishes them. Time is monotone: an instant earlier than the last event counts as the instant of the last event.
"""

from collections.abc import Sequence
from math import inf

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import Preemption, TaskId, TaskStatus
from gpuyard.core.engine.handlers import HANDLERS
from gpuyard.core.engine.ledger import Ledger
from gpuyard.core.engine.lifecycle.attempts import end_or_stop
from gpuyard.core.engine.lifecycle.bookings import begin_or_end
from gpuyard.core.engine.phases import Running, Stopping, Suspended, Waiting
from gpuyard.core.engine.scheduling.advice import Advisor
from gpuyard.core.engine.scheduling.backfill import promised_start
from gpuyard.core.engine.scheduling.defragment import Defragmenter
from gpuyard.core.engine.scheduling.moves import Mover
from gpuyard.core.engine.scheduling.schedule import SchedulingPass
from gpuyard.core.engine.state import LOOK_FOR_FASTER_SECONDS, State
from gpuyard.core.engine.task import OpenTask
from gpuyard.core.engine.timers import Timer, TimerKind

Events = list[events.Event]

ROUNDING = 1e-6
"""Tolerance in seconds: a task checked at the instant of its timeout has reached it despite rounding errors."""
TIME_CAME = Cause(CauseKind.TIME_CAME)
LOOK_AGAIN_SECONDS = 60.0
"""Seconds after which a reservation that should have started is checked again."""


class Engine:
    """Handle commands and make scheduling decisions. Only the engine changes its state."""

    def __init__(self, state: State | None = None, advisor: Advisor | None = None) -> None:
        self.state = state or State()
        self._ledger = Ledger(self.state)
        self._scheduler = SchedulingPass(self.state, self._ledger.emit, advisor)
        self._defragmenter = Defragmenter(self.state, self._ledger.emit)
        self._mover = Mover(self.state, self._ledger.emit)

    def handle(self, asked: command.Command, now: float) -> Events | Refusal:
        """Handle a command: return the events it produces, or a refusal and change nothing."""
        ledger = self._ledger
        ledger.begin(now)
        refusal = HANDLERS[type(asked)](ledger, asked)
        assert refusal is None or not ledger.events, f"{asked} was refused after it made events"
        return refusal or ledger.events

    def decide(self, now: float) -> Events:
        """Advance the time to `now`, run the timers that are due and place waiting tasks."""
        state = self.state
        self._ledger.begin(now)
        for timer in state.timers.due(state.now):
            self._look(timer)
        may_move = state.movable and (state.restless or state.queue.published.room)
        if state.settings.defragment and not state.queue.is_quiet():
            self._defragmenter.note_change()
        self._scheduler.decide(state.now)
        if state.settings.defragment and self._defragmenter.run(state.now):
            self._scheduler.decide(state.now)  # a place that was reserved for the waiting task may be free now
        if may_move:
            self._mover.run(state.now)
        return self._ledger.events

    @property
    def under_way(self) -> Sequence[events.Event]:
        """Events of the current or last call so far, for queries that arrive while a call is in progress."""
        return self._ledger.events

    def next_wakeup(self) -> float | None:
        """Return the next instant at which `decide` has work even if no command arrives; None: no timer is set."""
        return self.state.timers.next()

    # --- time passes ---------------------------------------------------------------------------------------------

    def _look(self, timer: Timer) -> None:
        """Handle a timer that is due."""
        state = self.state
        if timer.about is TimerKind.BUDGETS:
            for usage in state.tenants.values():
                if usage.tenant.budget is not None:
                    state.queue.tenant_quota_freed(usage.id, TIME_CAME)
                    if usage.checked_at <= state.now:
                        usage.checked_at = inf
                        state.watch_budget(usage, state.now)
            if not state.backfills:
                state.queue.wake_for_reservation(TIME_CAME)  # a task whose budget is spent keeps no other from room
        elif timer.about is TimerKind.BOOKING:
            begin_or_end(self._ledger, timer.number)
        elif timer.about is TimerKind.SEARCH:
            self._defragmenter.note_change()
        elif timer.about is TimerKind.LINE:
            if line := state.queue.by_number.get(timer.number):
                state.queue.retry((line,), TIME_CAME)
        elif task := state.tasks.get(TaskId(timer.number)):
            self._look_at(task)

    def _look_at(self, task: OpenTask) -> None:
        """Handle a timer of a task: deadline, back-off, reserved start, timeout, rank change or possible move."""
        state, at = self.state, self.state.now
        phase, spec = task.phase, task.spec
        if spec.deadline is not None and spec.deadline <= at and not isinstance(phase, Stopping):
            end_or_stop(self._ledger, task, Cause(CauseKind.DEADLINE), TaskStatus.TIMEOUT)
        elif isinstance(phase, Waiting | Suspended):
            state.enqueue(task, at)
            reservation = state.reservations.get(task.id)
            if (
                reservation is not None
                and not reservation.claim
                and reservation.starts_at is not None
                and reservation.starts_at <= at
            ):
                self._promise_again(task)
        elif isinstance(phase, Running):
            if spec.timeout_seconds is not None and task.ran_at(at) >= spec.timeout_seconds - ROUNDING:
                self._ledger.emit(events.AttemptStopping(task.id, phase.attempt, Cause(CauseKind.TIMEOUT)))
                return
            if state.policy.changes_at is not None and task.preemption is not Preemption.NEVER:
                self._weaken(task, at)
            if task.id in state.movable and task.speed < 1.0:
                state.restless = True
                state.timers.add_task(at + max(at - phase.since, LOOK_FOR_FASTER_SECONDS), task.id)

    def _weaken(self, task: OpenTask, at: float) -> None:
        """Update the rank of a running task; if it changed, wake the lines that could use the task's nodes."""
        state, before = self.state, task.rank
        phase = task.phase
        assert isinstance(phase, Running)
        if state.policy.rank is None or state.policy.rank(task, at, state.settings) == before:
            return  # the timer belongs to an earlier run
        state.watch_rank(task, at)
        device_groups, version = state.index.device_groups_of(phase.placement.nodes), state.index.version
        for line in state.queue.lines.values():
            shape = line.shape
            if shape.version != version:
                shape.refresh(state.index)
            if shape.eligible & device_groups:
                state.queue.retry((line,), TIME_CAME)

    def _promise_again(self, task: OpenTask) -> None:
        """Compute a new start for a reservation whose start has passed while its nodes are still in use.

        The nodes stay the same. No new task is placed on them, so they become free eventually; a reservation that moved
        to other nodes whenever a task overruns its estimate might never be honored.
        """
        state = self.state
        reservation = state.reservations[task.id]
        starts_at = promised_start(state, reservation, state.now)
        if starts_at is not None and starts_at <= state.now:
            state.timers.add_task(state.now + LOOK_AGAIN_SECONDS, task.id)  # it may start in the next scheduling pass
            return
        self._ledger.emit(
            events.ReservationMade(
                task.id, reservation.nodes, starts_at, False, reservation.borrowed, reservation.tenant_key
            )
        )
