"""A sample: the cluster at one instant, taken in the event loop and written in a thread."""

from array import array
from collections.abc import Callable
from math import nan
from typing import Any, NamedTuple

from gpuyard.core.domain.values import TaskStatus
from gpuyard.live.control_plane.history.layout import NODES, Row
from gpuyard.live.control_plane.readings import (
    BUSY,
    EXTERNAL,
    IDLE,
    OFFLINE,
    UNKNOWN_BYTE,
    UNKNOWN_WORD,
    Readings,
    states_of,
)
from gpuyard.live.control_plane.views import Views

_UNKNOWN_TASK = 0xFFFFFFFF
_CPU, _MEMORY, _LATENCY = (column.scale for column in NODES.columns)
_LATENCY /= 1000  # in seconds

Key = tuple[str, str, int]
"""Name, mark and memory of a card or node, see slots.py."""


class HistorySample(NamedTuple):
    """The columns of all kinds at one instant."""

    at: int
    generation: int
    """Changes with the lists of cards and nodes."""
    cards: Callable[[], list[Key]]
    """The cards, in the order of the columns. Called only when the generation has changed."""
    nodes: Callable[[], list[Key]]
    gpu_row: Row
    node_row: Row
    cluster_row: Row


class Sampler:
    """Takes samples."""

    def __init__(self, views: Views, readings: Readings) -> None:
        self._views = views
        self._readings = readings
        self._last_power: tuple[float, float] | None = None

    def take(self, at: int, now: float, interval_seconds: float) -> HistorySample:
        """Take a sample. It costs the event loop some microseconds a GPU."""
        nodes = self._readings.refresh()
        packed = [self._readings.packed(node) for node in nodes]
        utilization, temperature = array("B"), array("B")
        memory, power = array("H"), array("H")
        for each in packed:
            columns = each.columns
            utilization.frombytes(columns.utilization)
            temperature.frombytes(columns.temperature)
            memory.extend(columns.memory)
            power.extend(columns.power)
        tasks = array("I")
        for node in nodes:
            away = node.lost or node.away
            tasks.extend(_UNKNOWN_TASK if away else next(iter(held), 0) % _UNKNOWN_TASK for held in node.on_gpu)
        states = b"".join(map(states_of, nodes))
        cards, listed = self._readings.cards, [node.spec.id for node in nodes]
        return HistorySample(
            at,
            self._readings.generation,
            lambda: [
                (f"{card.node}/{card.place}", f"{card.uuid} {card.memory_mib}", card.memory_mib) for card in cards
            ],
            lambda: [(name, "", 0) for name in listed],
            [utilization, memory, temperature, power, tasks],
            [
                array("H", [_word(each.cpu_percent, _CPU) for each in packed]),
                array("H", [_word(each.memory_percent, _MEMORY) for each in packed]),
                array("H", [_word(self._readings.latency_seconds(node), _LATENCY) for node in nodes]),
            ],
            self._cluster_row(states, utilization, power, now, interval_seconds),
        )

    def _cluster_row(
        self, states: bytes, utilization: "array[int]", power: "array[int]", now: float, interval_seconds: float
    ) -> Row:
        mean = _mean_known(utilization, UNKNOWN_BYTE)
        watts = _sum_known(power, UNKNOWN_WORD)
        total = None if watts is None else watts / 10
        values = (
            len(states),
            states.count(BUSY),
            states.count(IDLE),
            states.count(OFFLINE),
            states.count(EXTERNAL),
            self._views.open_tasks((TaskStatus.PENDING,), None),
            self._views.open_tasks((TaskStatus.RUNNING,), None),
            self._views.open_tasks((TaskStatus.SUSPENDED,), None),
            nan if mean is None else mean / 2,
            nan if total is None else total,
            self._energy(total, now, interval_seconds),
        )
        return [array("f", [value]) for value in values]

    def _energy(self, watts: float | None, now: float, interval_seconds: float) -> float:
        """Return the energy since the last sample. A long pause counts as two intervals: nothing is known of it."""
        before, self._last_power = self._last_power, None if watts is None else (now, watts)
        if before is None or watts is None:
            return nan
        seconds = min(max(0.0, now - before[0]), 2 * interval_seconds)
        return (before[1] + watts) / 2 * seconds


def _word(value: float | None, scale: float) -> int:
    return UNKNOWN_WORD if value is None else min(UNKNOWN_WORD - 1, max(0, round(value / scale)))


def _sum_known(values: "array[int]", unknown: int) -> int | None:
    """Return the sum of the known values; None: there is none."""
    missing = values.count(unknown)
    return None if missing == len(values) else sum(values) - missing * unknown


def _mean_known(values: "array[int]", unknown: int) -> float | None:
    total: Any = _sum_known(values, unknown)
    return None if total is None else total / (len(values) - values.count(unknown))
