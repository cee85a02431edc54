"""Interference: tasks that share a GPU slow each other down.

The speed a task keeps next to another is one number for the pair, from a file of measured pairs or, without a
measurement, from the share of the GPU that the other task requests. With several neighbors the numbers are multiplied.
Gavel (OSDI 2020) measured all pairs of 26 training programs on one GPU: where both fit they kept 0.66 of their speed on
average on a V100, which is what `COST` gives for programs that request a whole GPU each, and 0.54 on a K80. Pairs
differ a lot (on the V100 their standard deviation is 0.24), so use measurements where they exist.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from gpuyard.core.domain.task import TaskSpec
from gpuyard.core.domain.values import MILLI
from gpuyard.simulator.workloads.trace import WrongTrace, number_in, rows_of

Interference = Callable[[TaskSpec, TaskSpec], float]
"""Return the share of its speed that the first task keeps next to the second."""

COST = 0.5
"""Slowdown next to a task that requests a whole GPU: the run takes 1 + COST times as long."""
LEAST_SPEED, MOST_SPEED = 0.001, 10.0


def by_demand(spec: TaskSpec, other: TaskSpec) -> float:  # noqa: ARG001
    """Estimate the interference from the share of the GPU that the other task requests."""
    share = other.resources.share
    asked = share.fraction_milli or MILLI if share is not None else MILLI
    return 1.0 / (1.0 + COST * asked / MILLI)


def by_pairs(speeds: Mapping[tuple[str, str], float]) -> Interference:
    """Look up measured pairs by the names of the two tasks; fall back to `by_demand`."""

    def speed(spec: TaskSpec, other: TaskSpec) -> float:
        found = speeds.get((spec.name, other.name))
        return by_demand(spec, other) if found is None else found

    return speed


def read_pairs(path: Path) -> dict[tuple[str, str], float]:
    """Read a file with `name`, `beside` and `speed`, where 1 is the speed alone; each direction has its own row."""
    found: dict[tuple[str, str], float] = {}
    for line, row in rows_of(path, ("name", "beside", "speed")):
        where = f"{path}, line {line}"
        pair = row["name"], row["beside"]
        if pair in found:
            raise WrongTrace(f"{where}: {pair[0]} beside {pair[1]} occurs twice.")
        found[pair] = number_in(row, "speed", where, LEAST_SPEED, MOST_SPEED)
    return found
