"""What no plan can beat: lower bounds of the makespan, each a proof.

Every call has a *head*, before which it can not begin (its request comes, its model is loaded, the calls before it have
ended), and a *tail*, which has to follow its end. For a makespan T it runs within [head, T − tail].

path       The longest head + time + tail. Where a call and the next can not but share a GPU (their widths together are
           more than the GPUs that could hold them) the change of the model stands between them.

area       All the work, and all the loading that no plan can avoid, has to fit into G × T. How much loading is that?
           Calls of model m with heads ≥ a and tails ≥ b have T − a − b seconds, so when they take k times as long or a
           bit less, k of them run at some instant, on k groups that have nothing in common: m was loaded on k × width
           GPUs. Each load but the last of a GPU is followed by an unload. Where all GPUs are empty and free at first, each
           begins with a load and waits until its first model's first call can begin, and rests behind its last call while
           others have to follow that; a GPU that is never used is idle for T, which is more. Where models are more than
           GPUs, some are loaded again and again (`reloads`): each time m is on no GPU any more and comes back, on `width`
           GPUs. The less T, the more loads: the least T at which everything fits is the bound, found by bisection. The
           same for the models that only fit on some of the GPUs, on those GPUs.

window     The work of all calls with heads ≥ a and tails ≥ b has to fit into G × (T − a − b).

one_gpu    Models that can not avoid a certain GPU (groups wider than half of all have the middle one in common, and with
           one GPU there is only that) share it: their calls and loads are one after another.

wide       Of groups of w or more GPUs only so many run beside each other, fewer than G / w where GPUs are left over.

All bounds count calls at the speed of the fastest group that may run them and loads at the slowest GPU's; with
`many_residents` they count no unloads.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpuyard.plan.planner.problem import EMPTY, Flags, Floats, Ints, Problem
from gpuyard.plan.planner.reloads import reload_seconds

CUTS = 12
"""Windows are looked at for so many heads and as many tails."""


@dataclass(frozen=True, slots=True)
class LowerBound:
    """A makespan that no plan is below, and the reason."""

    seconds: float
    reason: str


def lower_bound(problem: Problem) -> LowerBound:
    """The best of all."""
    found = bounds(problem)
    reason = max(found, key=lambda name: found[name])
    return LowerBound(found[reason], reason)


def bounds(problem: Problem) -> dict[str, float]:
    """Every bound by its name."""
    if not len(problem.calls):
        return {"path": 0.0}
    facts = _Facts(problem)
    path = float((facts.head + facts.seconds + facts.tail).max())
    return {
        "path": path,
        "area": max(_area(facts, on, path) for on in _places(facts)),
        "window": _window(facts),
        "one_gpu": _one_gpu(facts),
        "wide": _wide(facts),
    }


class _Facts:
    """What all bounds rest on."""

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
        self.unload = np.zeros(self.models) if problem.many_residents else np.array([m.unload_s for m in problem.models])  # fmt: skip
        speed = np.where(may_begin, problem.group_speed, 0.0).max(axis=1)
        self.seconds: Floats = self.calls.seconds / np.where(speed > 0, speed, 1.0)[self.calls.model]
        """At the best speed."""
        order = np.argsort(ranks(self.calls.before_at, self.calls.after_at, self.calls.after)).astype(np.int32)
        earliest = np.maximum(self.calls.earliest_s, self.ready[self.calls.model])
        self.head, self.tail = heads_and_tails(
            order, self.calls.before_at, self.calls.before, self.calls.model, self.seconds, earliest, self._delays()
        )

    @cached_property
    def ready(self) -> Floats:
        """When each model can first be on a group of GPUs that may hold it."""
        problem = self.problem
        ready = np.zeros(self.models)
        held = problem.held_first
        for m in np.flatnonzero(self.used).tolist():
            change = np.where(held == m, 0.0, problem.load[m] + np.append(self.unload, 0.0)[held])
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

    def _delays(self) -> Floats:
        """Between calls of two models that can not but share a GPU: its change."""
        delay = np.zeros((self.models, self.models))
        if self.problem.many_residents:
            return delay
        for a in np.flatnonzero(self.used).tolist():
            for b in np.flatnonzero(self.used).tolist():
                room = int((self.may_hold[a] | self.may_hold[b]).sum())
                if a != b and self.width[a] + self.width[b] > room:
                    delay[a, b] = self.problem.switch[a, b]
        return delay


# --- area -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """GPUs, and the models that can run nowhere else."""

    gpus: Ints
    models: Ints


def _places(facts: _Facts) -> list[_Place]:
    """All GPUs with all models, and each set of GPUs that is all there is for some model."""
    used = np.flatnonzero(facts.used)
    sets = {facts.may_hold[m].tobytes(): facts.may_hold[m] for m in used.tolist()}
    everywhere = np.ones(len(facts.problem.gpus), dtype=np.bool_)
    sets[everywhere.tobytes()] = everywhere
    return [
        _Place(
            np.flatnonzero(gpus).astype(np.int32),
            used[~(facts.may_hold[used] & ~gpus).any(axis=1)].astype(np.int32),
        )
        for gpus in sets.values()
    ]


def _area(facts: _Facts, place: _Place, least: float) -> float:
    """The least makespan at which work and loads of these models fit onto these GPUs."""
    problem = facts.problem
    speed, free = problem.speed[place.gpus], problem.free_first[place.gpus]
    chosen = np.isin(facts.calls.model, place.models)
    work = float((facts.calls.seconds * facts.width[facts.calls.model])[chosen].sum())
    sessions = _Sessions(facts, place)
    slowest = float(speed.min())

    def fits(makespan: float) -> bool:
        loads = sessions.least_seconds(makespan)
        return work + slowest * loads <= float((speed * np.maximum(makespan - free, 0.0)).sum())

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
    """How long GPUs load, unload and wait for their first call at least, for a makespan."""

    def __init__(self, facts: _Facts, place: _Place) -> None:
        problem = facts.problem
        self._width = facts.width[place.models]
        self._windows = [_windows_of(facts, m) for m in place.models.tolist()]
        self._load = problem.load[place.models]
        self._unload = facts.unload[place.models]
        self._gpus = len(place.gpus)
        held = problem.held_first[place.gpus]
        self._held = np.array([int((held == m).sum()) for m in place.models])
        heads = np.array([facts.head[facts.calls.model == m].min() for m in place.models])
        self._fresh = bool((held == EMPTY).all()) and not problem.free_first[place.gpus].any()
        """Every GPU is empty and free at once: each is loaded and waited for, or idle for the whole of the makespan."""
        self._waits = np.maximum(heads - self._load, 0.0)
        """A fresh GPU that gets this model first is idle for so long beside loading it."""
        everything = self._gpus == len(problem.gpus)
        cost = (facts.width * (problem.load + facts.unload)).tolist()
        self._again = reload_seconds(problem, cost) if everything else 0.0
        """For models that have to be loaded again, because GPUs are fewer than models."""
        self._rest = np.array([facts.tail[facts.calls.model == m].min() for m in place.models])
        """A GPU that has this model last is idle for so long behind it."""

    def least_seconds(self, makespan: float) -> float:
        """Infinite where some call has no room at all, or some model would have to be on more GPUs than there are."""
        needed = self._width * np.array([_at_once(windows, makespan) for windows in self._windows])
        if (needed > self._gpus).any():
            return float("inf")
        holders = needed.astype(np.int32)
        """GPUs that have each model on them at some time."""
        loads = np.maximum(holders - self._held, 0)
        seconds = float((loads * (self._load + self._unload)).sum())
        if not self._fresh:
            # What is on a GPU at first may stay, and one that is busy until the end owes nothing: only count that at most
            # one load a GPU is not unloaded.
            kept = np.sort(np.repeat(self._unload, loads))[::-1][: self._gpus]
            return seconds - float(kept.sum())
        # A load more than needed is charged half to the GPU that begins with it, half to the one that ends with it.
        more = (self._load + self._unload) / 2
        first = _cheapest(holders, self._waits, self._waits + more, self._gpus)
        last = _cheapest(holders, self._rest - self._unload, self._rest - self._unload + more, self._gpus)
        if not self._again:
            return seconds + first + last
        # Loads that come on top may be of any model, so a GPU may begin and end with any.
        with_more = self._again + self._gpus * float(self._waits.min() + (self._rest - self._unload).min())
        return seconds + max(first + last, with_more)


def _cheapest(counts: Ints, within: Floats, beyond: Floats, take: int) -> float:
    """The least sum of `take` of: `counts` pieces of each kind at `within`, and any number at `beyond`."""
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
    """Calls of one model with heads and tails of at least so much, together: their seconds, and what is cut off T."""

    seconds: Floats
    cut_off: Floats


def _windows_of(facts: _Facts, model: int) -> _Windows:
    chosen = np.flatnonzero(facts.calls.model == model)
    return _windows(facts.head[chosen], facts.tail[chosen], facts.seconds[chosen])


def _windows(head: Floats, tail: Floats, weight: Floats) -> _Windows:
    """For the least head and some larger ones, and tails alike."""
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
    """So many calls of the model run at some instant."""
    room = makespan - windows.cut_off
    some = windows.seconds > 0
    if (room[some] <= 0).any():
        return float("inf")
    counts = np.ceil(windows.seconds[some] / room[some] - 1e-9)
    return float(max(1.0, counts.max())) if len(counts) else 1.0


# --- the others -------------------------------------------------------------------------------------------------------


def _window(facts: _Facts) -> float:
    work = facts.calls.seconds * facts.width[facts.calls.model]
    windows = _windows(facts.head, facts.tail, work)
    return float((windows.cut_off + windows.seconds / facts.problem.speed.sum())[windows.seconds > 0].max(initial=0.0))


def _one_gpu(facts: _Facts) -> float:
    """The GPU with most work that can not go elsewhere."""
    gpus = np.arange(len(facts.problem.gpus))
    work: Floats = np.bincount(facts.calls.model, facts.seconds, minlength=facts.models).astype(np.float64)
    best = 0.0
    for g in gpus.tolist():
        bound = [
            m
            for m in np.flatnonzero(facts.used).tolist()
            if (starts := np.flatnonzero(facts.may_begin[m]))[-1] <= g < starts[0] + facts.width[m]
        ]
        if bound:
            best = max(best, _one_after_another(facts, g, bound, work))
    return best


def _one_after_another(facts: _Facts, gpu: int, models: list[int], work: Floats) -> float:
    loads = [facts.problem.load[m] for m in models if facts.problem.held_first[gpu] != m]
    unloads = [facts.unload[m] for m in models]
    seconds = sum(work[m] for m in models) + sum(loads) + sum(unloads) - max(unloads)
    chosen = np.isin(facts.calls.model, models)
    return float(facts.problem.free_first[gpu] + seconds + facts.tail[chosen].min())


def _wide(facts: _Facts) -> float:
    best = 0.0
    for width in np.unique(facts.width[facts.used]).tolist():
        models = np.flatnonzero(facts.used & (facts.width >= width))
        where = facts.may_hold[models].any(axis=0)
        runs = np.diff(np.flatnonzero(np.diff(np.concatenate(([False], where, [False])).astype(np.int8)) != 0))[::2]
        beside = int((runs // width).sum())
        chosen = np.isin(facts.calls.model, models)
        head, tail = float(facts.head[chosen].min()), float(facts.tail[chosen].min())
        best = max(best, head + float(facts.seconds[chosen].sum()) / beside + tail)
    return best
