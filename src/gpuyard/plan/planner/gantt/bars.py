"""The content of a chart: bars, few enough to be drawn, and the critical path.

A plan has a bar for each call and each switch on each GPU it uses. If there are too many, consecutive calls of one
model become one bar (a *session*). If there are still too many, bars that start within one `tick` of their lane become
one, in the color of the longest. The tick is doubled until few enough are left. At the scale of the whole chart nothing
changes, as a tick is smaller than a pixel.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gpuyard.plan.planner.plan import Loads, Measures, Plan, copies, in_order, loads, measure
from gpuyard.plan.planner.problem import Flags, Floats, Ints, Problem

MOST_BARS: Final = 40_000
FIRST_TICK: Final = 1 / 4000
"""As a fraction of the width of the chart."""


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars in columns, by GPU and then by time."""

    gpu: Ints
    begin: Floats
    end: Floats
    model: Ints
    switch: Flags
    """Whether the model is loaded here; otherwise it is called. With preloading calls may run beside a load."""
    level: Ints
    calls: Ints
    """The number of calls in this bar."""
    first: Ints
    """The first of them."""

    def __len__(self) -> int:
        return len(self.gpu)


@dataclass(frozen=True, slots=True)
class Step:
    """A segment of the critical path: this GPU could not have been faster in this interval."""

    gpu: int
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Panel:
    """One plan in a chart."""

    name: str
    measures: Measures
    bars: Bars
    path: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """One or several plans of one problem, on one time axis."""

    problem: Problem
    panels: tuple[Panel, ...]
    lower_bound_s: float | None

    @property
    def until(self) -> float:
        """The end of the time axis."""
        ends = [panel.measures.makespan_s for panel in self.panels]
        return max([*ends, self.lower_bound_s or 0.0, 1e-9])

    def title(self, panel: Panel) -> str:
        """Return the name of a plan and its figures."""
        m = panel.measures
        return (
            f"{panel.name}: {m.makespan_s:,.1f} s{self._gap(m.makespan_s)}, {m.switches:,} switches, "
            f"GPUs at work {m.utilization_mean:.0%} (spread {m.utilization_spread:.0%})"
        )

    def _gap(self, makespan_s: float) -> str:
        if not self.lower_bound_s:
            return ""
        return f" ({makespan_s / self.lower_bound_s - 1:.1%} above the bound)"


def chart(
    problem: Problem, plans: Sequence[tuple[str, Plan]], lower_bound_s: float | None = None, most: int = MOST_BARS
) -> Chart:
    """Chart plans of one problem, each with its name, one below the other."""
    return Chart(
        problem,
        tuple(
            Panel(name, measure(problem, plan), bars(problem, plan, most), path(problem, plan)) for name, plan in plans
        ),
        lower_bound_s,
    )


def bars(problem: Problem, plan: Plan, most: int = MOST_BARS) -> Bars:
    """Return bars for calls and switches, about `most` at most."""
    every = _every(problem, plan)
    if len(every) <= most:
        return every
    tick = plan.makespan_s * FIRST_TICK
    fewer = _joined(every, _same_session(every, tick))
    while len(fewer) > most:
        fewer = _joined(fewer, _same_tick(fewer, tick))
        fewer = _joined(fewer, _same_session(fewer, tick))
        tick *= 2
    return fewer


def path(problem: Problem, plan: Plan) -> tuple[Step, ...]:
    """Return the critical path: the chain of calls and switches, from the start to the last end, without slack."""
    if not len(plan.end):
        return ()
    lanes = in_order(problem, plan)
    ready = [_ready(problem, plan, g, lane) for g, lane in enumerate(lanes)]
    call: int | None = int(plan.end.argmax())
    until = float(plan.end.max())
    steps: list[Step] = []
    seen: set[int] = set()
    while call is not None and call not in seen:
        seen.add(call)
        before, lane, since = _waited_for(problem, plan, lanes, ready, call)
        start = float(plan.start[call])
        steps.append(Step(int(plan.gpu[call]), start, until))
        if since < start and (lane is not None or before is not None):
            steps.append(Step(int(plan.gpu[call]) if lane is None else lane, since, start))
        call, until = before, since
    return _end_to_end(list(reversed(steps)))


def _waited_for(
    problem: Problem, plan: Plan, lanes: list[Ints], ready: list[tuple[Floats, Floats]], call: int
) -> tuple[int | None, int | None, float]:
    """Return the call that this one waited for last, the GPU if its preparation was the cause, and since when."""
    calls = problem.calls
    best: tuple[float, int | None, int | None, float] = (float(calls.earliest_s[call]), None, None, 0.0)
    for d in calls.before[calls.before_at[call] : calls.before_at[call + 1]]:
        end = float(plan.end[d])
        if end > best[0]:
            best = end, int(d), None, end
    for g in range(plan.gpu[call], plan.gpu[call] + problem.models[calls.model[call]].gpus):
        at = int(np.flatnonzero(lanes[g] == call)[0])
        before = int(lanes[g][at - 1]) if at else None
        free = float(plan.end[before]) if before is not None else float(problem.free_first[g])
        since, loaded = ready[g][0][at], ready[g][1][at]
        if max(free, loaded) <= best[0]:
            continue
        if since < free < loaded:  # the load began before the last call ended: it waited for an earlier one
            ended = np.flatnonzero(plan.end[lanes[g][:at]] <= since + 1e-9)
            before = int(lanes[g][ended[-1]]) if len(ended) else None
            free = float(plan.end[before]) if before is not None else float(problem.free_first[g])
        best = float(max(free, loaded)), before, int(g), free
    return best[1:]


