"""Numba's `njit`, typed, and content where nothing can be kept on disk."""

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Compile a function when it is first called, and keep the result for the next process where that is possible."""
    try:
        return cast("F", numba.njit(cache=True)(function))
    except RuntimeError:  # neither the folder of the source nor the user's cache can be written
        return cast("F", numba.njit(function))
