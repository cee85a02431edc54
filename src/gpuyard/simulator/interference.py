"""Tasks that share a card slow each other down.

What a task keeps of its speed beside another is a number for the two of them, from a file of measured pairs or, where nobody
has measured, from how much of the card the other asks for. Beside several it keeps the product. Gavel (OSDI 2020)
measured 26 training programs on one GPU, each beside each: where both fit they kept 0.66 of their speed on average on a
V100, which is what `COST` gives for programs that ask for a whole card each, and 0.54 on a K80. Pairs differ much from
each other (on the V100 their standard deviation is 0.24), so whoever has measured should say so.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from gpuyard.core.domain.task import TaskSpec
from gpuyard.core.domain.values import MILLI
from gpuyard.simulator.workloads.trace import WrongTrace, number_in, rows_of

Interference = Callable[[TaskSpec, TaskSpec], float]
"""What the first keeps of its speed beside the second."""

COST = 0.5
"""How much longer a task takes beside one that asks for a whole card: half as long again."""
LEAST_SPEED, MOST_SPEED = 0.001, 10.0


def by_demand(spec: TaskSpec, other: TaskSpec) -> float:  # noqa: ARG001
    """The more of the card the other asks for, the less is left."""
    share = other.resources.share
    asked = share.fraction_milli or MILLI if share is not None else MILLI
    return 1.0 / (1.0 + COST * asked / MILLI)


def by_pairs(speeds: Mapping[tuple[str, str], float]) -> Interference:
    """As measured, by the names of the two; where nobody measured, by demand."""

    def speed(spec: TaskSpec, other: TaskSpec) -> float:
        found = speeds.get((spec.name, other.name))
        return by_demand(spec, other) if found is None else found

    return speed


def read_pairs(path: Path) -> dict[tuple[str, str], float]:
    """A file with `name`, `beside` and `speed`, 1 being the speed alone; each direction is a row of its own."""
    found: dict[tuple[str, str], float] = {}
    for line, row in rows_of(path, ("name", "beside", "speed")):
        where = f"{path}, line {line}"
        pair = row["name"], row["beside"]
        if pair in found:
            raise WrongTrace(f"{where}: {pair[0]} beside {pair[1]} was said before.")
        found[pair] = number_in(row, "speed", where, LEAST_SPEED, MOST_SPEED)
    return found
