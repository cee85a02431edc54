"""Arguments of Python functions, checked like fields of a file: they fit their type, or are refused in one sentence.

    Rounds = Annotated[int, Meta(ge=1, le=1_000_000_000)]
    rounds = argument("rounds", rounds, Rounds)     # rounds is 0; it must be a whole number from 1 to 1,000,000,000.

The commands hand their options to these functions, so that both have the same limits.
"""

from collections.abc import Iterable, Mapping
from operator import index
from typing import Annotated, Any

from msgspec import Meta

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.strict import fault_in

Names = Annotated[list[str], Meta(description="a list of names, or text with commas between them")]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""The seed of a random number generator."""


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
        value = list(value)
    return [one.strip() for one in argument(name, value, Names) if one.strip()]


def _number(value: Any) -> Any:
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if hasattr(value, "__index__"):
        return index(value)
    return float(value) if hasattr(value, "__float__") else value
