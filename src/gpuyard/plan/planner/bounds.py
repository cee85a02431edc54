"""Lower bounds of the makespan: no plan can be shorter. Each bound comes with its proof.

Every call has a *head*, before which it cannot start (its request arrives, its model is loaded, the calls before it
end), and a *tail*, which must follow its end. For a makespan T it runs within [head, T − tail].

path       The longest head + time + tail. If a call and its successor must share a GPU (the sum of their widths exceeds
           the number of GPUs that could hold them), the switch between their models is added.

area       All the work and all unavoidable loading must fit into G × T. The unavoidable loading is counted as follows.
           Calls of model m with heads ≥ a and tails ≥ b have T − a − b seconds. If their total duration exceeds k − 1
           times that, k of them run at some instant, on k disjoint groups: m was loaded on k × width GPUs. Each load
           but the last of a GPU is followed by an unload. If all GPUs are empty and free at first, each starts with a
           load, waits until the first call of its first model can start, and idles after its last call during the tail
           of that call; an unused GPU is idle for T, which is more. If there are more models than GPUs, some are
           loaded repeatedly (`reloads`): each time m is on no GPU any more and comes back, on `width` GPUs. A smaller T
           requires more loads: the bound is the least T at which everything fits, found by bisection. The same is
           done for each set of GPUs with the models that only fit there.

window     The work of all calls with heads ≥ a and tails ≥ b must fit into G × (T − a − b).

one_gpu    Models that cannot avoid a certain GPU (groups wider than half of all GPUs share the middle one, and a single
           GPU is shared by all) run their calls and loads there one after another.

wide       Only a limited number of groups of w or more GPUs run at once, fewer than G / w if GPUs are left over.

All bounds assume for calls the speed of the fastest group that may run them, and for loads that of the slowest GPU;
with `multi_model` they count no unloads.

With `preload` a load takes no time of the GPU if a call runs beside it. What is left of the bounds above:
  - The first load of a GPU that is empty delays its first call: heads contain it, and so does the wait of a GPU before
    its first call.
  - A model is *alone* if no other called model fits beside it on any GPU. All its loads but the first of a GPU, and all
    its unloads but the last of a GPU, delay calls, and count as without `preload`. Those of other models count nothing.
  - Calls that must share a GPU have a switch between them only if their models do not fit side by side anywhere.
  - The copy engines are bound as well: `area` also requires that all loads together fit into G × T, and that after its
    last load a GPU runs at least one call.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpuyard.plan.planner.problem import EMPTY, Flags, Floats, Ints, Problem
from gpuyard.plan.planner.reloads import reload_seconds

CUTS = 12
"""The number of heads and of tails for which windows are computed."""


@dataclass(frozen=True, slots=True)
class LowerBound:
    """A lower bound of the makespan, and which bound it is."""

    seconds: float
    reason: str


def lower_bound(problem: Problem) -> LowerBound:
    """Return the largest of all bounds."""
    found = bounds(problem)
    reason = max(found, key=lambda name: found[name])
    return LowerBound(found[reason], reason)


def bounds(problem: Problem) -> dict[str, float]:
    """Return every bound by its name."""
    if not len(problem.calls):
        return {"path": 0.0}
    inputs = _Inputs(problem)
    path = float((inputs.head + inputs.seconds + inputs.tail).max())
    return {
        "path": path,
        "area": max(_area(inputs, on, path) for on in _places(inputs)),
        "window": _window(inputs),
        "one_gpu": _one_gpu(inputs),
        "wide": _wide(inputs),
    }


class _Inputs:
    """The quantities that all bounds are computed from."""

    def __init__(self, problem: Problem) -> None:
        from gpuyard.plan.planner.compiled.paths import heads_and_tails
        from gpuyard.plan.planner.compiled.timing import ranks

        self.problem = problem
        self.calls = problem.calls
        self.width = problem.width
        self.models = len(problem.models)
        self.used = np.bincount(self.calls.model, minlength=self.models) > 0
        may_begin = problem.may_begin & self.used[:, None]
        self.may_begin = may_begin
        self.unload = np.zeros(self.models) if problem.multi_model else np.array([m.unload_s for m in problem.models])  # fmt: skip
        self.beside = self._side_by_side() if problem.preload else np.zeros((self.models, self.models), dtype=np.bool_)
        """`beside[a, b]`: some GPU may load b while it runs calls of a."""
        hidden = self.beside.any(axis=0)
        self.load_counted: Floats = np.where(hidden, 0.0, problem.load)
        """The seconds of a load in which its GPU can run no call, unless it is the first of the GPU."""
        self.unload_counted: Floats = np.where(hidden, 0.0, self.unload)
        speed = np.where(may_begin, problem.group_speed, 0.0).max(axis=1)
        self.seconds: Floats = self.calls.seconds / np.where(speed > 0, speed, 1.0)[self.calls.model]
        """The durations at the best speed."""
        order = np.argsort(ranks(self.calls.before_at, self.calls.after_at, self.calls.after)).astype(np.int32)
        earliest = np.maximum(self.calls.earliest_s, self.ready[self.calls.model])
        self.head, self.tail = heads_and_tails(
            order, self.calls.before_at, self.calls.before, self.calls.model, self.seconds, earliest, self._delays()
        )

    @cached_property
    def ready(self) -> Floats:
        """When each model can first be loaded on a group of GPUs that may hold it."""
        problem = self.problem
        ready = np.zeros(self.models)
        held = problem.held_first
        for m in np.flatnonzero(self.used).tolist():
            before = np.append(np.where(self.beside[:, m], 0.0, self.unload), 0.0)[held]
            change = np.where(held == m, 0.0, problem.load[m] + before)
            on_gpu = problem.free_first + change
            groups = np.lib.stride_tricks.sliding_window_view(on_gpu, int(self.width[m])).max(axis=1)
            ready[m] = groups[self.may_begin[m, : len(groups)]].min()
        return ready

    @cached_property
    def may_hold(self) -> Flags:
        """`may_hold[m, g]`: GPU g is in a group that may run model m."""
        held = np.zeros_like(self.may_begin)
        for m in range(self.models):
            for k in range(int(self.width[m])):
                held[m, k:] |= self.may_begin[m, : self.may_begin.shape[1] - k]
        return held

    def _side_by_side(self) -> Flags:
        memory = np.array([gpu.memory_gb for gpu in self.problem.gpus], dtype=np.float64)
        size = np.array([model.memory_gb for model in self.problem.models])
        most = np.zeros((self.models, self.models))
        for m in range(self.models):
            for other in range(self.models):
                where = self.may_hold[m] & self.may_hold[other]
                most[m, other] = memory[where].max(initial=-np.inf)
        # A model that a GPU holds at first may be one that no call needs.
        held = np.unique(self.problem.held_first)
        some = self.used.copy()
        some[held[held != EMPTY]] = True
        most[~some] = -np.inf
        for m in held[held != EMPTY].tolist():
            most[m] = np.maximum(most[m], memory.max())
        fits: Flags = size[:, None] + size[None, :] <= most + 1e-6
        np.fill_diagonal(fits, val=False)
        return fits

    def _delays(self) -> Floats:
        """The switch time between calls of two models that must share a GPU, otherwise 0."""
        delay = np.zeros((self.models, self.models))
        if self.problem.multi_model:
            return delay
        for a in np.flatnonzero(self.used).tolist():
            for b in np.flatnonzero(self.used).tolist():
                room = int((self.may_hold[a] | self.may_hold[b]).sum())
                if a != b and self.width[a] + self.width[b] > room and not self.beside[a, b]:
                    delay[a, b] = self.problem.switch[a, b]
        return delay


# --- area -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """A set of GPUs, and the models that can only run there."""

    gpus: Ints
    models: Ints


def _places(inputs: _Inputs) -> list[_Place]:
    """Return all GPUs with all models, and each set of GPUs that is the only one for some model."""
    used = np.flatnonzero(inputs.used)
    sets = {inputs.may_hold[m].tobytes(): inputs.may_hold[m] for m in used.tolist()}
    everywhere = np.ones(len(inputs.problem.gpus), dtype=np.bool_)
    sets[everywhere.tobytes()] = everywhere
    return [
        _Place(
            np.flatnonzero(gpus).astype(np.int32),
            used[~(inputs.may_hold[used] & ~gpus).any(axis=1)].astype(np.int32),
        )
        for gpus in sets.values()
    ]


def _area(inputs: _Inputs, place: _Place, least: float) -> float:
    """Return the least makespan at which the work and the loads of these models fit onto these GPUs."""
    problem = inputs.problem
    speed, free = problem.speed[place.gpus], problem.free_first[place.gpus]
    chosen = np.isin(inputs.calls.model, place.models)
    work = float((inputs.calls.seconds * inputs.width[inputs.calls.model])[chosen].sum())
    sessions = _Sessions(inputs, place)
    slowest = float(speed.min())

    def fits(makespan: float) -> bool:
        loads = sessions.least_seconds(makespan)
        left = np.maximum(makespan - free, 0.0)
        if loads == np.inf or (problem.preload and sessions.least_copying(makespan) > float(left.sum())):
            return False
        return work + slowest * loads <= float((speed * left).sum())

    low, high = 0.0, max(least, 1.0)
    while not fits(high):
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if middle in {low, high}:
            break
        if fits(middle):
            high = middle
        else:
            low = middle
    return low


class _Sessions:
    """The least time that GPUs spend loading, unloading and idling around their calls, for a given makespan."""

    def __init__(self, inputs: _Inputs, place: _Place) -> None:
        problem = inputs.problem
        self._width = inputs.width[place.models]
        self._windows = [_windows_of(inputs, m) for m in place.models.tolist()]
        self._load = inputs.load_counted[place.models]
        self._unload = inputs.unload_counted[place.models]
        self._every_load = problem.load[place.models]
        self._gpus = len(place.gpus)
        held = problem.held_first[place.gpus]
        self._held = np.array([int((held == m).sum()) for m in place.models])
        heads = np.array([inputs.head[inputs.calls.model == m].min() for m in place.models])
        self._fresh = bool((held == EMPTY).all()) and not problem.free_first[place.gpus].any()
        """Whether all GPUs are empty and free at first: each then loads and waits, or is idle for the makespan."""
        self._waits = np.maximum(heads - self._load, 0.0)
        """The time that a fresh GPU with this model first is idle, besides loading it."""
        everything = self._gpus == len(problem.gpus)
        cost = (inputs.width * (inputs.load_counted + inputs.unload_counted)).tolist()
        self._again = reload_seconds(problem, cost) if everything else 0.0
        """GPU-seconds of repeated loads, because there are fewer GPUs than models."""
        self._rest = np.array([inputs.tail[inputs.calls.model == m].min() for m in place.models])
        """The time that a GPU with this model last is idle after it."""
        least = [inputs.seconds[inputs.calls.model == m].min() for m in place.models]
        self._after_loads = (
            float((self._rest + least).min(initial=np.inf)) if len(place.models) and self._fresh else 0.0
        )
        """The time after the last load of a GPU: one call, and what follows it."""

    def least_copying(self, makespan: float) -> float:
        """Return the least seconds of loading, one load after another on each GPU, and of the calls after the last."""
        needed = self._width * np.array([_at_once(windows, makespan) for windows in self._windows])
        loads = np.maximum(needed - self._held, 0.0)
        return float((loads * self._every_load).sum()) + self._gpus * min(self._after_loads, makespan)

    def least_seconds(self, makespan: float) -> float:
        """Return those seconds; infinite if a call has no room at all or a model needs more GPUs than there are."""
        needed = self._width * np.array([_at_once(windows, makespan) for windows in self._windows])
        if (needed > self._gpus).any():
            return float("inf")
        holders = needed.astype(np.int32)
        """The number of GPUs that hold each model at some time."""
        loads = np.maximum(holders - self._held, 0)
        seconds = float((loads * (self._load + self._unload)).sum())
        if not self._fresh:
            # A model that a GPU holds at first may stay, and a GPU that is busy until the end need not unload. So only
            # assume that at most one load per GPU is not unloaded.
            kept = np.sort(np.repeat(self._unload, loads))[::-1][: self._gpus]
            return seconds - float(kept.sum())
        # A load beyond those needed is charged half to the GPU that starts with it, half to the one that ends with it.
        more = (self._load + self._unload) / 2
        first = _cheapest(holders, self._waits, self._waits + more, self._gpus)
        last = _cheapest(holders, self._rest - self._unload, self._rest - self._unload + more, self._gpus)
        if not self._again:
            return seconds + first + last
        # The additional loads may be of any model, so a GPU may start and end with any.
        with_more = self._again + self._gpus * float(self._waits.min() + (self._rest - self._unload).min())
        return seconds + max(first + last, with_more)


def _cheapest(counts: Ints, within: Floats, beyond: Floats, take: int) -> float:
    """Return the least sum of `take` pieces: up to `counts` of each kind at `within`, any number at `beyond`."""
    kinds = np.argsort(within, kind="stable")
    cap, total = float(beyond.min()), 0.0
    for kind in kinds.tolist():
        if within[kind] >= cap or not take:
            break
        taken = min(take, int(counts[kind]))
        total += taken * float(within[kind])
        take -= taken
    return total + take * cap


@dataclass(frozen=True, slots=True)
class _Windows:
    """For pairs of a least head and a least tail: the total seconds of the calls above both, and the time cut off T."""

    seconds: Floats
    cut_off: Floats


def _windows_of(inputs: _Inputs, model: int) -> _Windows:
    chosen = np.flatnonzero(inputs.calls.model == model)
    return _windows(inputs.head[chosen], inputs.tail[chosen], inputs.seconds[chosen])


def _windows(head: Floats, tail: Floats, weight: Floats) -> _Windows:
    """Compute the windows for the least head and some larger ones, and for tails likewise."""
    heads, tails = _cuts(head), _cuts(tail)
    row = np.searchsorted(heads, head, side="right") - 1
    column = np.searchsorted(tails, tail, side="right") - 1
    cells = np.bincount(row * len(tails) + column, weight, minlength=len(heads) * len(tails))
    table = cells.reshape(len(heads), len(tails))
    sums = table[::-1, ::-1].cumsum(axis=0).cumsum(axis=1)[::-1, ::-1]
    return _Windows(sums.ravel(), (heads[:, None] + tails[None, :]).ravel())


def _cuts(values: Floats) -> Floats:
    cuts: Floats = np.unique(np.quantile(values, np.linspace(0.0, 1.0, CUTS), method="lower"))
    return cuts


def _at_once(windows: _Windows, makespan: float) -> float:
    """Return how many calls of the model must run at some instant."""
    room = makespan - windows.cut_off
    some = windows.seconds > 0
    if (room[some] <= 0).any():
        return float("inf")
    # The tolerance keeps rounding errors from adding a call: the bound must never be too large.
    counts = np.ceil(windows.seconds[some] / room[some] - 1e-9)
    return float(max(1.0, counts.max())) if len(counts) else 1.0


# --- other bounds -----------------------------------------------------------------------------------------------------


def _window(inputs: _Inputs) -> float:
    work = inputs.calls.seconds * inputs.width[inputs.calls.model]
    windows = _windows(inputs.head, inputs.tail, work)
    return float((windows.cut_off + windows.seconds / inputs.problem.speed.sum())[windows.seconds > 0].max(initial=0.0))


def _one_gpu(inputs: _Inputs) -> float:
    """Return the bound of the GPU with the most work that cannot go elsewhere."""
    gpus = np.arange(len(inputs.problem.gpus))
    work: Floats = np.bincount(inputs.calls.model, inputs.seconds, minlength=inputs.models).astype(np.float64)
    best = 0.0
    for g in gpus.tolist():
        bound = [
            m
            for m in np.flatnonzero(inputs.used).tolist()
            if (starts := np.flatnonzero(inputs.may_begin[m]))[-1] <= g < starts[0] + inputs.width[m]
        ]
        if bound:
            best = max(best, _one_after_another(inputs, g, bound, work))
    return best


def _one_after_another(inputs: _Inputs, gpu: int, models: list[int], work: Floats) -> float:
    loads = [inputs.load_counted[m] for m in models if inputs.problem.held_first[gpu] != m]
    unloads = [inputs.unload_counted[m] for m in models]
    seconds = sum(work[m] for m in models) + sum(loads) + sum(unloads) - max(unloads)
    chosen = np.isin(inputs.calls.model, models)
    begin = float(inputs.problem.free_first[gpu])
    if inputs.problem.preload:  # the first load is counted in the first head only, unless the model is alone
        begin = max(begin, float(inputs.head[chosen].min()) - max(loads, default=0.0))
    return float(begin + seconds + inputs.tail[chosen].min())


def _wide(inputs: _Inputs) -> float:
    best = 0.0
    for width in np.unique(inputs.width[inputs.used]).tolist():
        models = np.flatnonzero(inputs.used & (inputs.width >= width))
        where = inputs.may_hold[models].any(axis=0)
        runs = np.diff(np.flatnonzero(np.diff(np.concatenate(([False], where, [False])).astype(np.int8)) != 0))[::2]
        beside = int((runs // width).sum())
        chosen = np.isin(inputs.calls.model, models)
        head, tail = float(inputs.head[chosen].min()), float(inputs.tail[chosen].min())
        best = max(best, head + float(inputs.seconds[chosen].sum()) / beside + tail)
    return best
