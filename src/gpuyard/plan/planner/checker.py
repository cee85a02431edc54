"""The independent checker: tests whether a plan keeps every rule, with a tolerance of a microsecond.

It shares no code with the strategies, the measures or the bounds. It reads the problem as written (models, GPUs,
dependencies) and only the times of the plan. The rules:

1. Every call runs once, on adjacent GPUs that exist and have the memory its model needs.
2. It takes its duration divided by the speed of the slowest GPU of the group, at the call's power level.
3. It does not start before its request arrives, nor before every call it depends on has ended.
4. A GPU runs one call at a time. Before a call whose model it does not hold, it is free long enough to unload the
   models that must go and to load the new one. The first load counts, unless the problem says what the GPU holds.
   Calls run by start, then by end, then in the order of the problem: calls of no length may start at the same instant.
   With `multi_model` a GPU keeps models as long as its memory suffices and evicts the least recently used first.
5. With `preload` a GPU also loads and unloads while it runs calls, one model at a time, in the order of its calls, and
   only the model that its calls need next. At no instant do the models on it, those that come and go included, need
   more memory than it has. The plan does not say when models are loaded: as early as these rules allow.

The checks are vectorized over columns: a million calls take seconds.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import EMPTY, Flags, Floats, Ints, Level, Problem

TOLERANCE_S: Final = 1e-6
TOLERANCE_GB: Final = 1e-9


def check(problem: Problem, plan: Plan, *, at_most: int = 5) -> list[str]:
    """Return the first `at_most` violations as sentences, and one that counts the rest; empty: the plan is valid."""
    said = _Sentences(problem, at_most)
    count = len(problem.calls)
    if {len(plan.gpu), len(plan.start), len(plan.end)} | {len(plan.level) if plan.level is not None else count} != {
        count
    }:
        return [f"The plan has {len(plan.gpu)} calls, the problem {count}."]
    if not count:
        return []
    width = np.array([model.gpus for model in problem.models])[problem.calls.model]
    _finite(said, plan)
    if said.count or not _on_gpus(said, problem, plan, width):
        return said.all()
    _memory(said, problem, plan, width)
    _lasts(said, problem, plan, width)
    _after_what_it_needs(said, problem, plan)
    _one_at_a_time(said, problem, plan, width)
    return said.all()


class _Sentences:
    """Collects the first few violations as sentences and counts all of them."""

    def __init__(self, problem: Problem, at_most: int) -> None:
        self.count = 0
        self._problem, self._at_most = problem, at_most
        self._said: list[str] = []

    def add(self, calls: Ints, sentence: Callable[[int, int], str]) -> None:
        """Record violations of these calls. `sentence(index, call)` returns the text without the name of the call."""
        for place in range(min(len(calls), self._at_most - len(self._said))):
            call = int(calls[place])
            self._said.append(f"{self._problem.name_of(call)} {sentence(place, call)}")
        self.count += len(calls)

    def all(self) -> list[str]:
        more = self.count - len(self._said)
        return [*self._said, f"And {more:,} more."] if more else self._said


def _finite(said: _Sentences, plan: Plan) -> None:
    wrong = ~(np.isfinite(plan.start) & np.isfinite(plan.end))
    said.add(_where(wrong), lambda _, call: f"runs from {plan.start[call]} to {plan.end[call]} s.")


def _on_gpus(said: _Sentences, problem: Problem, plan: Plan, width: Ints) -> bool:
    wrong = (plan.gpu < 0) | (plan.gpu + width > len(problem.gpus))
    said.add(
        _where(wrong),
        lambda _, call: (
            f"is planned on {width[call]} GPUs beginning with number {plan.gpu[call]}; there are {len(problem.gpus)}."
        ),
    )
    return not wrong.any()


def _least_of_groups(of_gpus: Floats, width: int) -> Floats:
    """For each GPU, the minimum over it and the `width - 1` GPUs after it; NaN if the row of GPUs ends before that."""
    least = np.full(len(of_gpus), np.nan)
    if width <= len(of_gpus):
        groups = np.lib.stride_tricks.sliding_window_view(of_gpus, width)
        least[: len(groups)] = groups.min(axis=1)
    return least


def _per_call(of_gpus: Floats, plan: Plan, width: Ints) -> Floats:
    """The minimum over the group of each call."""
    least = np.empty(len(width))
    for size in np.unique(width).tolist():
        chosen = width == size
        least[chosen] = _least_of_groups(of_gpus, size)[plan.gpu[chosen]]
    return least


def _memory(said: _Sentences, problem: Problem, plan: Plan, width: Ints) -> None:
    has = _per_call(np.array([gpu.memory_gb for gpu in problem.gpus]), plan, width)
    needs = np.array([model.memory_gb for model in problem.models])[problem.calls.model]
    said.add(
        _where(has < needs),
        lambda _, call: (
            f"needs {needs[call]:g} GB on each GPU; GPU {plan.gpu[call]} or one next to it has {has[call]:g} GB."
        ),
    )


def _lasts(said: _Sentences, problem: Problem, plan: Plan, width: Ints) -> None:
    level = plan.level if plan.level is not None else np.zeros(len(width), dtype=np.int32)
    speed = np.full(len(width), np.nan)
    for number in np.unique(level).tolist():
        of_gpus = [gpu.speed * _level_speed(gpu.levels, number) for gpu in problem.gpus]
        chosen = level == number
        # The slowest speed is NaN if one GPU of the group does not have the level.
        speed[chosen] = _per_call(np.array(of_gpus), plan, width)[chosen]
        for model, of_model in enumerate(problem.models):
            if number < len(of_model.levels):
                its = chosen & (problem.calls.model == model) & ~np.isnan(speed)
                own = np.array([gpu.speed * of_model.levels[number].speed for gpu in problem.gpus])
                speed[its] = _per_call(own, plan, width)[its]
    said.add(
        _where(np.isnan(speed)),
        lambda _, call: (
            f"is planned at power level {level[call]}, which GPU {plan.gpu[call]} or one next to it does not have."
        ),
    )
    should = problem.calls.seconds / speed
    said.add(
        _where(np.abs(plan.end - plan.start - should) > TOLERANCE_S),
        lambda _, call: (
            f"takes {should[call]:.6f} s there, but is planned for {plan.end[call] - plan.start[call]:.6f} s."
        ),
    )


def _level_speed(levels: tuple[Level, ...], number: int) -> float:
    if not levels and number == 0:
        return 1.0
    return levels[number].speed if 0 <= number < len(levels) else np.nan


def _after_what_it_needs(said: _Sentences, problem: Problem, plan: Plan) -> None:
    earliest = np.maximum(problem.calls.earliest_s, 0.0)
    said.add(
        _where(plan.start < earliest - TOLERANCE_S),
        lambda _, call: f"starts at {plan.start[call]:.6f} s, before its request arrives at {earliest[call]:.6f} s.",
    )
    later = np.repeat(np.arange(len(plan.start)), np.diff(problem.calls.before_at))
    earlier = problem.calls.before
    broken = _where(plan.start[later] < plan.end[earlier] - TOLERANCE_S)
    said.add(
        later[broken].astype(np.int32),
        lambda place, call: (
            f"starts at {plan.start[call]:.6f} s, before "
            f"{problem.name_of(int(earlier[broken[place]]))} has ended at "
            f"{plan.end[earlier[broken[place]]]:.6f} s."
        ),
    )


def _one_at_a_time(said: _Sentences, problem: Problem, plan: Plan, width: Ints) -> None:
    """Check for each GPU, with its calls by start, that it is free long enough before each call."""
    call = np.repeat(np.arange(len(width)), width)
    begins = np.concatenate(([0], np.cumsum(width)[:-1]))
    gpu = plan.gpu[call] + np.arange(len(call)) - begins[call]
    order = np.lexsort((plan.end[call], plan.start[call], gpu))
    call, gpu = call[order], gpu[order]
    first = np.concatenate(([True], gpu[1:] != gpu[:-1]))
    previous = np.concatenate(([0], call[:-1]))
    busy = problem.busy_until_s if problem.busy_until_s is not None else np.zeros(len(problem.gpus))
    free_from = np.where(first, busy[gpu], plan.end[previous])
    model = problem.calls.model[call]
    if problem.preload:
        ready = _preloaded(problem, gpu, model, first, free_from)
        needs = np.maximum(ready - free_from, 0.0)
    elif problem.multi_model:
        needs = _changes_with_many(problem, gpu, model, first)
    else:
        needs = _changes(problem, gpu, model, first)
    late = _where(plan.start[call] < free_from + needs - TOLERANCE_S)

    def sentence(place: int, of: int) -> str:
        at = late[place]
        earlier = "it is free" if first[at] else f"{problem.name_of(int(previous[at]))} ends"
        until = f"{earlier} at {free_from[at]:.6f} s"
        load = f" and {needs[at]:.6f} s to change the model" if needs[at] else ""
        return f"starts at {plan.start[of]:.6f} s on GPU {gpu[at]}, before {until}{load}."

    said.add(call[late].astype(np.int32), sentence)


def _changes(problem: Problem, gpu: Ints, model: Ints, first: Flags) -> Floats:
    """Seconds to change the model before each call, for GPUs that hold one model."""
    load = np.array([m.load_s for m in problem.models])
    unload = np.array([*(m.unload_s for m in problem.models), 0.0])  # the last entry is for an empty GPU
    at_first = problem.holding if problem.holding is not None else np.full(len(problem.gpus), EMPTY)
    held = np.where(first, at_first[gpu], np.concatenate(([EMPTY], model[:-1])))
    return np.where(held == model, 0.0, unload[held] + load[model])


def _changes_with_many(problem: Problem, gpu: Ints, model: Ints, first: Flags) -> Floats:
    """Seconds to change the model before each call, for GPUs that hold several. Visits only changes of model."""
    needs = np.zeros(len(model))
    changes = first | np.concatenate(([True], model[1:] != model[:-1]))
    held: dict[int, float] = {}
    """Models on the GPU and their memory, the most recently used one last."""
    for at in _where(changes).tolist():
        if first[at]:
            begins_with = EMPTY if problem.holding is None else int(problem.holding[gpu[at]])
            held = {} if begins_with == EMPTY else {begins_with: problem.models[begins_with].memory_gb}
        number = int(model[at])
        if number in held:
            held[number] = held.pop(number)
            continue
        new, memory = problem.models[number], problem.gpus[gpu[at]].memory_gb
        while held and sum(held.values()) + new.memory_gb > memory + TOLERANCE_GB:
            oldest = next(iter(held))
            del held[oldest]
            needs[at] += problem.models[oldest].unload_s
        needs[at] += new.load_s
        held[number] = new.memory_gb
    return needs


class _CopyEngine:
    """A GPU that loads and unloads while it runs calls. Its memory is a list of changes in time, all of them counted.

    The model of the current session cannot go before the session ends, and a load begins only when the session before
    the current one is over. So a model is on the GPU from the begin of its load to the end of its unload.
    """

    def __init__(self, problem: Problem, gpu: int, at: float) -> None:
        self._models, self._room = problem.models, problem.gpus[gpu].memory_gb
        self._keeps = problem.multi_model
        self.largest_gb = 0.0
        """The memory of the largest model that was on the GPU."""
        self._busy_until = at
        self._may_copy_from = at
        self._changes: list[tuple[float, float]] = []
        """Instants and GB: positive when a load begins, negative when an unload has ended."""
        self._held: dict[int, None] = {}
        """The models on the GPU, the least recently used first; the last one is that of the current session."""

    def begin_with(self, model: int) -> None:
        """Hold a model from the start."""
        self._held[model] = None
        self._changes.append((-np.inf, self._models[model].memory_gb))
        self.largest_gb = self._models[model].memory_gb

    def next_session(self, model: int, ended: float) -> float:
        """Return when the model is on the GPU, whose current session has ended then."""
        if model not in self._held:
            self._make_room(model, ended)
            begins = max(self._busy_until, self._may_copy_from)
            self._changes.append((begins, self._models[model].memory_gb))
            self.largest_gb = max(self.largest_gb, self._models[model].memory_gb)
            self._busy_until = begins + self._models[model].load_s
        ready = max(self._busy_until, ended) if model not in self._held else ended
        self._may_copy_from = ready
        if not self._keeps:
            for old in [old for old in self._held if old != model]:
                self._unload(old, max(self._busy_until, ended))
        self._held.pop(model, None)
        self._held[model] = None
        return ready

    def _make_room(self, model: int, ended: float) -> None:
        wanted = self._models[model].memory_gb
        while self._held and sum(self._models[m].memory_gb for m in self._held) + wanted > self._room + TOLERANCE_GB:
            oldest = next(iter(self._held))
            current = len(self._held) == 1
            self._unload(oldest, max(self._busy_until, self._may_copy_from, ended if current else 0.0))
        if not self._held:
            self._may_copy_from = max(self._may_copy_from, ended)

    def _unload(self, model: int, begins: float) -> None:
        del self._held[model]
        self._busy_until = begins + self._models[model].unload_s
        self._changes.append((self._busy_until, -self._models[model].memory_gb))

    def most_gb(self) -> float:
        """Return the most memory that is needed at any instant; what goes at an instant makes room for what comes."""
        most = used = 0.0
        for _, change in sorted(self._changes):
            used += change
            most = max(most, used)
        return most


def _preloaded(problem: Problem, gpu: Ints, model: Ints, first: Flags, free_from: Floats) -> Floats:
    """When the model of each call is on its GPU, for GPUs that load while they run calls. Visits changes of model."""
    ready = free_from.copy()
    changes = first | np.concatenate(([True], model[1:] != model[:-1]))
    engine: _CopyEngine | None = None
    for at in _where(changes).tolist():
        if first[at]:
            _assert_fits(engine, problem, int(gpu[at - 1]))
            engine = _CopyEngine(problem, int(gpu[at]), float(free_from[at]))
            if problem.holding is not None and problem.holding[gpu[at]] != EMPTY:
                engine.begin_with(int(problem.holding[gpu[at]]))
        assert engine is not None
        ready[at] = engine.next_session(int(model[at]), float(free_from[at]))
    _assert_fits(engine, problem, int(gpu[-1]))
    return ready


def _assert_fits(engine: _CopyEngine | None, problem: Problem, gpu: int) -> None:
    """The loads that were derived fit at every instant, by their sum in time; otherwise the derivation is wrong.

    A model that does not fit even alone is a fault of the plan, about which `_memory` has a sentence.
    """
    if engine is None:
        return
    room = max(problem.gpus[gpu].memory_gb, engine.largest_gb)
    assert engine.most_gb() <= room + 1e-6, "models exceed the memory"


def _where(wrong: Flags) -> Ints:
    return np.flatnonzero(wrong).astype(np.int32)
