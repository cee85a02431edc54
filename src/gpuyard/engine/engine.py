"""The engine: commands in, facts out.

`handle` answers one command with the facts it made, or with a refusal and no facts. `decide` lets time pass and places
what waits; call it after one command or after a thousand. Whoever drives the engine makes the facts durable before
anyone outside learns of them. Time is monotone: an instant earlier than the last fact counts as that one.
"""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import isfinite
from typing import Any

from gpuyard.domain import commands as command
from gpuyard.domain import events as fact
from gpuyard.domain import refusals as no
from gpuyard.domain.actual import together
from gpuyard.domain.causes import Cause, Why
from gpuyard.domain.node import NodeSpec, has_same_cards, is_same_card
from gpuyard.domain.placement import Placement
from gpuyard.domain.refusals import Refusal
from gpuyard.domain.task import NewTask
from gpuyard.domain.validation import (
    check_dependencies,
    check_estimate,
    check_node,
    check_settings,
    check_spec,
    check_split,
    check_tenant,
)
from gpuyard.domain.values import MILLI, NodeId, OnLost, Outcome, Preemption, TaskId, TaskStatus
from gpuyard.engine.advice import Advisor
from gpuyard.engine.backfill import is_hopeless, promised_start
from gpuyard.engine.folds import fold
from gpuyard.engine.memory import more_memory
from gpuyard.engine.moves import Mover
from gpuyard.engine.phases import ACTIVE, Placed, Resuming, Running, Settling, Stopping, Suspended, Suspending, Waiting
from gpuyard.engine.policies import POLICIES
from gpuyard.engine.preemption import will_be_cleared
from gpuyard.engine.short_ways import Scheduler
from gpuyard.engine.state import LOOK_FOR_FASTER_SECONDS, AttemptOf, State
from gpuyard.engine.task import Task
from gpuyard.placement.index import Host
from gpuyard.placement.scores import SCORES
from gpuyard.placement.shape import Shape

Facts = list[fact.Event]

ROUNDING = 1e-6
"""Seconds: a task looked at in the very instant of its timeout has reached it, whatever the last bit says."""
ENDING = (Why.CANCELLED, Why.TIMEOUT, Why.DEADLINE)
"""Why a task is stopped for good."""
LOOK_AGAIN_SECONDS = 60.0
"""After so long a reservation that should have begun is looked at again."""


