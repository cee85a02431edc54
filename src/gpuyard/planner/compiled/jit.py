"""Numba's `njit`, typed, and content where nothing can be kept on disk."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Compile a function when it is first called, and keep the result for the next process where that is possible."""
    try:
        return cast("F", numba.njit(cache=True)(function))
    except RuntimeError:  # neither the folder of the source nor the user's cache can be written
        return cast("F", numba.njit(function))


def borrowing(function: F) -> F:
    """As `compiled`, for functions that make no columns of their own: nobody counts who holds the columns they are lent.

    Numba counts at every step of such a function otherwise, which takes longer than the steps.
    """
    try:
        return cast("F", numba.njit(cache=True, **_NOT_COUNTED)(function))
    except RuntimeError:
        return cast("F", numba.njit(**_NOT_COUNTED)(function))


_NOT_COUNTED: Any = {"_nrt": False}
