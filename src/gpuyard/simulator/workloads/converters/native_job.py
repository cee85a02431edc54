"""A job of a native trace, and the numbers and instants in it."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil, isfinite
from pathlib import Path
from typing import NamedTuple

from gpuyard.core.domain.values import MILLI
from gpuyard.input.error_location import shortened
from gpuyard.simulator.workloads.trace import MOST_GPUS, MOST_SECONDS, WrongTrace


class NativeJob(NamedTuple):
    """One job; instants are seconds since 1970, or since the beginning of a trace without dates."""

    submit: float
    seconds: float
    gpus: int
    user: str = ""
    vc: str = ""
    """Virtual cluster."""
    name: str = ""
    state: str = ""
    fraction_milli: int = MILLI


Omitted = Counter[str]
"""Why rows were left out, each as the end of a sentence, with their number."""
JobReader = Callable[[Path, Omitted], Iterator[NativeJob]]


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A native format: how to read it, and where the original can be found."""

    read: JobReader
    files: str
    """The file or folder that is read."""
    address: str
    license: str
    dated: bool = True
    """Whether its instants are dates; otherwise they are seconds since an unknown instant."""


WITHOUT_GPUS = "jobs without GPUs were omitted"
NEVER_RAN = "jobs that never ran, or had not ended, were omitted"


def instant(text: str, where: str) -> float | None:
    """Return an instant such as `2020-06-09 18:41:01` or `2023-03-01 00:18:22+08:00`; None if it is empty.

    Without an offset it counts as UTC: only differences matter.
    """
    if not text or text.lower() in {"none", "nan", "nat", "null"}:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise WrongTrace(f"{where}: {shortened(text)!r} is not a date and time.") from None
    return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()


def seconds_between(begin: float | None, end: float | None) -> float | None:
    """Return a duration; None if one of the instants is not known or they are in the wrong order."""
    if begin is None or end is None or end < begin:
        return None
    return min(end - begin, MOST_SECONDS)


def number(text: str, column: str, where: str) -> float | None:
    """Return a number that is not negative; None if the cell is empty."""
    if not text or text.lower() in {"none", "nan", "null"}:
        return None
    try:
        found = float(text)
    except ValueError:
        raise WrongTrace(f"{where}: {column} is {shortened(text)!r}; it must be a number.") from None
    if not isfinite(found) or found < 0:
        raise WrongTrace(f"{where}: {column} is {shortened(text)}; it must be 0 or more.")
    return found


def whole_gpus(gpus: float, where: str) -> int:
    """Return the number of whole GPUs that hold the requested ones."""
    if gpus > MOST_GPUS:
        raise WrongTrace(f"{where}: {gpus:g} GPUs are more than {MOST_GPUS:,}.")
    return ceil(gpus)