class Engine:
    """Decides what is to be done, on a state that it alone changes."""

    def __init__(self, state: State | None = None, advisor: Advisor | None = None) -> None:
        self.state = state or State()
        self._facts: Facts = []
        self._scheduler = Scheduler(self.state, self._emit, advisor)
        self._mover = Mover(self.state, self._emit)

    def handle(self, asked: command.Command, now: float) -> Facts | Refusal:
        """Answer a command with facts, or refuse it and change nothing."""
        self.state.now = max(self.state.now, now)
        self._facts = []
        refusal = _HANDLERS[type(asked)](self, asked)
        assert refusal is None or not self._facts, f"{asked} was refused after it made facts"
        return refusal or self._facts

    def decide(self, now: float) -> Facts:
        """Let time pass up to now and place what can be placed."""
        state = self.state
        state.now = max(state.now, now)
        self._facts = []
        timers = state.timers
        while timers and timers[0][0] <= state.now:
            self._look(heappop(timers)[1])
        if state.movable and (state.restless or state.freed):
            self._scheduler.decide(state.now)
            self._mover.run(state.now)
        else:
            self._scheduler.decide(state.now)
        return self._facts

    @property
    def under_way(self) -> Sequence[fact.Event]:
        """The facts that the call under way, or the last one, has made so far: for whoever is asked in the midst of it."""
        return self._facts

    def next_wakeup(self) -> float | None:
        """The next instant at which `decide` has something to do although nothing happened."""
        return self.state.timers[0][0] if self.state.timers else None

    def _emit(self, event: fact.Event) -> None:
        fold(self.state, event)
        self._facts.append(event)

    # --- time passes ---------------------------------------------------------------------------------------------

    def _look(self, number: TaskId) -> None:
        """Something about a task (or a line, or the yard) was due now; see what it is."""
        state, at = self.state, self.state.now
        if number == 0:
            for book in state.tenants.values():
                if book.tenant.budget is not None:
                    state.queue.loosened[book.id] = book
            return
        if number < 0:
            if line := state.queue.by_number.get(-number):
                state.queue.retry(line)
            return
        task = state.tasks.get(number)
        if task is None:
            return
        phase, spec = task.phase, task.spec
        if spec.deadline is not None and spec.deadline <= at and not isinstance(phase, Stopping):
            self._end_or_stop(task, Cause(Why.DEADLINE), TaskStatus.TIMEOUT)
        elif isinstance(phase, Waiting | Suspended):
            state.enqueue(task, at)
            hold = state.holds.get(task.id)
            if hold is not None and not hold.claim and hold.starts_at is not None and hold.starts_at <= at:
                self._promise_again(task)
        elif isinstance(phase, Running):
            if spec.timeout_seconds is not None and task.ran_at(at) >= spec.timeout_seconds - ROUNDING:
                self._emit(fact.AttemptStopping(task.id, phase.attempt, Cause(Why.TIMEOUT)))
                return
            if state.policy.changes_at is not None:
                self._weaken(task, at)
            if number in state.movable and task.speed < 1.0:
                state.restless = True
                heappush(state.timers, (at + max(at - phase.since, LOOK_FOR_FASTER_SECONDS), number))

    def _weaken(self, task: Task, at: float) -> None:
        """A running task may be weaker than it was: those who could use its nodes are asked again."""
        state, before = self.state, task.rank
        phase = task.phase
        assert isinstance(phase, Running)
        if state.policy.rank is None or state.policy.rank(task, at, state.settings) == before:
            return  # a timer of an earlier run
        state.watch_rank(task, at)
        bays, version = state.index.bays_of(phase.placement.nodes), state.index.version
        for line in state.queue.lines.values():
            shape = line.shape
            if shape.version != version:
                shape.refresh(state.index)
            if shape.eligible & bays:
                state.queue.wake(line)
        state.queue.loosen_all()

    def _promise_again(self, task: Task) -> None:
        """The promised instant has passed and the nodes are not free: say anew when they will be.

        The nodes stay the same. Nothing new comes to them, so they are free in the end; a promise that moved from
        node to node with every task that overruns would never be kept.
        """
        state = self.state
        hold = state.holds[task.id]
        starts_at = promised_start(state, hold, state.now)
        if starts_at is not None and starts_at <= state.now:
            heappush(state.timers, (state.now + LOOK_AGAIN_SECONDS, task.id))  # it may start in the pass that follows
            return
        self._emit(fact.ReservationMade(task.id, hold.nodes, starts_at, False, hold.borrowed, hold.tenant_key))

    # --- tasks ---------------------------------------------------------------------------------------------------

    def _submit(self, asked: command.SubmitTasks) -> Refusal | None:
        if not asked.tasks:
            return no.NoTasks()
        last = self.state.last_task
        linked = False
        for new in asked.tasks:
            if new.id <= last:
                return no.TaskIdTaken(new.id)
            last = new.id
            if refusal := check_spec(new.spec) or self._forbidden_for_ever(new):
                return refusal
            linked = linked or bool(new.spec.after_success or new.spec.after_any)
        if linked and (refusal := check_dependencies(asked.tasks, _Known(self.state))):
            return refusal
        for new in asked.tasks:
            self._emit(fact.TaskSubmitted(new.id, new.spec, asked.key, asked.digest))
        if linked:
            self._end_hopeless(asked.tasks)
        return None

    def _forbidden_for_ever(self, new: NewTask) -> Refusal | None:
        """What the tenant's own limits, or a wish to fit at once, rule out."""
        spec, state = new.spec, self.state
        ask = spec.resources
        book = state.tenants.get(spec.tenant)
        limits = book.tenant if book else state.default_tenant
        needed = ask.gpus * ask.nodes if ask.share is None else ask.share.fraction_milli / MILLI
        if limits.max_gpus is not None and needed > limits.max_gpus:
            return no.QuotaForbids(spec.tenant, needed, limits.max_gpus)
        if limits.max_gpus_by_model and ask.models:
            by_model = dict(limits.max_gpus_by_model)
            if all(needed > by_model.get(model, needed) for model in ask.models):
                model = max(ask.models, key=lambda model: by_model[model])
                return no.QuotaForbids(spec.tenant, needed, by_model[model], model)
        return Shape(ask).never(state.index) if spec.require_fit else None

    def _end_hopeless(self, tasks: tuple[NewTask, ...]) -> None:
        """Tasks that need the success of one that did not succeed."""
        for new in tasks:
            for dependency in new.spec.after_success:
                status = self.state.ended.get(dependency)
                if status is not None and status is not TaskStatus.SUCCESS and new.id in self.state.tasks:
                    self._end(self.state.tasks[new.id], TaskStatus.CANCELLED, Cause(Why.DEPENDENCY, task=dependency))

    def _open_task(self, task_id: TaskId) -> Task | Refusal:
        task = self.state.tasks.get(task_id)
        if task is not None:
            return task
        status = self.state.ended.get(task_id)
        return no.UnknownTask(task_id) if status is None else no.TaskIsOver(task_id, status)

    def _cancel(self, asked: command.CancelTask) -> Refusal | None:
        task = self._open_task(asked.task)
        if isinstance(task, Refusal):
            return task
        if isinstance(task.phase, Stopping) and task.phase.cause.why is Why.CANCELLED:
            return None
        self._end_or_stop(task, Cause(Why.CANCELLED), TaskStatus.CANCELLED)
        return None

    def _end_or_stop(self, task: Task, cause: Cause, status: TaskStatus) -> None:
        """End a task that waits; have a task that runs stopped, or what is already being done to it end in this way."""
        phase = task.phase
        if isinstance(phase, Waiting):
            self._end(task, status, cause)
        elif isinstance(phase, ACTIVE):
            self._emit(fact.AttemptStopping(task.id, phase.attempt, cause))
            if any(self.state.index.hosts[node].lost for node in phase.placement.nodes):
                self._finish_lost(task)  # nobody is there to be asked

    def _hold(self, asked: command.HoldTask) -> Refusal | None:
        task = self._open_task(asked.task)
        if isinstance(task, Refusal):
            return task
        if not isinstance(task.phase, Waiting):
            return _wrong_phase(task, "hold", "waiting")
        if not task.held:
            self._emit(fact.TaskHeld(task.id))
        return None

    def _release(self, asked: command.ReleaseTask) -> Refusal | None:
        task = self._open_task(asked.task)
        if isinstance(task, Refusal):
            return task
        if not task.held or not isinstance(task.phase, Waiting):
            return _wrong_phase(task, "release", "on hold")
        self._emit(fact.TaskReleased(task.id))
        return None

    def _suspend(self, asked: command.SuspendTask) -> Refusal | None:
        task = self._open_task(asked.task)
        if isinstance(task, Refusal):
            return task
        if task.spec.preemption is not Preemption.SUSPEND:
            return no.NotSuspendable(task.id, task.spec.preemption)
        if task.stuck is not None:
            return no.SuspensionFailedBefore(task.id, task.stuck)
        if not isinstance(task.phase, Running):
            return _wrong_phase(task, "suspend", "running")
        cause = Cause(Why.SUSPENDED_BY_USER)
        self._emit(fact.AttemptSuspending(task.id, task.phase.attempt, cause, task.round + 1))
        return None

    def _resume(self, asked: command.ResumeTask) -> Refusal | None:
        task = self._open_task(asked.task)
        if isinstance(task, Refusal):
            return task
        if not (isinstance(task.phase, Suspended) and task.phase.by_user):
            return _wrong_phase(task, "resume", "suspended on request")
        self._emit(fact.TaskReleased(task.id))
        return None

    def _change_priority(self, asked: command.ChangePriority) -> Refusal | None:
        task = self._open_task(asked.task)
        if isinstance(task, Refusal):
            return task
        if not 0 <= asked.priority <= 100:
            return no.PriorityOutOfRange(asked.priority)
        self._emit(fact.PriorityChanged(task.id, asked.priority))
        return None

    def _revise_estimate(self, asked: command.ReviseEstimate) -> Refusal | None:
        task = self._open_task(asked.task)
        if isinstance(task, Refusal):
            return task
        if asked.estimate and (refusal := check_estimate(asked.estimate)):
            return refusal
        self._emit(fact.EstimateRevised(task.id, asked.estimate))
        return None

    def _extend(self, asked: command.ExtendTask) -> Refusal | None:
        task = self._open_task(asked.task)
        if isinstance(task, Refusal):
            return task
        if asked.timeout_seconds is None and asked.deadline is None:
            return no.NothingToExtend()
        if _is_ending(task):
            return _wrong_phase(task, "extend", "waiting or running")
        until = {}
        for field in ("timeout_seconds", "deadline"):
            value, had = getattr(asked, field), getattr(task.spec, field)
            if value is not None and not isfinite(value):
                return no.NotFinite(field)
            if value is not None and (had is None or value < had):
                return no.NotLonger(task.id, field, value)
            until[field] = had if value is None else value
        self._emit(fact.TaskExtended(task.id, **until))
        return None

    def _end(self, task: Task, status: TaskStatus, cause: Cause) -> None:
        """A task is over; those that needed its success are over with it."""
        over = [(task, status, cause)]
        for ending, how, why in over:
            if ending.id not in self.state.tasks:
                continue
            self._emit(fact.TaskEnded(ending.id, how, why))
            if how is TaskStatus.SUCCESS or not ending.dependents:
                continue
            for dependent in ending.dependents:
                other = self.state.tasks.get(dependent)
                if other is not None and ending.id in other.spec.after_success:
                    over.append((other, TaskStatus.CANCELLED, Cause(Why.DEPENDENCY, task=ending.id)))

    # --- reports -------------------------------------------------------------------------------------------------

    def _attempt(self, task_id: TaskId, attempt: int, node: NodeId | None) -> Task | Refusal:
        """The task a report speaks of, if the attempt is the present one and on that node."""
        task = self.state.tasks.get(task_id)
        if task is None or not isinstance(task.phase, ACTIVE) or task.phase.attempt != attempt:
            return no.StaleReport(task_id, attempt)
        if node is not None and node not in task.phase.placement.nodes:
            return no.NotOnNode(task_id, attempt, node)
        return task

    def _suspension(self, asked: Any) -> Task | Refusal:
        """The task a report about a suspension speaks of, if that is the present one."""
        task = self._attempt(asked.task, asked.attempt, asked.node)
        if isinstance(task, Task) and asked.round != task.round:
            return no.StaleReport(asked.task, asked.attempt)
        return task

    def _started(self, asked: command.ReportStarted) -> Refusal | None:
        task = self._attempt(asked.task, asked.attempt, asked.node)
        if isinstance(task, Refusal):
            return task
        if isinstance(task.phase, Placed):
            self._moves_on(task, asked.node)
        return None  # said twice, or already being stopped: nothing new

    def _suspended(self, asked: command.ReportSuspended) -> Refusal | None:
        task = self._suspension(asked)
        if isinstance(task, Refusal):
            return task
        if isinstance(task.phase, Suspending):
            self._moves_on(task, asked.node)
        return None

    def _resumed(self, asked: command.ReportResumed) -> Refusal | None:
        task = self._suspension(asked)
        if isinstance(task, Refusal):
            return task
        if isinstance(task.phase, Resuming):
            self._moves_on(task, asked.node)
        return None

    def _moves_on(self, task: Task, node: NodeId | None) -> None:
        """An attempt, or its part on one node, has done what it was to do; a gang has when its last part has."""
        phase = task.phase
        nodes = phase.placement.nodes  # type: ignore[attr-defined]
        if node is not None:
            there = {node, *(task.ready or ()), *(task.members or ())}
            if not there.issuperset(nodes):
                if node not in (task.ready or ()) and node not in (task.members or ()):
                    self._emit(fact.MemberReady(task.id, task.attempts, node))
                return
        if isinstance(phase, Placed):
            self._emit(fact.AttemptStarted(task.id, task.attempts))
        elif isinstance(phase, Suspending):
            self._emit(fact.AttemptSuspended(task.id, task.attempts))
            for hold in [hold for hold in self.state.holds.values() if is_hopeless(self.state, hold)]:
                self._emit(fact.ReservationDropped(hold.task.id, Cause(Why.ROOM_LOST)))
        elif isinstance(phase, Resuming):
            self._emit(fact.AttemptResumed(task.id, task.attempts))

    def _not_suspended(self, asked: command.ReportNotSuspended) -> Refusal | None:
        """It runs on. Whoever it was to make room for asks anew; parts of a gang that were moved come back."""
        task = self._suspension(asked)
        if isinstance(task, Refusal):
            return task
        if isinstance(task.phase, Suspending):
            claims = [hold for hold in self.state.holds.values() if task.id in hold.victims]
            self._emit(fact.SuspensionFailed(task.id, asked.attempt, asked.round, asked.message))
            for hold in claims:
                self._emit(fact.ReservationDropped(hold.task.id, Cause(Why.NOT_SUSPENDED, task=task.id)))
        return None

    def _not_resumed(self, asked: command.ReportNotResumed) -> Refusal | None:
        """What was in host memory is gone; the task starts over."""
        task = self._suspension(asked)
        if isinstance(task, Refusal):
            return task
        if isinstance(task.phase, Resuming | Running):
            report = command.ReportEnded(task.id, asked.attempt, Outcome.LOST, node=asked.node, message=asked.message)
            self._part_ended(task, report)
        return None

    def _ended(self, asked: command.ReportEnded) -> Refusal | None:
        if asked.node in self.state.index.hosts:
            what = (asked.task, asked.attempt)
            if what in self.state.presumed_on(asked.node):
                self._emit(fact.RemainsEnded(asked.node, *what))
                return None
        task = self._attempt(asked.task, asked.attempt, asked.node)
        if isinstance(task, Refusal):
            return task
        self._part_ended(task, asked)
        return None

    def _part_ended(self, task: Task, asked: command.ReportEnded) -> None:
        nodes = task.phase.placement.nodes  # type: ignore[attr-defined]
        if asked.node is not None and len(nodes) > 1:
            self._member_ended(task, nodes, asked)
        else:
            self._finish(task, asked, tuple(task.presumed or ()))

    def _member_ended(self, task: Task, nodes: tuple[NodeId, ...], asked: command.ReportEnded) -> None:
        """A gang lives and dies together: the first part that fails stops the others, the last part ends the attempt."""
        assert asked.node is not None
        if asked.node in (task.members or {}):
            return
        self._emit(
            fact.MemberEnded(
                task.id,
                asked.attempt,
                asked.node,
                asked.outcome,
                asked.exit_code,
                asked.signal,
                asked.message,
                asked.actual,
            )
        )
        ends = list((task.members or {}).values())
        if len(ends) == len(nodes):
            failed = (end for end in ends if end.outcome not in {Outcome.SUCCEEDED, Outcome.STOPPED})
            stopped = (end for end in ends if end.outcome is Outcome.STOPPED)
            full = (end for end in ends if end.outcome is Outcome.OUT_OF_MEMORY)
            how = next(full, None) or next(failed, None) or next(stopped, ends[-1])
            actual = together(end.actual for end in ends)
            report = command.ReportEnded(
                task.id, asked.attempt, how.outcome, how.exit_code, how.node, how.signal, how.message, actual
            )
            self._finish(task, report, tuple(node for node in nodes if node in (task.presumed or ())))
        elif asked.outcome is not Outcome.SUCCEEDED and not isinstance(task.phase, Stopping):
            self._emit(fact.AttemptStopping(task.id, asked.attempt, Cause(Why.MEMBER_FAILED, node=asked.node)))
        else:
            self._moves_on(task, asked.node)

    def _finish(self, task: Task, ended: command.ReportEnded, remains: tuple[NodeId, ...]) -> None:
        """An attempt is over: decide in the same step whether the task is. Lost nodes may have something of it still."""
        phase, outcome = task.phase, ended.outcome
        self._emit(
            fact.AttemptEnded(
                task.id, task.attempts, outcome, ended.exit_code, ended.signal, ended.message, remains, ended.actual
            )
        )
        settling = task.phase
        assert isinstance(settling, Settling)
        cause, why = settling.cause, settling.cause.why if settling.cause else None
        if why in ENDING:
            assert cause is not None
            status = TaskStatus.CANCELLED if why is Why.CANCELLED else TaskStatus.TIMEOUT
            self._end(task, status, cause)
        elif outcome is Outcome.SUCCEEDED:
            self._end(task, TaskStatus.SUCCESS, Cause(Why.SUCCEEDED))
        elif outcome is Outcome.TIMED_OUT:
            self._end(task, TaskStatus.TIMEOUT, Cause(Why.TIMEOUT))
        elif outcome is Outcome.LOST:
            nodes = phase.placement.nodes  # type: ignore[attr-defined]
            hosts = self.state.index.hosts
            missing = (node for node in nodes if hosts[node].lost or node in remains)
            node = ended.node or next(missing, nodes[0])
            why = Why.NODE_LOST if hosts[node].lost or node in remains else Why.ATTEMPT_LOST
            self._requeue(task, Cause(why, node=node), self._back_off(task.losses - 1))
        elif cause is not None and why is not Why.MEMBER_FAILED:
            self._requeue(task, cause, delay=0.0)
        elif outcome is Outcome.OUT_OF_MEMORY and phase.placement.charge_milli:  # type: ignore[attr-defined]
            self._retry_with_more_memory(task, phase.placement)  # type: ignore[attr-defined]
        else:
            self._retry(task, cause or self._failure(task, outcome))

    def _failure(self, task: Task, outcome: Outcome) -> Cause:
        return Cause(Why.NOT_LAUNCHED, node=task.avoid) if outcome is Outcome.NOT_LAUNCHED else Cause(Why.EXIT_CODE)

    def _retry(self, task: Task, cause: Cause) -> None:
        """A task's own failure: try again later if it may, with twice the wait each time."""
        if task.failures >= task.spec.retries:
            self._end(task, TaskStatus.FAILED, cause)
            return
        self._requeue(task, cause, self._back_off(task.failures + 1))

    def _retry_with_more_memory(self, task: Task, had: Placement) -> None:
        """A GPU had too little memory for it: the next attempt asks for more, if it may and there is a larger one."""
        if task.failures >= task.spec.retries:
            self._end(task, TaskStatus.FAILED, Cause(Why.OUT_OF_MEMORY))
            return
        enough = more_memory(self.state, task.spec.resources, had)
        if enough is None:
            self._end(task, TaskStatus.FAILED, Cause(Why.OUT_OF_MEMORY_ON_LARGEST))
            return
        self._requeue(task, Cause(Why.OUT_OF_MEMORY), self._back_off(task.failures + 1), enough)

    def _back_off(self, times: int) -> float:
        """How long to wait after so many times: not at all after none, then twice as long each time."""
        if times <= 0:
            return 0.0
        settings = self.state.settings
        return min(settings.retry_delay_seconds * 2.0 ** min(times - 1, 60), settings.retry_delay_max_seconds)

    def _requeue(self, task: Task, cause: Cause, delay: float, gpu_memory_mib: int = 0) -> None:
        self._emit(fact.TaskRequeued(task.id, cause, self.state.now + delay if delay else 0.0, gpu_memory_mib))

    # --- nodes ---------------------------------------------------------------------------------------------------

    def _join(self, asked: command.JoinNode) -> Refusal | None:
        spec, state = asked.node, self.state
        if refusal := check_node(spec):
            return refusal
        host = state.index.hosts.get(spec.id)
        if host is None:
            self._emit(fact.NodeJoined(spec))
        elif host.spec == spec:
            self._hear_of(spec.id, asked.attempts)
        elif has_same_cards(host.spec, spec):
            self._drop_holds_on(spec.id)
            self._emit(fact.NodeChanged(spec))
            self._hear_of(spec.id, asked.attempts)
        elif state.on_node[spec.id] or any(what in asked.attempts for what in state.presumed_on(spec.id)):
            return no.NodeChangedInUse(spec.id)
        else:
            self._replace(host, spec)
        return None

    def _hear_of(self, node: NodeId, attempts: tuple[AttemptOf, ...]) -> None:
        """A known node says what it has: what it may have had besides is gone."""
        presumed = self.state.presumed_on(node)
        if self.state.index.hosts[node].lost:
            self._emit(fact.NodeReturned(node, tuple(what for what in presumed if what in attempts)))
            return
        for what in presumed:
            if what not in attempts:
                self._emit(fact.RemainsEnded(node, *what))

    def _replace(self, before: Host, spec: NodeSpec) -> None:
        """A node that runs nothing has other cards: it comes as a new one, and what people said about it still holds."""
        health = {gpu: before.health[gpu] for gpu in sorted(before.health)}
        self._drop_holds_on(spec.id)
        self._emit(fact.NodeRemoved(spec.id))
        self._emit(fact.NodeJoined(spec))
        for index, gpu in enumerate(spec.gpus):
            was = next((at for at in health if is_same_card(before.spec.gpus[at], gpu, at == index)), None)
            if was is not None:
                self._emit(fact.GpuHealthChanged(spec.id, index, health[was]))
        if before.cordoned:
            self._emit(fact.NodeCordoned(spec.id, before.draining))

    def _known_node(self, node: NodeId) -> Refusal | None:
        return None if node in self.state.index.hosts else no.UnknownNode(node)

    def _lose(self, asked: command.LoseNode) -> Refusal | None:
        if refusal := self._known_node(asked.node):
            return refusal
        if self.state.index.hosts[asked.node].lost:
            return None
        self._drop_holds_on(asked.node)
        self._emit(fact.NodeLost(asked.node))
        for task in list(self.state.on_node[asked.node].values()):
            if task.spec.on_lost is not OnLost.WAIT or _is_ending(task):
                self._finish_lost(task)
        return None

    def _finish_lost(self, task: Task, gone: NodeId | None = None) -> None:
        """An attempt is lost with its nodes, which may run it still, unless they are gone for good.

        The rest of a gang is stopped first; its parts on lost nodes count as over.
        """
        hosts, nodes = self.state.index.hosts, task.phase.placement.nodes  # type: ignore[attr-defined]
        missing = [node for node in nodes if hosts[node].lost and node not in (task.members or {})]
        if len(nodes) > 1 and len(missing) + len(task.members or {}) < len(nodes):
            for node in missing:
                self._member_ended(task, nodes, command.ReportEnded(task.id, task.attempts, Outcome.LOST, node=node))
            return
        remains = (node for node in nodes if (node in missing or node in (task.presumed or ())) and node != gone)
        self._finish(task, command.ReportEnded(task.id, task.attempts, Outcome.LOST), tuple(remains))

    def _return(self, asked: command.ReturnNode) -> Refusal | None:
        if refusal := self._known_node(asked.node):
            return refusal
        self._hear_of(asked.node, asked.attempts)
        return None

    def _remove(self, asked: command.RemoveNode) -> Refusal | None:
        if refusal := self._known_node(asked.node):
            return refusal
        state = self.state
        here = list(state.on_node[asked.node].values())
        if here and not state.index.hosts[asked.node].lost:
            return no.NodeInUse(asked.node, tuple(task.id for task in here))
        if alive := [task for task in here if self._runs_elsewhere(task, asked.node)]:
            return no.GangsElsewhere(asked.node, tuple(task.id for task in alive))
        self._drop_holds_on(asked.node)
        for task in here:
            self._finish_lost(task, gone=asked.node)
        self._emit(fact.NodeRemoved(asked.node))
        return None

    def _runs_elsewhere(self, task: Task, node: NodeId) -> bool:
        """Whether a gang has parts on other nodes that are there and not over."""
        nodes = task.phase.placement.nodes  # type: ignore[attr-defined]
        others = [other for other in nodes if other != node and other not in (task.members or {})]
        return any(not self.state.index.hosts[other].lost for other in others)

    def _cordon(self, asked: command.CordonNode) -> Refusal | None:
        if refusal := self._known_node(asked.node):
            return refusal
        host = self.state.index.hosts[asked.node]
        if not host.cordoned or host.draining != asked.drain:
            self._drop_holds_on(asked.node)
            self._emit(fact.NodeCordoned(asked.node, asked.drain))
        if asked.drain:
            for task in list(self.state.on_node[asked.node].values()):
                movable = task.preemption in {Preemption.CHECKPOINT, Preemption.REQUEUE}
                moves = movable and isinstance(task.phase, Running | Placed)
                if moves or (asked.force and isinstance(task.phase, Suspended)):
                    self._emit(fact.AttemptStopping(task.id, task.attempts, Cause(Why.DRAINED, node=asked.node)))
        return None

    def _uncordon(self, asked: command.UncordonNode) -> Refusal | None:
        if refusal := self._known_node(asked.node):
            return refusal
        if self.state.index.hosts[asked.node].cordoned:
            self._emit(fact.NodeUncordoned(asked.node))
        return None

    def _set_health(self, asked: command.SetGpuHealth) -> Refusal | None:
        if refusal := self._known_node(asked.node):
            return refusal
        host = self.state.index.hosts[asked.node]
        if asked.gpu not in host.bay_of:
            return no.UnknownGpu(asked.node, asked.gpu, len(host.spec.gpus))
        if host.health.get(asked.gpu, "ok") != asked.health:
            self._emit(fact.GpuHealthChanged(asked.node, asked.gpu, asked.health))
            self._drop_holds_on(asked.node, unless_cleared=True)
        return None

    def _drop_holds_on(self, node: NodeId, *, unless_cleared: bool = False) -> None:
        """Promises on a node that changes are made anew; one that others are being stopped for is kept if it still can be."""
        for hold in list(self.state.holds.values()):
            if node in hold.nodes and not (unless_cleared and hold.claim and will_be_cleared(self.state, hold, node)):
                self._emit(fact.ReservationDropped(hold.task.id, Cause(Why.NODES_CHANGED, node=node)))

    # --- the yard ------------------------------------------------------------------------------------------------

    def _found(self, asked: command.FoundYard) -> Refusal | None:
        if self.state.yard:
            return no.AlreadyFounded(self.state.yard)
        if not asked.yard:
            return no.EmptyName("yard")
        self._emit(fact.YardFounded(asked.yard))
        return None

    def _begin_epoch(self, asked: command.BeginEpoch) -> Refusal | None:
        self._emit(fact.EpochBegan(max(self.state.epoch, asked.above) + 1, asked.version, asked.last_task))
        return None

    def _end_epoch(self, asked: command.EndEpoch) -> Refusal | None:
        if not isfinite(asked.patience_seconds):
            return no.NotFinite("patience_seconds")
        if asked.patience_seconds < 0:
            return no.NegativeCount("patience_seconds", asked.patience_seconds)
        self._emit(fact.EpochEnded(self.state.epoch, self.state.now + asked.patience_seconds))
        return None

    def _note_access(self, asked: command.NoteAccess) -> Refusal | None:
        self._emit(fact.AccessChanged(asked.what, asked.subject))
        return None

    def _set_tenant(self, asked: command.SetTenant) -> Refusal | None:
        if refusal := check_tenant(asked.tenant):
            return refusal
        self._emit(fact.TenantSet(asked.tenant))
        return None

    def _set_split(self, asked: command.SetSplit) -> Refusal | None:
        if refusal := check_split(asked.split):
            return refusal
        self._emit(fact.SplitSet(asked.split))
        return None

    def _change_settings(self, asked: command.ChangeSettings) -> Refusal | None:
        settings = asked.settings
        if settings.policy not in POLICIES:
            return no.UnknownPolicy(settings.policy, tuple(POLICIES))
        if settings.score not in SCORES:
            return no.UnknownScore(settings.score, tuple(SCORES))
        if refusal := check_settings(settings):
            return refusal
        for hold in list(self.state.holds.values()):
            self._emit(fact.ReservationDropped(hold.task.id, Cause(Why.SETTINGS_CHANGED)))
        self._emit(fact.SettingsChanged(settings))
        return None


