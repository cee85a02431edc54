"""Numba's `njit`, typed, content where nothing can be kept on disk, and never content with what is out of date.

Numba keeps what it has compiled until the file of the function changes. What the function calls is compiled into it,
wherever that is written: after a change in another file of the folder the old machine code would go on, with columns that
have moved since. So what is kept here is good until any file of the folder changes.
"""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Compile a function when it is first called, and keep the result for the next process where that is possible."""
    return _kept(function)


def njit_noref(function: F) -> F:
    """As `compiled`, for functions that make no columns of their own: nobody counts who holds the columns they are lent.

    Numba counts at every step of such a function otherwise, which takes longer than the steps.
    """
    return _kept(function, _nrt=False)


def _kept(function: F, **how: Any) -> F:
    try:
        made = numba.njit(cache=True, **how)(function)
    except RuntimeError:  # neither the folder of the source nor the user's cache can be written
        return cast("F", numba.njit(**how)(function))
    if made is not function:  # which it is where Numba is told to compile nothing
        file = made._cache._cache_file
        file._source_stamp = _stamp(Path(function.__code__.co_filename).parent)
        file._load_index = partial(_index, file._load_index)
    return cast("F", made)


def _index(load: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
    """What is kept; nothing where another version kept it, with types of modules that are gone or have another name."""
    try:
        return load()
    except Exception:
        return {}


@cache
def _stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """What the files of a folder look like now."""
    stats = ((file.name, file.stat()) for file in sorted(folder.glob("*.py")))
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)
