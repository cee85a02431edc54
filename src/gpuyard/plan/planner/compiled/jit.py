"""Numba's `njit` with types; works without a writable cache and never uses outdated machine code.

Numba caches a compiled function until the file of the function changes. But the functions it calls are compiled into
it, wherever they are defined: after a change in another file of the folder, the old machine code would still run, with
an outdated column layout. So the cache here is valid until any file of the folder changes.

Compiling everything takes the better part of a minute. With `code_mode.plain` nothing is compiled, and Numba is not
even imported: the same functions run as plain Python, about a hundred times slower, with the same results. The command
line does that on the first use on a machine, for problems that are small enough (`cli/plan/first_use.py`).
"""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numpy as np

from gpuyard.plan.planner import code_mode


def _is_disabled() -> bool:
    """Return whether Numba leaves functions as they are, as NUMBA_DISABLE_JIT=1 asks it to."""
    import numba

    return bool(getattr(numba.config, "DISABLE_JIT", 0))


INTERPRETED: Final = code_mode.plain or _is_disabled()
"""Whether the functions of this folder run as plain Python in this process."""

F = TypeVar("F", bound=Callable[..., object])


def compiled(function: F) -> F:
    """Compile a function on its first call, and cache the result for later processes if possible."""
    return _kept(function)


def njit_noref(function: F) -> F:
    """As `compiled`, for functions that allocate no arrays: they run without reference counting.

    Otherwise Numba counts references at every step of such a function, which takes longer than the steps.
    """
    return _kept(function, _nrt=False)


def _kept(function: F, **how: Any) -> F:
    if INTERPRETED:
        return function
    import numba

    try:
        made = numba.njit(cache=True, **how)(function)
    except RuntimeError:  # neither the folder of the source nor the user's cache is writable
        return cast("F", numba.njit(**how)(function))
    if made is not function:  # they are the same if Numba's JIT is disabled
        file = made._cache._cache_file
        file._source_stamp = _stamp(Path(function.__code__.co_filename).parent)
        file._load_index = partial(_index, file._load_index)
    return cast("F", made)


def _index(load: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
    """Load the cache index; empty if another version wrote it, with types of modules that were moved or renamed."""
    try:
        return load()
    except Exception:
        return {}


@cache
def _stamp(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """Return the name, modification time and size of every source file in a folder."""
    stats = ((file.name, file.stat()) for file in sorted(folder.glob("*.py")))
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats)


if INTERPRETED:

    def records(array: Any) -> Any:
        """Return an array of records whose entries have their fields as attributes, as Numba's have."""
        return array.view(np.recarray)

else:

    @compiled
    def records(array: Any) -> Any:
        """Return the array: compiled records have their fields as attributes."""
        return array
