"""How samples are packed, sealed and rolled up. Functions of bytes; the store keeps the bytes.

There are three tiers. Each keeps *rows* (one instant, all cards) until a *block* of them is complete, then seals the block
card by card and rolls it up to one row of the next tier:

    tier      a row covers   a block covers   kept for
    seconds   1 s            1 min            1 h
    minutes   1 min          1 h              1 week
    hours     1 h            1 day            a year

    row        column by column          utilization of card 0, 1, 2, … | memory of card 0, 1, 2, … | …
    block      card by card              card 0: utilization at 0, 1, …, 59, memory at 0, 1, …, 59, … | card 1: …

Writing a second is one row; reading one card is one short piece of each block. The place of a card in a row is its *slot*
(slots.py). Three kinds of things have rows: GPUs, nodes, and the cluster as a whole, which is one slot.

The largest number of an integer type means unknown, and so does NaN. Columns become unknown independently of each other,
so a rolled-up row has for each column the number of samples in which it was known; this weighs it in the next roll-up.
"""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan, nan
from operator import mul
from typing import Any, Literal

assert sys.byteorder == "little", "the history is written in the byte order of the machine"
assert array("I").itemsize == 4
UNKNOWN: dict[str, float] = {"B": 0xFF, "H": 0xFFFF, "I": 0xFFFFFFFF, "f": nan}
"""The number that means unknown, by type code."""
Row = list["array[Any]"]
"""One column after the other."""
Roll = Literal["mean", "max", "sum", "held"]
"""How a column is rolled up. `held`: the part of the samples in which it is not 0, in half percents."""
HELD_SCALE = 0.5


@dataclass(frozen=True, slots=True)
class Column:
    """One number of a sample."""

    name: str
    code: str
    """The type code of `array`."""
    scale: float
    """The unit of the stored number, in that of the name."""
    rolls: tuple[Roll, ...] = ("mean", "max")


@dataclass(frozen=True, slots=True)
class Cell:
    """One column of a row as it is stored."""

    name: str
    code: str
    scale: float
    roll: Roll | Literal["value", "count"]

    @property
    def unknown(self) -> float:
        """Return the number that means unknown."""
        return UNKNOWN[self.code]


@dataclass(frozen=True)
class RowKind:
    """One kind of things that have rows."""

    name: str
    columns: tuple[Column, ...]

    @cached_property
    def cells(self) -> tuple[tuple[Cell, ...], ...]:
        """Return the columns of a row of each tier."""
        samples = tuple(Cell(column.name, column.code, column.scale, "value") for column in self.columns)
        return samples, *(
            tuple(cell for column in self.columns for cell in _rolled_cells(column, count_code))
            for count_code in ("B", "H")
        )


def _rolled_cells(column: Column, count_code: str) -> tuple[Cell, ...]:
    """Return the cells of a column in a rolled-up row; its count is the last of them."""
    rolled = tuple(_rolled(column, roll) for roll in column.rolls)
    return *rolled, Cell(rolled[0].name, count_code, 1.0, "count")


def _rolled(column: Column, roll: Roll) -> Cell:
    if roll == "held":
        return Cell("allocated", "B", HELD_SCALE, roll)
    return Cell(column.name, column.code, column.scale, roll)


@dataclass(frozen=True, slots=True)
class Tier:
    """One tier."""

    number: int
    step: int
    """Seconds that a row covers."""
    block: int
    """Seconds that a block covers."""
    keep: float
    """Seconds that a block is kept after its end."""

    def block_of(self, at: int) -> int:
        """Return the start of the block of an instant."""
        return at - at % self.block


TIERS = (Tier(0, 1, 60, 3_600), Tier(1, 60, 3_600, 7 * 86_400), Tier(2, 3_600, 86_400, 365 * 86_400))

GPUS = RowKind(
    "gpus",
    (
        Column("utilization", "B", 0.5),
        Column("memory_mb", "H", 1 / 0xFFFE),  # of the memory of the card
        Column("temperature", "B", 1.0),
        Column("power_watts", "H", 0.1),
        Column("task", "I", 1.0, ("held",)),
    ),
)
NODES = RowKind(
    "nodes",
    (
        Column("cpu_percent", "H", 0.01),
        Column("memory_percent", "H", 0.01),
        Column("network_latency_ms", "H", 0.02),
    ),
)
CLUSTER = RowKind(
    "cluster",
    (
        *(
            Column(name, "f", 1.0)
            for name in (
                "gpus_total",
                "gpus_busy",
                "gpus_idle",
                "gpus_offline",
                "gpus_external",
                "tasks_pending",
                "tasks_running",
                "tasks_suspended",
                "utilization",
                "power_watts",
            )
        ),
        Column("energy_joules", "f", 1.0, ("sum",)),
    ),
)
KINDS = (CLUSTER, NODES, GPUS)


class BadBlock(Exception):
    """Internal to the history: bytes that are no row or block of this layout."""


# --- rows -------------------------------------------------------------------------------------------------------------


def row_bytes(row: Row) -> bytes:
    """Return a row as it is stored."""
    return b"".join(column.tobytes() for column in row)


def read_row(cells: Sequence[Cell], data: bytes) -> Row:
    """Read a row."""
    count = _slots_in(cells, 1, data)
    row, place = [], 0
    for cell in cells:
        column = array(cell.code)
        size = count * column.itemsize
        column.frombytes(data[place : place + size])
        row.append(column)
        place += size
    return row


