"""What one step of a model does, operation by operation, as the process that counted it tells."""

from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace


class Counts(Struct, frozen=True):
    """Columns with one entry for each operation of the forward pass, in the order in which they ran."""

    model: str
    batch: int
    blocks: list[str]
    """The block of the model it belongs to: the part that is never divided."""
    flops: list[float]
    activation_bytes: list[float]
    """Read and written, what grows with the batch."""
    parameter_bytes: list[float]
    """Read of parameters."""
    crossing_bytes: list[float]
    """What was made before this operation and is needed by it or later ones."""
    kept_bytes: list[float]
    """What the backward pass will need of it."""
    owned_bytes: list[float]
    """Parameters that are used here first."""
    shared: list[tuple[str, str]] = []
    """Blocks that use the same parameters."""


def in_half(counts: Counts) -> Counts:
    """The same with activations and the weights that are read in 16 bits; weights that are kept stay as they are."""

    def half(column: list[float]) -> list[float]:
        return [size / 2 for size in column]

    return replace(
        counts,
        activation_bytes=half(counts.activation_bytes),
        parameter_bytes=half(counts.parameter_bytes),
        crossing_bytes=half(counts.crossing_bytes),
        kept_bytes=half(counts.kept_bytes),
    )


class Unit(Struct, frozen=True):
    """Operations of one block that follow each other."""

    block: str
    first: int
    last: int
    """One behind."""


def units(counts: Counts) -> list[Unit]:
    """Between two of them a model can be cut."""
    made = []
    for block, group in groupby(range(len(counts.blocks)), key=counts.blocks.__getitem__):
        places = list(group)
        made.append(Unit(block, places[0], places[-1] + 1))
    return made
