"""Answer questions about the history: values of a range of time in equal steps.

The answer comes from the coarsest tier whose rows fit into the step; its newest part, which has not been rolled up yet,
comes from the finer tiers. A step is a mean over all samples in it, each with the same weight, beside the highest of
them. Steps that are finer than what is kept of their time become as long as the rows that are left.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import NamedTuple

from gpuyard.live.control_plane.history.layout import Cell, RowKind, Tier
from gpuyard.live.control_plane.history.slots import Owner
from gpuyard.live.control_plane.history.store import HistoryStore, Stretch

USUAL_POINTS = 500
MOST_POINTS = 11_000
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
"""The steps that are chosen if a request names none; longer ones are whole days."""
USUAL_SECONDS = 3_600
"""The range if a request names none."""
HIGHEST = "_max"
DECIMALS = 3

Values = list[float | None]


class TooManyPoints(Exception):
    """Internal to the history: the step is too short for the range."""

    def __init__(self, points: int, step: int) -> None:
        super().__init__(points, step)
        self.points = points
        self.step = step
        """The shortest step that would do."""


class Span(NamedTuple):
    """A range of time in equal steps."""

    start: int
    """A multiple of the step."""
    points: int
    step: int

    @property
    def end(self) -> int:
        """Return the end of the last step."""
        return self.start + self.points * self.step

    @property
    def times(self) -> list[int]:
        """Return the start of each step."""
        return list(range(self.start, self.end, self.step))


def span_of(tiers: Sequence[Tier], since: float, until: float, step: int | None, now: float) -> Span:
    """Return the steps of a range: those asked for if that much is kept, else as fine as there are."""
    first, last = max(since, now - tiers[-1].keep), min(until, now + 1)
    if last <= first:
        return Span(int(since), 0, step or 1)
    least = next((tier.step for tier in tiers if first >= now - tier.keep), tiers[-1].step)
    if step is None:
        wanted = max(least, (last - first) / USUAL_POINTS)
        step = next((each for each in STEPS if each >= wanted and each % least == 0), None) or _days(wanted)
        while _points(first, last, step) > USUAL_POINTS:  # the range begins and ends within a step
            step = next((each for each in STEPS if each > step and each % least == 0), None) or _days(step + 1)
    else:
        step = -(-step // least) * least
    points = _points(first, last, step)
    if points > MOST_POINTS:
        raise TooManyPoints(points, -(-int(last - first + 1) // (MOST_POINTS - 1)))
    return Span(int(first) // step * step, points, step)


def _days(seconds: float) -> int:
    return int(-(-seconds // 86_400)) * 86_400


def _points(first: float, last: float, step: int) -> int:
    return int(-(-last // step) - first // step)


@dataclass(slots=True)
class _Bucket:
    """The sums of one column, by step."""

    total: list[float]
    weight: list[float]
    highest: Values


@dataclass(slots=True)
class Buckets:
    """The sums of all wanted columns of one or more slots over a span."""

    span: Span
    by_name: dict[str, _Bucket] = field(default_factory=dict)
    summed: set[str] = field(default_factory=set)
    """Names of columns that are added up instead of averaged."""

    def add(self, kind: RowKind, stretch: Stretch, factor: float) -> None:
        """Add the rows of a slot. `factor` converts memory to MiB."""
        cells = kind.cells[stretch.tier.number]
        counts: dict[str, Sequence[float]] = {
            cell.name: column for cell, column in zip(cells, stretch.values, strict=True) if cell.roll == "count"
        }
        one_each = [1] * len(stretch.times)
        places = [(at - self.span.start) // self.span.step for at in stretch.times]
        for cell, column in zip(cells, stretch.values, strict=True):
            if cell.roll == "count":
                continue
            scale = cell.scale * (factor if cell.name == "memory_mb" else 1.0)
            values = [None if _unknown(cell, raw) else raw * scale for raw in column]
            self._add(kind, cell, places, values, counts.get(cell.name, one_each))

    def _add(self, kind: RowKind, cell: Cell, places: list[int], values: Values, counts: Sequence[float]) -> None:
        held = cell.roll == "value" and any(it.name == cell.name and "held" in it.rolls for it in kind.columns)
        bucket = self._bucket("allocated" if held else cell.name)
        if cell.name == "energy_joules":
            self.summed.add(cell.name)
        for place, value, count in zip(places, values, counts, strict=True):
            if value is None or not 0 <= place < self.span.points:
                continue
            if held:
                value = 100.0 if value else 0.0  # noqa: PLW2901 - the number of a task becomes whether there is one
            if cell.roll != "mean":  # a sample, a highest value, a sum, or a part of the time
                known = bucket.highest[place]
                bucket.highest[place] = value if known is None or value > known else known
            if cell.roll != "max":
                weight = 1 if cell.roll == "sum" else count
                bucket.total[place] += value * weight
                bucket.weight[place] += weight

    def _bucket(self, name: str) -> _Bucket:
        found = self.by_name.get(name)
        if found is None:
            points = self.span.points
            found = self.by_name[name] = _Bucket([0.0] * points, [0.0] * points, [None] * points)
        return found

    def values(self, name: str) -> Values:
        """Return the values of a series, one a step."""
        bucket = self._bucket(name.removesuffix(HIGHEST))
        if name.endswith(HIGHEST):
            return [None if value is None else round(value, DECIMALS) for value in bucket.highest]
        if name in self.summed:
            sums = zip(bucket.total, bucket.weight, strict=True)
            return [round(total, DECIMALS) if weight else None for total, weight in sums]
        return [
            round(total / weight, DECIMALS) if weight else None
            for total, weight in zip(bucket.total, bucket.weight, strict=True)
        ]


def _unknown(cell: Cell, raw: float) -> bool:
    return isnan(raw) if cell.code == "f" else raw == cell.unknown


def names_of(kind: RowKind) -> list[str]:
    """Return the series of a kind, without the highest values."""
    return ["allocated" if "held" in column.rolls else column.name for column in kind.columns]


def highest_of(kind: RowKind) -> list[str]:
    """Return the series of highest values of a kind."""
    return [f"{column.name}{HIGHEST}" for column in kind.columns if "max" in column.rolls]


def usual_names(kind: RowKind, step: int) -> list[str]:
    """Return the series of an answer if the request names none."""
    return names_of(kind) + (highest_of(kind) if step > 1 else [])


def gathered(store: HistoryStore, kind: RowKind, owners: Sequence[Owner], span: Span) -> Buckets:
    """Return the sums of some slots over a span: the tier that fits the step, then finer ones for the newest part."""
    buckets, since = Buckets(span), span.start
    fitting = [tier for tier in store.tiers if span.step % tier.step == 0]
    for tier in reversed(fitting):
        until = min(span.end, store.covered_until(tier)) if tier.number else span.end
        if until <= since:
            continue
        for owner in owners:
            first = max(since, owner.since - owner.since % tier.step)
            last = until if owner.until is None else min(until, owner.until)
            for stretch in store.read(kind, tier, owner.slot, first, last) if first < last else ():
                buckets.add(kind, stretch, owner.memory_mib)
        since = until
    return buckets