def unknown_row(cells: Sequence[Cell], count: int) -> Row:
    """Return a row of so many slots that are not present."""
    return [array(cell.code, [_unknown(cell)]) * count for cell in cells]


def _unknown(cell: Cell) -> Any:
    return 0 if cell.roll == "count" else nan if cell.code == "f" else int(cell.unknown)


def width(cells: Sequence[Cell]) -> int:
    """Return the bytes of one slot in one row."""
    return sum(array(cell.code).itemsize for cell in cells)


def _slots_in(cells: Sequence[Cell], units: int, data: object) -> int:
    of_slot = width(cells) * units
    if not isinstance(data, bytes) or not of_slot or len(data) % of_slot:
        raise BadBlock(f"a part of it is not a whole number of slots of {of_slot} bytes")
    return len(data) // of_slot


# --- blocks -----------------------------------------------------------------------------------------------------------


def _gathered(cells: Sequence[Cell], rows: Sequence[Row]) -> tuple[int, Row]:
    """Return the number of slots, and each column of all rows in one array: row after row."""
    count = max(len(row[0]) for row in rows)
    gathered = unknown_row(cells, 0)
    for row in rows:
        missing = count - len(row[0])
        for number, column in enumerate(row):
            gathered[number].extend(column)
            if missing:  # cards have joined since
                gathered[number].extend(unknown_row((cells[number],), missing)[0])
    return count, gathered


def sealed(cells: Sequence[Cell], rows: Sequence[Row]) -> bytes:
    """Return the block of these rows, card by card."""
    count, gathered = _gathered(cells, rows)
    return b"".join(column[slot::count].tobytes() for slot in range(count) for column in gathered)


def read_slot(cells: Sequence[Cell], units: int, data: bytes) -> Row:
    """Read the part of a block that belongs to one slot: for each column its values, one a unit."""
    if _slots_in(cells, units, data) != 1:
        raise BadBlock("a part of it does not hold one slot")
    part, place = [], 0
    for cell in cells:
        column = array(cell.code)
        size = units * column.itemsize
        column.frombytes(data[place : place + size])
        part.append(column)
        place += size
    return part


# --- roll-up ----------------------------------------------------------------------------------------------------------


def rolled_up(kind: RowKind, tier: int, rows: Sequence[Row]) -> Row:
    """Return the row of the next tier for the rows of one block."""
    cells = kind.cells[tier]
    count, gathered = _gathered(cells, rows)
    result = unknown_row(kind.cells[tier + 1], count)
    if tier == 0:
        _roll_samples(kind, count, gathered, result)
    else:
        _roll_cells(kind, cells, count, gathered, result)
    return result


def _roll_samples(kind: RowKind, count: int, gathered: Row, result: Row) -> None:
    """Roll up samples, column by column: with thousands of cards this is the most expensive part of the history."""
    number = 0
    for cell, column, values in zip(kind.cells[0], kind.columns, gathered, strict=True):
        into = list(zip(column.rolls, result[number : number + len(column.rolls)], strict=True))
        counts = result[number + len(column.rolls)]
        number += len(column.rolls) + 1
        for slot in range(count):
            known = _known(cell, values[slot::count])
            if not known:
                continue
            counts[slot] = len(known)
            for roll, cells in into:
                cells[slot] = _rolled_value(cell.code, roll, known)


def _rolled_value(code: str, roll: Roll, known: Any) -> Any:
    if roll == "mean":
        mean = sum(known) / len(known)
        return mean if code == "f" else round(mean)
    if roll == "max":
        return max(known)
    if roll == "sum":
        return sum(known)
    return round(100 / HELD_SCALE * (len(known) - known.count(0)) / len(known))


def _known(cell: Cell, values: Any) -> Any:
    if cell.code == "f":
        return [value for value in values if not isnan(value)]
    unknown = cell.unknown
    return values if unknown not in values else [value for value in values if value != unknown]


def _roll_cells(kind: RowKind, cells: Sequence[Cell], count: int, gathered: Row, result: Row) -> None:
    """Roll up cells of the tier before. Means are weighed by the counts of their column."""
    number = 0
    for column in kind.columns:
        rolls, number = range(number, number + len(column.rolls)), number + len(column.rolls) + 1
        for slot in range(count):
            counts = gathered[rolls.stop][slot::count]
            if not any(counts):
                continue
            result[rolls.stop][slot] = sum(counts)
            for place in rolls:
                result[place][slot] = _rolled_again(cells[place], gathered[place][slot::count], counts)


def _rolled_again(cell: Cell, values: Any, counts: Any) -> Any:
    known = _known(cell, values)
    if cell.roll == "max":
        return max(known)
    if cell.roll == "sum":
        return sum(known)
    mean = _weighted(cell, values, counts, all_known=len(known) == len(values))
    return mean if cell.code == "f" else round(mean)


def _weighted(cell: Cell, values: Any, counts: Any, *, all_known: bool) -> float:
    if not all_known:
        pairs = [(value, count) for value, count in zip(values, counts, strict=True) if not _is_unknown(cell, value)]
        values, counts = zip(*pairs, strict=True)
    return float(sum(map(mul, values, counts)) / sum(counts))


def _is_unknown(cell: Cell, value: float) -> bool:
    return isnan(value) if cell.code == "f" else value == cell.unknown
