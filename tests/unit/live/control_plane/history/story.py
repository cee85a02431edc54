"""Builders for tests of the history: samples of a few cards, and what a naive computation says about them."""

from array import array
from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from typing import NamedTuple

from gpuyard.live.control_plane.history.layout import CLUSTER, GPUS, NODES, RowKind
from gpuyard.live.control_plane.history.sample import HistorySample
from gpuyard.live.control_plane.history.series import Span, Values, gathered, usual_names
from gpuyard.live.control_plane.history.store import HistoryStore

MEMORY_MIB = 0xFFFE
"""A card of this size has one MiB in each part, so that tests can compare memory exactly."""
T0 = 1_790_000_000 - 1_790_000_000 % 86_400
"""The start of a day."""


class Reading(NamedTuple):
    """The stored numbers of one card; None: unknown."""

    utilization: int | None = 0
    memory: int | None = 0
    temperature: int | None = 30
    power: int | None = 300
    task: int | None = 0


def sample(
    at: int, cards: Mapping[str, Reading], *, marks: Mapping[str, str] | None = None, pending: float = 0
) -> HistorySample:
    """A sample of these cards, each on a node of the same name."""
    names = list(cards)
    readings = [cards[name] for name in names]

    def column(code: str, values: Sequence[int | None]) -> "array[int]":
        unknown = {"B": 0xFF, "H": 0xFFFF, "I": 0xFFFFFFFF}[code]
        return array(code, [unknown if value is None else value for value in values])

    cluster = {**dict.fromkeys((it.name for it in CLUSTER.columns), 0.0), "tasks_pending": pending}
    cluster |= {"power_watts": nan} if not names else {}
    return HistorySample(
        at,
        hash((tuple(names), tuple((marks or {}).items()))),
        lambda: [(name, (marks or {}).get(name, ""), MEMORY_MIB) for name in names],
        lambda: [(name, "", 0) for name in names],
        [
            column("B", [it.utilization for it in readings]),
            column("H", [it.memory for it in readings]),
            column("B", [it.temperature for it in readings]),
            column("H", [it.power for it in readings]),
            column("I", [it.task for it in readings]),
        ],
        [column("H", [it.utilization for it in readings])] * len(NODES.columns),
        [array("f", [value]) for value in cluster.values()],
    )


def series(
    store: HistoryStore, name: str, since: int, until: int, step: int, kind: RowKind = GPUS
) -> dict[str, Values]:
    """The series of one card."""
    span = Span(since, (until - since) // step, step)
    buckets = gathered(store, kind, store.owners(kind, name), span)
    return {each: buckets.values(each) for each in usual_names(kind, step)}


def opened(folder: Path, keep_seconds: float = 365 * 86_400.0) -> HistoryStore:
    """The history of a folder."""
    return HistoryStore.open(folder / "history.sqlite", keep_seconds)


def size_of(folder: Path) -> int:
    """The bytes of all files of the history."""
    return sum(path.stat().st_size for path in folder.glob("history.sqlite*"))
