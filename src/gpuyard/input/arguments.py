"""Arguments of Python functions, checked like fields of a file: they fit their type, or are refused in one sentence.

    Rounds = Annotated[int, Meta(ge=1, le=1_000_000_000)]
    rounds = argument("rounds", rounds, Rounds)     # rounds is 0; it must be a whole number from 1 to 1,000,000,000.

The commands hand their options to these functions, so that both have the same limits.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from operator import index
from typing import Annotated, Any, ClassVar, Self

from msgspec import Meta

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.strict import fault_in

Names = Annotated[list[str], Meta(description="a list of names, or text with commas between them")]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""The seed of a random number generator."""


class Function:
    """The type of an argument that is called."""

    words: ClassVar = "a function"

    @classmethod
    def read(cls, raw: Any) -> Self:
        """Return what can be called; raise ValueError for anything else."""
        if not callable(raw):
            raise ValueError
        found: Self = raw
        return found


def argument(name: str, value: Any, type_: Any) -> Any:
    """Return the argument, a number of numpy as one of Python; raise `WrongInput` if it does not fit the type."""
    value = _number(value)
    if wrong := fault_in(type_, value, name):
        raise WrongInput(str(wrong))
    return value


def names(name: str, value: Any) -> list[str]:
    """Return the names in a list or in comma-separated text, without empty ones; raise `WrongInput` for anything else."""
    if isinstance(value, str):
        value = value.split(",")
    elif isinstance(value, Iterable) and not isinstance(value, bytes | Mapping):
        with suppress(TypeError):  # an array of numpy without dimensions
            value = list(value)
    return [one.strip() for one in argument(name, value, Names) if one.strip()]


def _number(value: Any) -> Any:
    if isinstance(value, bool | int | str) or value is None:
        return value
    try:
        if getattr(value, "shape", None) == () and value.dtype.kind == "b":
            return bool(value)
        if hasattr(value, "__index__"):
            return index(value)
        return float(value) if hasattr(value, "__float__") else value
    except (TypeError, ValueError, OverflowError):  # an array of numpy, a fraction of large numbers
        return value