def _ready(problem: Problem, plan: Plan, g: int, lane: Ints) -> tuple[Floats, Floats]:
    """For each call of a GPU, from when to when its model is loaded; both are when the GPU is free if it is held."""
    since = np.concatenate((problem.free_first[g : g + 1], plan.end[lane][:-1]))[: len(lane)]
    loaded = since.copy()
    some, begin, end = _loading(problem, plan, g, lane)
    by_call = np.argsort(lane)
    place = by_call[np.searchsorted(lane[by_call], some)] if len(some) else some
    since[place], loaded[place] = begin, end
    return since, loaded


def _end_to_end(steps: list[Step]) -> tuple[Step, ...]:
    """Merge segments on one GPU that touch."""
    joined: list[Step] = []
    for step in steps:
        if joined and joined[-1].gpu == step.gpu and step.begin <= joined[-1].end:
            joined[-1] = Step(step.gpu, joined[-1].begin, step.end)
        else:
            joined.append(step)
    return tuple(joined)


def _every(problem: Problem, plan: Plan) -> Bars:
    """Return a bar for each call and each switch; a GPU loads its next model as soon as it can, or as was measured."""
    parts: list[tuple[Any, ...]] = []
    for g, lane in enumerate(in_order(problem, plan)):
        level = plan.level[lane] if plan.level is not None else np.zeros(len(lane), dtype=np.int32)
        if plan.loads is None:
            some, begin, end = _loading(problem, plan, g, lane)
            parts.append(_lane(g, problem, some, begin, end, np.zeros(len(some), dtype=np.int32), 1))
        parts.append(_lane(g, problem, lane, plan.start[lane], plan.end[lane], level, 0))
    if plan.loads is not None:
        parts.append(_measured(problem, plan.loads))
    gpu, begin, end, model, switch, level, calls, first = (np.concatenate(c) for c in zip(*parts, strict=True))
    by_time = np.lexsort((end, begin, gpu))
    return Bars(
        gpu[by_time], begin[by_time], end[by_time], model[by_time],
        switch[by_time].astype(np.bool_), level[by_time], calls[by_time], first[by_time],
    )  # fmt: skip


def _loading(problem: Problem, plan: Plan, g: int, lane: Ints) -> tuple[Ints, Floats, Floats]:
    """Return the calls of a GPU that need a load, and when their models are loaded."""
    if problem.preload:
        some = [one for one in copies(problem, g, lane, plan) if one.loads and one.end > one.begin]
        calls = np.array([one.call for one in some], dtype=np.int32)
        return calls, np.array([one.begin for one in some]), np.array([one.end for one in some])
    _, seconds = loads(problem, g, lane)
    free = np.concatenate((problem.free_first[g : g + 1], plan.end[lane][:-1]))[: len(lane)]
    paid = np.flatnonzero(seconds > 0)
    return lane[paid], free[paid], free[paid] + seconds[paid]


def _measured(problem: Problem, found: Loads) -> tuple[Any, ...]:
    """Return the columns of the bars of measured loads, one for each GPU of their groups."""
    width = problem.width[found.model]
    which = np.repeat(np.arange(len(width)), width)
    first = np.repeat(np.cumsum(width) - width, width)
    nothing = np.zeros(len(which), dtype=np.int32)
    gpu = (found.gpu[which] + np.arange(len(which)) - first).astype(np.int32)
    return gpu, found.start[which], found.end[which], found.model[which], nothing + 1, nothing, nothing, nothing


def _lane(
    g: int, problem: Problem, lane: Ints, begin: Floats, end: Floats, level: Ints, switch: int
) -> tuple[Any, ...]:
    def all_of(value: int) -> Ints:
        return np.full(len(lane), value, dtype=np.int32)

    return all_of(g), begin, end, problem.calls.model[lane], all_of(switch), level, all_of(1 - switch), lane


def _same_session(b: Bars, tick: float) -> Flags:
    """Return which bars continue the activity of the bar before them."""
    go_on: Flags = (
        (b.gpu[1:] == b.gpu[:-1])
        & (b.model[1:] == b.model[:-1])
        & (b.switch[1:] == b.switch[:-1])
        & (b.level[1:] == b.level[:-1])
        & (b.begin[1:] - b.end[:-1] < tick)
    )
    return go_on


def _same_tick(b: Bars, tick: float) -> Flags:
    """Return which bars start in the same tick as the one before them."""
    at = np.floor(b.begin / tick)
    same: Flags = (b.gpu[1:] == b.gpu[:-1]) & (at[1:] == at[:-1])
    return same


def _joined(b: Bars, go_on: Flags) -> Bars:
    """Merge bars with those they continue; a merged bar looks like its longest part."""
    head = np.concatenate(([0], np.flatnonzero(~go_on) + 1))
    group = np.repeat(np.arange(len(head)), np.diff([*head, len(b)]))
    by_length = np.lexsort((-(b.end - b.begin), group))
    look = by_length[head]
    return Bars(
        b.gpu[head], b.begin[head], np.maximum.reduceat(b.end, head), b.model[look], b.switch[look], b.level[look],
        np.add.reduceat(b.calls, head), b.first[head],
    )  # fmt: skip
