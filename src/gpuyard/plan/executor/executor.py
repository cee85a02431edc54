"""The executor: handles each event and returns the commands that follow.

It follows the assignment and the order of a plan, not its times: a call starts when it is ready, its turn has come and
its GPUs hold its model. A GPU whose next call needs another model unloads and loads at once, so that loading overlaps
with the wait of the call. A model that may be loaded beside calls (`Work.preloads`) is loaded while its GPUs still run
those of another one, as soon as it is the next one in their queues and fits. `choosing` decides which calls idle GPUs take from others.

The remaining work is planned again when GPUs leave or return, and when calls deviate from their planned durations. The
driver of the executor does that (`Replan`, `Replanned`); the old plan is followed in the meantime.

A group of GPUs that holds a wide model depends on each of its GPUs: one worker holds the model, so if one GPU is lost
or given back, that worker is stopped and its calls start over elsewhere.
"""

from dataclasses import dataclass
from math import inf
from typing import Final

from gpuyard.plan.executor.choosing import own, steal
from gpuyard.plan.executor.execution_state import (
    NOWHERE,
    TOLERANCE_GB,
    CallStatus,
    ExecutionState,
    GpuState,
    Operation,
    OpKind,
)
from gpuyard.plan.executor.messages import (
    Back,
    Call,
    Done,
    DropResult,
    ExecutorCommand,
    ExecutorEvent,
    Failed,
    Load,
    Lost,
    Reclaimed,
    ReleaseGpu,
    Replan,
    Replanned,
    Stop,
    Tick,
    Unload,
)
from gpuyard.plan.executor.work import Assignment, RemainingWork, Work

QUIET: Final = 0.25
"""An idle GPU that found nothing to steal does not look again for this fraction of the mean call duration."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for following a plan."""

    retries: int = 2
    """The number of times a failed call is run again."""
    losses: int = 5
    """The number of times a call is run again after its worker was lost: the call itself may be what kills workers."""
    load_failures: int = 3
    """After this number of failures to load a model, a group is not used for it any more."""
    steals: bool = True
    replans: bool = True
    drift: float = 0.03
    """The remaining work is planned again once calls deviate from their planned durations by this mean fraction …"""
    stretch: float = 0.15
    """… and this fraction of the work that remained at the last planning is done."""


@dataclass(frozen=True, slots=True)
class Run:
    """A completed call: where and when it ran."""

    call: int
    gpu: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class LoadRun:
    """A completed load: of which model, where and when."""

    model: int
    gpu: int
    start_s: float
    end_s: float


@dataclass(slots=True)
class ExecutionCounts:
    """Counters of an execution."""

    switches: int = 0
    """Loads onto a GPU that held another model before."""
    switch_time_s: float = 0.0
    """GPU-seconds spent loading and unloading."""
    hidden_switch_s: float = 0.0
    """Those of them in which the GPU ran calls."""
    stolen: int = 0
    replanned: int = 0
    retries: int = 0
    moved: int = 0
    """Calls that had started on a GPU that was lost or reclaimed, and started over."""
    lost: int = 0
    reclaimed: int = 0
    ignored: int = 0
    """Replies that came too late."""


@dataclass(slots=True)
class _Stretch:
    """Since the last planning: the seconds of work that remained, that are done, and by which those were off."""

    left_s: float
    done_s: float = 0.0
    off_s: float = 0.0


