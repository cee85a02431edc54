"""The newest samples of GPUs one by one, for the legacy API."""

from collections.abc import Sequence
from typing import NamedTuple

from gpuyard.live.control_plane.history.layout import GPUS, Cell
from gpuyard.live.control_plane.history.slots import Owner
from gpuyard.live.control_plane.history.store import HistoryStore, Stretch

MARGIN_SECONDS = 120
"""Samples are looked for this much longer than so many samples usually take."""


class PastSample(NamedTuple):
    """One sample, or the mean of one minute if the samples are no longer kept; None: unknown."""

    at: int
    utilization: float | None
    memory_mib: float | None
    temperature: float | None
    power_watts: float | None
    task: int
    """0: none, or unknown."""
    allocated: bool


def newest_samples(
    store: HistoryStore, names: Sequence[str], limit: int, now: float, interval_seconds: float
) -> dict[str, list[PastSample]]:
    """Return the newest samples of each GPU (`NODE/INDEX`), oldest first: single ones of the last hour, then means."""
    seconds, minutes = store.tiers[:2]
    until, found = int(now) + 2, dict[str, list[PastSample]]()
    oldest = int(now - store.tiers[-1].keep)
    first = max(oldest, int(now - seconds.keep), int(now - limit * interval_seconds - MARGIN_SECONDS))
    for name in names:
        samples = list[PastSample]()
        for owner in store.owners(GPUS, name):
            end = until if owner.until is None else min(until, owner.until)
            start = max(first, owner.since)
            new = _read(store.read(GPUS, seconds, owner.slot, start, end), owner)
            if len(new) < limit and start == int(now - seconds.keep):
                before = new[0].at if new else end
                since = max(oldest, int(now - minutes.keep), before - (limit - len(new)) * minutes.step)
                new = _read(store.read(GPUS, minutes, owner.slot, max(since, owner.since), before), owner) + new
            samples += new
        found[name] = sorted(samples)[-limit:]
    return found


def _read(stretches: Sequence[Stretch], owner: Owner) -> list[PastSample]:
    return [sample for stretch in stretches for sample in _samples(stretch, owner) if sample is not None]


def _samples(stretch: Stretch, owner: Owner) -> list[PastSample | None]:
    cells = GPUS.cells[stretch.tier.number]
    columns = {
        cell.name: [_value(cell, raw, owner) for raw in column]
        for cell, column in zip(cells, stretch.values, strict=True)
        if cell.roll not in {"max", "count"}
    }
    told = list[PastSample | None]()
    for number, at in enumerate(stretch.times):
        if stretch.tier.number == 0:
            task = columns["task"][number]
            held = bool(task)
        else:
            task = 0
            held = (columns["allocated"][number] or 0) >= 50
        sample = PastSample(
            at,
            columns["utilization"][number],
            columns["memory_mb"][number],
            columns["temperature"][number],
            columns["power_watts"][number],
            int(task or 0),
            held,
        )
        known = any(column[number] is not None for column in columns.values())
        told.append(sample if known else None)
    return told


def _value(cell: Cell, raw: float, owner: Owner) -> float | None:
    if raw == cell.unknown:
        return None
    return raw * cell.scale * (owner.memory_mib if cell.name == "memory_mb" else 1)