class _Known:
    """Task numbers a new task may depend on."""

    def __init__(self, state: State) -> None:
        self._state = state

    def __contains__(self, task: object) -> bool:
        return task in self._state.tasks or task in self._state.ended


def _is_ending(task: Task) -> bool:
    """Whether a task is being stopped for good."""
    return isinstance(task.phase, Stopping) and task.phase.cause.why in ENDING


def _wrong_phase(task: Task, asked: str, needed: str) -> no.WrongPhase:
    phase = "on hold" if task.held else type(task.phase).__name__.lower()
    return no.WrongPhase(task.id, phase, asked, needed)


_HANDLERS: dict[type[command.Command], Callable[[Engine, Any], Refusal | None]] = {
    command.SubmitTasks: Engine._submit,
    command.CancelTask: Engine._cancel,
    command.HoldTask: Engine._hold,
    command.ReleaseTask: Engine._release,
    command.SuspendTask: Engine._suspend,
    command.ResumeTask: Engine._resume,
    command.ChangePriority: Engine._change_priority,
    command.ReviseEstimate: Engine._revise_estimate,
    command.ExtendTask: Engine._extend,
    command.ReportStarted: Engine._started,
    command.ReportNotSuspended: Engine._not_suspended,
    command.ReportNotResumed: Engine._not_resumed,
    command.ReportSuspended: Engine._suspended,
    command.ReportResumed: Engine._resumed,
    command.ReportEnded: Engine._ended,
    command.JoinNode: Engine._join,
    command.LoseNode: Engine._lose,
    command.ReturnNode: Engine._return,
    command.RemoveNode: Engine._remove,
    command.CordonNode: Engine._cordon,
    command.UncordonNode: Engine._uncordon,
    command.SetGpuHealth: Engine._set_health,
    command.FoundYard: Engine._found,
    command.BeginEpoch: Engine._begin_epoch,
    command.EndEpoch: Engine._end_epoch,
    command.NoteAccess: Engine._note_access,
    command.SetTenant: Engine._set_tenant,
    command.SetSplit: Engine._set_split,
    command.ChangeSettings: Engine._change_settings,
}