class Executor:
    """Follows a plan. All instants are passed in and never decrease."""

    def __init__(self, work: Work, assignment: Assignment, rules: Rules | None = None) -> None:
        self.rules: Final = rules or Rules()
        self.execution = ExecutionState(work)
        self.counts = ExecutionCounts()
        self.runs: list[Run] = []
        self.loads: list[LoadRun] = []
        self.restored: set[int] = set()
        """Calls that an earlier run has done."""
        self.given_up: dict[int, str] = {}
        """Calls that will not be done, and the reason."""
        self._work = work
        self._results: dict[int, object] = {}
        self._operations: dict[int, Operation] = {}
        self._numbers = 0
        self._attempts = [0] * len(work)
        self._failures = [0] * len(work)
        self._losses = [0] * len(work)
        self._load_failures: dict[tuple[int, int], int] = {}
        self._load_troubles: dict[int, str] = {}
        """The last error of each model that could not be loaded."""
        self._commands: list[ExecutorCommand] = []
        self._restless: set[int] = set()
        self._widest = max(work.width, default=1)
        self._last_held = [NOWHERE] * len(work.speed)
        self._arrivals = sorted(
            (call for call in range(len(work)) if work.earliest_s[call] > 0),
            key=lambda call: work.earliest_s[call],
            reverse=True,
        )
        self._look_again_s = [0.0] * len(work.speed)
        """When an idle GPU that found nothing to steal may look again."""
        self._quiet_s = QUIET * sum(work.seconds) / max(1, len(work))
        self._wants_plan = False
        self._plan_pending = False
        self._open = len(work)
        self._stretch = _Stretch(sum(work.seconds))
        self._expected_s = list(work.seconds)
        """The duration of each call as assumed by the last planning."""
        self._follow(assignment)

    # --- queries ------------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether every call is done or given up."""
        return self._open == 0

    @property
    def is_stuck(self) -> bool:
        """Whether nothing is under way and nothing can start unless GPUs come back."""
        return not (self.is_over or self._operations or self._plan_pending or self.next_wakeup() < inf)

    @property
    def done(self) -> int:
        """The number of calls that are done."""
        return len(self.runs) + len(self.restored)

    def why_not(self, call: int) -> str:
        """Return why a call was not done."""
        trouble = self._load_troubles.get(self._work.model[call])
        left = "no GPU that can run it is left" if trouble is None else f"its model could not be loaded: {trouble}"
        return self.given_up.get(call, left)

    def next_wakeup(self) -> float:
        """Return the next instant at which something must be done even without an event; `inf` if there is none."""
        arrival = self._work.earliest_s[self._arrivals[-1]] if self._arrivals else inf
        return min(arrival, *(state.leaves_s for state in self.execution.gpus if state.present), inf)

    # --- events -------------------------------------------------------------------------------------------------------

    def begin(self, now: float) -> list[ExecutorCommand]:
        """Start following the plan. Every GPU that is present must have a worker that is ready."""
        self._restless.update(range(len(self.execution.gpus)))
        for call in sorted(self.restored):
            self._forget_result_of(call)
        return self.handle(Tick(), now)

    def absent(self, gpu: int) -> None:
        """Mark a GPU as not present yet; call it before `begin`. `Back` reports when it is."""
        self._remove(gpu)
        self._commands.clear()

    def restore(self, call: int, result: object) -> None:
        """Mark a call as done by an earlier run, with its result; call it before `begin`."""
        execution = self.execution
        execution.dequeue(call)
        execution.status[call] = CallStatus.DONE
        self.restored.add(call)
        self._open -= 1
        self._results[call] = result
        self._wants_plan = True
        for later in self._work.after[call]:
            execution.missing[later] -= 1

    def handle(self, event: ExecutorEvent, now: float) -> list[ExecutorCommand]:
        """Handle an event and return the commands that follow."""
        self.execution.now = max(self.execution.now, now)
        match event:
            case Done():
                self._done(event)
            case Failed():
                self._failed(event)
            case Lost(gpu):
                if self.execution.gpus[gpu].present:
                    self.counts.lost += 1
                    self._remove(gpu)
            case Back(gpu):
                self._back(gpu)
            case Reclaimed(gpu, deadline):
                self._reclaimed(gpu, deadline)
            case Replanned(assignment):
                self._planned(assignment)
            case Tick():
                pass
        if not isinstance(event, Done):
            self._restless.update(gpu for gpu, state in enumerate(self.execution.gpus) if state.idle)
        self._pass_time()
        self._settle()
        commands, self._commands = self._commands, []
        return commands

    def _done(self, event: Done) -> None:
        operation = self._operations.pop(event.operation, None)
        if operation is None:
            self.counts.ignored += 1
            return
        hidden_s = sum(self.execution.busy_s(gpu) for gpu in operation.gpus) - operation.busy_s
        self._free(operation)
        if operation.kind is not OpKind.CALL:
            self.counts.hidden_switch_s += hidden_s
        states = [self.execution.gpus[gpu] for gpu in operation.gpus]
        match operation.kind:
            case OpKind.LOAD:
                for gpu, state in zip(operation.gpus, states, strict=True):
                    state.holds[operation.model] = operation.gpus[0]
                    self._last_held[gpu] = operation.model
                self._charge(operation)
                self.loads.append(LoadRun(operation.model, operation.gpus[0], operation.began_s, self.execution.now))
            case OpKind.UNLOAD:
                for state in states:
                    state.holds.pop(operation.model, None)
                self._charge(operation)
            case OpKind.CALL:
                for state in states:
                    # Move the model to the end of `holds`: it is the most recently used one.
                    state.holds[operation.model] = state.holds.pop(operation.model)
                self._ended(operation, event)
        self._give_back_reclaimed(operation)

    def _ended(self, operation: Operation, event: Done) -> None:
        call, first = operation.call, operation.gpus[0]
        execution, work = self.execution, self._work
        execution.status[call] = CallStatus.DONE
        del execution.running_until[call]
        self._open -= 1
        self.runs.append(Run(call, first, operation.began_s, execution.now))
        self._results[call] = event.result
        for later in work.after[call]:
            execution.missing[later] -= 1
            if not execution.missing[later] and execution.home[later] != NOWHERE:
                self._restless.update(work.group(work.model[later], execution.home[later]))
        for one in (call, *work.before[call]):
            self._forget_result_of(one)
        actual = event.seconds * work.pace(operation.model, first)
        expected = self._expected_s[call]
        execution.estimates.ended(call, actual)
        stretch = self._stretch
        stretch.done_s += expected
        stretch.off_s += abs(actual - expected)
        if stretch.done_s >= self.rules.stretch * stretch.left_s and stretch.off_s > self.rules.drift * stretch.done_s:
            self._wants_plan = True
        self._restless.update(
            gpu for gpu, state in enumerate(execution.gpus) if state.idle and self._look_again_s[gpu] <= execution.now
        )

    def _forget_result_of(self, call: int) -> None:
        ended = {CallStatus.DONE, CallStatus.GIVEN_UP}
        if call in self._results and all(self.execution.status[later] in ended for later in self._work.after[call]):
            self._commands.append(DropResult(call, self._results.pop(call)))

    def _failed(self, event: Failed) -> None:
        operation = self._operations.pop(event.operation, None)
        if operation is None:
            self.counts.ignored += 1
            return
        self._free(operation)
        first, model, call = operation.gpus[0], operation.model, operation.call
        match operation.kind:
            case OpKind.UNLOAD:
                self._stop(first)
            case OpKind.LOAD:
                self._load_troubles[model] = event.why
                self._load_failed(model, first)
            case OpKind.CALL:
                self._failures[call] += 1
                if self._failures[call] > self.rules.retries:
                    self._give_up(call, event.why)
                else:
                    self.counts.retries += 1
                    self._wait_again(call)
                    if self.execution.allowed(model, first):
                        self.execution.enqueue(call, first, at_head=True)
        self._give_back_reclaimed(operation)

    def _load_failed(self, model: int, first: int) -> None:
        count = self._load_failures[model, first] = self._load_failures.get((model, first), 0) + 1
        if count < self.rules.load_failures:
            return
        self.execution.banned.add((model, first))
        for call in list(self.execution.gpus[first].queue):
            if self._work.model[call] == model and self.execution.home[call] == first:
                self.execution.unassign(call)
        self._wants_plan = True

    def _back(self, gpu: int) -> None:
        state = self.execution.gpus[gpu]
        if state.present and state.leaves_s == inf:
            return
        if state.present:  # it was about to be given back, and is no longer reclaimed
            state.leaves_s = inf
        else:
            self.execution.gpus[gpu] = GpuState()
            self._last_held[gpu] = NOWHERE
        self.execution.banned = {
            (model, first) for model, first in self.execution.banned if gpu not in self._work.group(model, first)
        }
        self._load_failures = {key: n for key, n in self._load_failures.items() if gpu not in self._work.group(*key)}
        self._restless.add(gpu)
        self._wants_plan = True

    def _reclaimed(self, gpu: int, deadline: float) -> None:
        state = self.execution.gpus[gpu]
        if not state.present:
            return
        self.counts.reclaimed += 1
        state.leaves_s = min(state.leaves_s, deadline)
        self._unassign_queue(gpu)
        self._wants_plan = True
        doing = state.doing
        if doing is None or doing.kind is not OpKind.CALL or doing.ends_s > deadline:
            self._give_back(gpu)

    def _planned(self, assignment: Assignment | None) -> None:
        self._plan_pending = False
        if assignment is not None:
            self.counts.replanned += 1
            self._follow(assignment)

    # --- following the plan -------------------------------------------------------------------------------------------

    def _follow(self, assignment: Assignment) -> None:
        """Queue the waiting calls as the plan says; those it omits or cannot place any more stay unassigned."""
        execution = self.execution
        for state in execution.gpus:
            for call in list(state.queue):
                execution.unassign(call)
        columns = zip(assignment.call, assignment.gpu, assignment.start_s, assignment.end_s, strict=True)
        for call, first, start_s, end_s in columns:
            waits = (
                execution.status[call] is CallStatus.WAITS and execution.home[call] == NOWHERE
            )  # a call may be named twice
            if waits and execution.allowed(self._work.model[call], first):
                execution.enqueue(call, first)
                execution.due_start[call], execution.due_end[call] = start_s, end_s
        self._restless.update(range(len(execution.gpus)))

    def _pass_time(self) -> None:
        execution = self.execution
        while self._arrivals and self._work.earliest_s[self._arrivals[-1]] <= execution.now:
            self._arrivals.pop()
            self._restless.update(range(len(execution.gpus)))
        for gpu, state in enumerate(execution.gpus):
            if state.present and state.leaves_s <= execution.now:
                self._give_back(gpu)

    def _settle(self) -> None:
        """Visit all GPUs affected by an event, until nothing more starts."""
        while self._restless:
            gpu = min(self._restless)
            self._restless.remove(gpu)
            if self.execution.gpus[gpu].idle:
                self._look(gpu)
            if self._work.preloads:
                self._look_ahead(gpu)
        if not self._operations and self.execution.unassigned:
            self._take_unassigned()
        if self._wants_plan and not self._plan_pending and self.rules.replans and not self.is_over:
            self._wants_plan = False
            remaining = self._remaining()
            self._stretch = _Stretch(sum(remaining.seconds))
            for call, seconds in zip(remaining.call, remaining.seconds, strict=True):
                self._expected_s[call] = seconds
            if remaining.call:
                self._plan_pending = True
                self._commands.append(Replan(remaining))

    def _look(self, gpu: int) -> None:
        execution = self.execution
        call = own(execution, gpu)
        if call is not None and call != execution.gpus[gpu].queue[0] and self._overtakes(call, gpu):
            first = execution.home[call]
            execution.dequeue(call)
            execution.enqueue(call, first, at_head=True)
        if call is not None and execution.is_ready(call):
            self._advance(call, execution.home[call])
        # Steal before preparing for the own next call: once a load has started, the GPU is busy until it ends.
        if execution.gpus[gpu].idle and self.rules.steals and self._look_again_s[gpu] <= execution.now:
            stolen = steal(execution, gpu, at_any_price=False)
            if stolen is not None:
                self._take(*stolen)
                return
            self._look_again_s[gpu] = execution.now + self._quiet_s
        if execution.gpus[gpu].idle and call is not None and execution.home[call] != NOWHERE:
            self._advance(call, execution.home[call])

    def _overtakes(self, call: int, gpu: int) -> bool:
        """Whether a call is more urgent than the first one of the queue."""
        priority = self._work.priority
        return self._work.has_priorities and priority[call] > priority[self.execution.gpus[gpu].queue[0]]

    def _take_unassigned(self) -> None:
        """Assign an unassigned call regardless of what it delays, because nothing is under way."""
        for gpu, state in enumerate(self.execution.gpus):
            if state.idle:
                found = steal(self.execution, gpu, at_any_price=True)
                if found is not None:
                    self._take(*found)
                    return

    def _take(self, call: int, first: int) -> None:
        """Put a call at the head of the queues of an idle group and advance it."""
        if self.execution.home[call] != NOWHERE:
            self.counts.stolen += 1
        self.execution.dequeue(call)
        self.execution.enqueue(call, first, at_head=True)
        self._advance(call, first)

    def _advance(self, call: int, first: int) -> None:
        """Advance a queued call by one step: make room, load, call."""
        execution, work = self.execution, self._work
        model = work.model[call]
        group = work.group(model, first)
        if (
            execution.is_ready(call)
            and execution.has_loaded(model, first)
            and all(execution.gpus[gpu].idle for gpu in group)
        ):
            self._call(call, first)
            return
        # Only GPUs whose next call is this one may unload for it: others still need what they hold.
        states = execution.gpus
        here = [gpu for gpu in group if states[gpu].idle and not states[gpu].copying and states[gpu].queue[0] == call]
        crowded = [gpu for gpu in here if self._make_room(gpu, model, first)]
        if crowded or len(here) < len(group):
            return
        if not execution.has_loaded(model, first):
            holds_others = any(execution.gpus[gpu].holds for gpu in group)
            self._load(model, group, beside=bool(work.preloads) and work.preloads[model] and holds_others)

    def _load(self, model: int, group: range, *, beside: bool) -> None:
        for gpu in group:
            self.counts.switches += self._last_held[gpu] not in {NOWHERE, model}
        self._begin(OpKind.LOAD, model, group, self._work.load_s[model], beside=beside)

    def _look_ahead(self, gpu: int) -> None:
        """Load the next model of a GPU beside its calls, if there is room; make room if its old model is still there."""
        execution, work = self.execution, self._work
        call = self._next_call(gpu)
        if call is None:
            return
        model, first = work.model[call], execution.home[call]
        group = work.group(model, first)
        if not work.preloads[model] or execution.has_loaded(model, first):
            return
        states = [execution.gpus[one] for one in group]
        if any(state.copying is not None or not state.usable or model in state.holds for state in states):
            return
        if any(state.doing is not None and state.doing.kind is not OpKind.CALL for state in states):
            return
        if any(self._next_call(one) != call for one in group):
            return
        crowded = [
            one
            for one in group
            if not execution.may_hold_more(one, model) or execution.room_gb(one) < work.memory_gb[model] - TOLERANCE_GB
        ]
        if not crowded:
            self._load(model, group, beside=True)
            return
        for one in crowded:
            self._unload_old(one)

    def _next_call(self, gpu: int) -> int | None:
        """Return the next call of a GPU that needs another model than the current one; None if there is none."""
        return self.execution.next_model_call(gpu, self.execution.current_model(gpu))

    def _unload_old(self, gpu: int) -> None:
        """Unload a model that neither the running call nor the next one of another model needs, beside the calls."""
        execution, work = self.execution, self._work
        for model, first in list(execution.gpus[gpu].holds.items()):
            group = work.group(model, first)
            if work.preloads[model] and all(self._can_drop(one, model) for one in group):
                self._begin(OpKind.UNLOAD, model, group, work.unload_s[model], beside=True)
                return

    def _can_drop(self, gpu: int, model: int) -> bool:
        state = self.execution.gpus[gpu]
        call = self._next_call(gpu)
        needed = {self.execution.current_model(gpu), NOWHERE if call is None else self._work.model[call]}
        loads = state.doing is not None and state.doing.kind is not OpKind.CALL
        return state.copying is None and not loads and state.usable and model not in needed

    def _make_room(self, gpu: int, model: int, first: int) -> bool:
        """Unload a model that is in the way of this one, if any; return whether one was."""
        execution = self.execution
        dropped = execution.in_the_way(gpu, model, first)
        if dropped is None:
            return False
        if execution.gpus[gpu].idle:  # a neighbor may have freed it just now
            group = self._work.group(dropped, execution.gpus[gpu].holds[dropped])
            if all(execution.gpus[other].doing is None and execution.gpus[other].copying is None for other in group):
                self._begin(OpKind.UNLOAD, dropped, group, self._work.unload_s[dropped])
        return True

    def _call(self, call: int, first: int) -> None:
        execution, work = self.execution, self._work
        model = work.model[call]
        seconds = execution.seconds(call, first)
        execution.dequeue(call)
        execution.home[call] = first
        execution.status[call] = CallStatus.RUNS
        execution.running_until[call] = execution.now + seconds
        self._attempts[call] += 1
        self._begin(OpKind.CALL, model, work.group(model, first), seconds, call)

    def _begin(
        self, kind: OpKind, model: int, group: range, seconds: float, call: int = NOWHERE, *, beside: bool = False
    ) -> None:
        self._numbers += 1
        now = self.execution.now
        operation = Operation(self._numbers, kind, model, group, now, now + seconds, call, beside)
        self._operations[operation.number] = operation
        self.execution.begins(operation)
        match kind:
            case OpKind.LOAD:
                self._commands.append(Load(operation.number, model, group, seconds, beside))
            case OpKind.UNLOAD:
                for gpu in group if beside else ():  # from now on no call may use it
                    del self.execution.gpus[gpu].holds[model]
                self._commands.append(Unload(operation.number, model, group, seconds, beside))
            case OpKind.CALL:
                results = {earlier: self._results.get(earlier) for earlier in self._work.before[call]}
                planned = self._work.seconds[call] / self._work.pace(model, group[0])
                self._commands.append(
                    Call(operation.number, model, group, planned, call, self._attempts[call], results)
                )

    def _charge(self, operation: Operation) -> None:
        self.counts.switch_time_s += (self.execution.now - operation.began_s) * len(operation.gpus)

    def _free(self, operation: Operation) -> None:
        self.execution.ends(operation)
        # GPUs next to the freed ones may now form a wide group with them.
        low, high = operation.gpus[0] - self._widest, operation.gpus[-1] + self._widest
        self._restless.update(range(max(0, low), min(len(self.execution.gpus), high + 1)))

    # --- removal ------------------------------------------------------------------------------------------------------

    def _give_back_reclaimed(self, operation: Operation) -> None:
        """Give back the GPUs that waited for the end of an operation, unless a call still runs there."""
        for gpu in operation.gpus:
            state = self.execution.gpus[gpu]
            if state.leaves_s < inf and state.doing is None:
                self._give_back(gpu)

    def _give_back(self, gpu: int) -> None:
        if self.execution.gpus[gpu].present:
            self._remove(gpu)
            self._commands.append(ReleaseGpu(gpu))

    def _stop(self, gpu: int) -> None:
        """Stop a worker that cannot be used any more."""
        if self.execution.gpus[gpu].present:
            self._remove(gpu)
            self._commands.append(Stop(gpu))

    def _remove(self, gpu: int) -> None:
        """Remove a GPU, with everything that its worker held and did."""
        execution = self.execution
        state = execution.gpus[gpu]
        state.present = False
        self._unassign_queue(gpu)
        self._wants_plan = True
        # A wide model on this GPU is held by the worker of its group's first GPU, which must go, too.
        workers = {first for first in state.holds.values() if first != gpu}
        for operation in (state.doing, state.copying):
            if operation is not None:
                workers |= {operation.gpus[0]} - {gpu}
                self._abandon(operation)
        for other in execution.gpus[max(0, gpu - self._widest + 1) : gpu + self._widest]:
            other.holds = {model: first for model, first in other.holds.items() if first != gpu}
        state.holds = {}
        for worker in sorted(workers):
            self._stop_or_give_back(worker)

    def _stop_or_give_back(self, gpu: int) -> None:
        if self.execution.gpus[gpu].leaves_s < inf:
            self._give_back(gpu)
        else:
            self._stop(gpu)

    def _abandon(self, operation: Operation) -> None:
        del self._operations[operation.number]
        self._free(operation)
        call = operation.call
        if call == NOWHERE:
            return
        self.counts.moved += 1
        self._losses[call] += 1
        if self._losses[call] > self.rules.losses:
            self._give_up(call, f"its worker was lost {self._losses[call]} times while it ran")
        else:
            self._wait_again(call)

    def _wait_again(self, call: int) -> None:
        self.execution.status[call] = CallStatus.WAITS
        self.execution.home[call] = NOWHERE
        self.execution.running_until.pop(call, None)
        self.execution.unassigned[call] = None

    def _unassign_queue(self, gpu: int) -> None:
        for call in list(self.execution.gpus[gpu].queue):
            self.execution.unassign(call)

    def _give_up(self, call: int, why: str) -> None:
        """Give up a call, and all calls that wait for it."""
        execution = self.execution
        waiting = [call]
        needed = set[int]()
        while waiting:
            one = waiting.pop()
            if execution.status[one] is CallStatus.GIVEN_UP:
                continue
            execution.running_until.pop(one, None)
            if execution.status[one] is CallStatus.RUNS:
                execution.home[one] = NOWHERE
            execution.dequeue(one)
            execution.status[one] = CallStatus.GIVEN_UP
            self._open -= 1
            self.given_up[one] = why if one == call else f"it depends on a call that failed: {why}"
            waiting.extend(self._work.after[one])
            needed.update(self._work.before[one])
        for earlier in sorted(needed):
            self._forget_result_of(earlier)
        self._restless.update(gpu for gpu, state in enumerate(execution.gpus) if state.idle)

    def _remaining(self) -> RemainingWork:
        execution, work = self.execution, self._work
        waiting = [call for call in range(len(work)) if execution.status[call] is CallStatus.WAITS]
        runnable = {
            model: any(execution.allowed(model, first) for first in work.firsts[model])
            for model in range(len(work.width))
        }
        left_out: set[int] = set()
        for call in waiting:
            if not runnable[work.model[call]]:
                left_out.add(call)
        grown = list(left_out)
        while grown:
            for later in work.after[grown.pop()]:
                if later not in left_out:
                    left_out.add(later)
                    grown.append(later)
        calls = [call for call in waiting if call not in left_out]
        order = sorted(range(len(calls)), key=lambda i: (execution.due_start[calls[i]], work.rank[calls[i]]))
        return RemainingWork(
            execution.now,
            calls,
            [execution.estimates.seconds(call) for call in calls],
            [
                max([work.earliest_s[call], *(execution.running_until.get(p, 0.0) for p in work.before[call])])
                for call in calls
            ],
            [execution.home[call] for call in calls],
            order,
            [state.usable for state in execution.gpus],
            [execution.will_hold(gpu) for gpu in range(len(execution.gpus))],
            [execution.free_at(gpu) for gpu in range(len(execution.gpus))],
        )
