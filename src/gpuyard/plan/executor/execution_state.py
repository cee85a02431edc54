"""The state of an execution: what every GPU holds, does and has queued, and the progress of every call.

A call is in the queues of all GPUs of its group. All queues follow one order in which no call comes before a call it
waits for (calls put at the head are ready). The first call of that order can therefore always proceed: no two groups
wait for each other. A call that is in no queue is unassigned: its GPU is gone, or the plan had no place for it. An idle
GPU takes it.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf

from gpuyard.plan.executor.estimates import Estimates
from gpuyard.plan.executor.work import Work

NOWHERE = -1
TOLERANCE_GB = 1e-9
FAR = 512
"""The number of calls of a queue that are considered to find the next model."""
DEPTH = 12
"""The recursion depth when estimating when a call will be ready."""


class OpKind(Enum):
    """The kinds of operation on a GPU."""

    LOAD = auto()
    UNLOAD = auto()
    CALL = auto()


class CallStatus(Enum):
    """The progress of a call."""

    WAITS = auto()
    RUNS = auto()
    DONE = auto()
    GIVEN_UP = auto()


@dataclass(slots=True)
class Operation:
    """An operation under way on a group of GPUs."""

    number: int
    kind: OpKind
    model: int
    gpus: range
    began_s: float
    ends_s: float
    """The expected end."""
    call: int = NOWHERE
    beside: bool = False
    """The GPUs may run calls meanwhile: a load or an unload by their copy engines."""
    busy_s: float = 0.0
    """The GPU-seconds that the group had run calls when this began."""


@dataclass(slots=True)
class GpuState:
    """One GPU."""

    present: bool = True
    leaves_s: float = inf
    """When a reclaimed GPU must be given back at the latest; nothing new starts on it. `inf`: not reclaimed."""
    holds: dict[int, int] = field(default_factory=dict)
    """The models on this GPU and the first GPU of the group that holds each; the least recently used model first."""
    doing: Operation | None = None
    copying: Operation | None = None
    """A load or an unload beside calls."""
    queue: list[int] = field(default_factory=list)
    busy_s: float = 0.0
    """How long it has run calls that are over."""

    @property
    def usable(self) -> bool:
        """Whether something new may start here."""
        return self.present and self.leaves_s == inf

    @property
    def idle(self) -> bool:
        """Whether something can start here now."""
        return self.doing is None and self.present and self.leaves_s == inf


class ExecutionState:
    """The state that the executor keeps."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.now = 0.0
        self.gpus = [GpuState() for _ in work.speed]
        self.status = [CallStatus.WAITS] * len(work)
        self.missing = [len(before) for before in work.before]
        self.home = [NOWHERE] * len(work)
        self.due_end = [inf] * len(work)
        self.due_start = [inf] * len(work)
        self.running_until: dict[int, float] = {}
        self.unassigned: dict[int, None] = dict.fromkeys(range(len(work)))
        self.banned: set[tuple[int, int]] = set()
        """Pairs of model and group where loading failed too often."""
        self.estimates = Estimates(work)
        self._queued_s: dict[int, float] = {}

    # --- queues -------------------------------------------------------------------------------------------------------

    def allowed(self, model: int, first: int) -> bool:
        """Whether a group may be used for a model, now or when it is free."""
        return (
            first in self.work.firsts[model]
            and (model, first) not in self.banned
            and all(self.gpus[gpu].usable for gpu in self.work.group(model, first))
        )

    def enqueue(self, call: int, first: int, *, at_head: bool = False) -> None:
        """Put a waiting call into the queues of a group."""
        self.unassigned.pop(call, None)
        self.home[call] = first
        for gpu in self.work.group(self.work.model[call], first):
            queue = self.gpus[gpu].queue
            queue.insert(0 if at_head else len(queue), call)
            self._queued_s.pop(gpu, None)

    def dequeue(self, call: int) -> None:
        """Remove a call from all queues, because it starts or becomes unassigned."""
        first = self.home[call]
        self.unassigned.pop(call, None)
        if first == NOWHERE:
            return
        for gpu in self.work.group(self.work.model[call], first):
            queue = self.gpus[gpu].queue
            if call in queue:
                queue.remove(call)
            self._queued_s.pop(gpu, None)
        self.home[call] = NOWHERE

    def unassign(self, call: int) -> None:
        """Remove a call from all queues and mark it as unassigned."""
        self.dequeue(call)
        self.unassigned[call] = None

    # --- times --------------------------------------------------------------------------------------------------------

    def is_ready(self, call: int) -> bool:
        """Whether the call could start at once if it had its GPUs."""
        return (
            self.missing[call] == 0 and self.work.earliest_s[call] <= self.now and self.status[call] is CallStatus.WAITS
        )

    def ready_at(self, call: int, depth: int = DEPTH) -> float:
        """Return when the calls that this one waits for are expected to be done; `inf` if one of them is unassigned."""
        at = max(self.now, self.work.earliest_s[call])
        if not self.missing[call]:
            return at
        for earlier in self.work.before[call]:
            status = self.status[earlier]
            if status is CallStatus.RUNS:
                at = max(at, self.running_until[earlier])
            elif status is CallStatus.WAITS:
                if self.home[earlier] == NOWHERE:
                    return inf
                at = max(at, self.due_end[earlier])
                if depth:
                    at = max(at, self.ready_at(earlier, depth - 1) + self.seconds(earlier, self.home[earlier]))
        return at

    def can_begin_at(self, call: int) -> float:
        """Return when a queued call is expected to be ready with all its GPUs free."""
        at = self.ready_at(call)
        model = self.work.model[call]
        if self.work.preloads:
            copying = self.gpus[self.home[call]].copying
            if copying is not None and copying.kind is OpKind.LOAD and copying.model == model:
                at = max(at, copying.ends_s)
        for gpu in self.work.group(model, self.home[call]) if self.work.width[model] > 1 else ():
            state = self.gpus[gpu]
            if state.doing is not None:
                at = max(at, state.doing.ends_s)
            if state.queue and state.queue[0] != call:
                at = max(at, self.due_start[call])
        return at

    def seconds(self, call: int, first: int) -> float:
        """Return the expected duration of a call on a group."""
        return self.estimates.seconds(call) / self.work.pace(self.work.model[call], first)

    def begins(self, operation: Operation) -> None:
        """Record that an operation starts on its GPUs."""
        for gpu in operation.gpus:
            state = self.gpus[gpu]
            operation.busy_s += self.busy_s(gpu)
            if operation.beside:
                state.copying = operation
            else:
                state.doing = operation
            self._queued_s.pop(gpu, None)

    def ends(self, operation: Operation) -> None:
        """Record that an operation is over."""
        for gpu in operation.gpus:
            state = self.gpus[gpu]
            if operation.beside:
                state.copying = None
            else:
                state.busy_s = self.busy_s(gpu)
                state.doing = None
            self._queued_s.pop(gpu, None)

    def busy_s(self, gpu: int) -> float:
        """Return how long a GPU has run calls so far."""
        state = self.gpus[gpu]
        runs = state.doing is not None and state.doing.kind is OpKind.CALL
        return state.busy_s + (self.now - state.doing.began_s if runs and state.doing is not None else 0.0)

    def free_at(self, gpu: int) -> float:
        """Return when the current operation of a GPU is expected to end."""
        doing = self.gpus[gpu].doing
        return self.now if doing is None else max(self.now, doing.ends_s)

    def queued_until(self, gpu: int) -> float:
        """Return when a GPU is expected to have finished its queue, if it never waits."""
        queued = self._queued_s.get(gpu)
        if queued is None:
            queued = self._queued_s[gpu] = self._length(gpu)
        return self.free_at(gpu) + queued

    def will_hold(self, gpu: int) -> int:
        """Return the model that a GPU will have used or loaded last when it is free; `NOWHERE` for none."""
        state = self.gpus[gpu]
        if state.doing is None:
            return next(reversed(state.holds), NOWHERE)
        if state.doing.kind is OpKind.UNLOAD:
            return next((model for model in reversed(state.holds) if model != state.doing.model), NOWHERE)
        return state.doing.model

    def _length(self, gpu: int) -> float:
        state, work = self.gpus[gpu], self.work
        last = self.will_hold(gpu)
        total = session = 0.0
        for call in state.queue:
            model = work.model[call]
            if model != last and not (work.multi_model and model in state.holds):
                if self._fit_side_by_side(gpu, last, model):
                    total += max(0.0, work.load_s[model] - session) if model not in state.holds else 0.0
                else:
                    total += work.load_s[model] + (work.unload_s[last] if last != NOWHERE else 0.0)
                session = 0.0
            last = model
            seconds = self.seconds(call, self.home[call])
            total += seconds
            session += seconds
        return total

    def _fit_side_by_side(self, gpu: int, one: int, other: int) -> bool:
        """Whether a model may be loaded here while calls of another one run."""
        work = self.work
        if not work.preloads or not work.preloads[other] or one == NOWHERE:
            return False
        return work.memory_gb[one] + work.memory_gb[other] <= work.gpu_memory_gb[gpu] + TOLERANCE_GB

    # --- models -------------------------------------------------------------------------------------------------------

    def in_the_way(self, gpu: int, model: int, first: int) -> int | None:
        """Return a model that must be unloaded before this one can be loaded here, or None."""
        holds = self.gpus[gpu].holds
        if model in holds:
            return model if holds[model] != first else None
        if not holds:
            return None
        if self.may_hold_more(gpu, model) and self.room_gb(gpu) >= self.work.memory_gb[model] - TOLERANCE_GB:
            return None
        return next(iter(holds))

    def may_hold_more(self, gpu: int, model: int) -> bool:
        """Whether a GPU may hold a model beside those that it holds: any number, or a current and a next one."""
        work = self.work
        return work.multi_model or (bool(work.preloads) and work.preloads[model] and len(self.gpus[gpu].holds) < 2)

    def room_gb(self, gpu: int) -> float:
        """Return the free memory of a GPU. A model that is being loaded or unloaded takes its memory until the end."""
        state, work = self.gpus[gpu], self.work
        used = sum(work.memory_gb[held] for held in state.holds)
        if state.copying is not None:
            used += work.memory_gb[state.copying.model]
        return work.gpu_memory_gb[gpu] - used

    def current_model(self, gpu: int) -> int:
        """Return the model of the running call, otherwise the one used or loaded last; `NOWHERE` for none."""
        state = self.gpus[gpu]
        return next(reversed(state.holds), NOWHERE) if state.doing is None else state.doing.model

    def next_model_call(self, gpu: int, current: int) -> int | None:
        """Return the first call of a queue that needs another model than the current one, or None."""
        model = self.work.model
        return next((call for call in self.gpus[gpu].queue[:FAR] if model[call] != current), None)

    def switch_s(self, model: int, first: int) -> float:
        """Return the seconds until a free group holds a model."""
        slowest = 0.0
        for gpu in self.work.group(model, first):
            state = self.gpus[gpu]
            if state.holds.get(model) == first:
                continue
            dropped = self.in_the_way(gpu, model, first)
            freed = 0.0 if dropped is None else self.work.unload_s[dropped]
            slowest = max(slowest, freed + self.work.load_s[model])
        return slowest

    def has_loaded(self, model: int, first: int) -> bool:
        """Whether a group holds a model, as a group."""
        return all(self.gpus[gpu].holds.get(model) == first for gpu in self.work.group(model, first))
