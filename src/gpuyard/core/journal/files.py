"""Errors of the file system, as errors of the journal that say what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuyard.core.domain.errors import JournalError, StorageFull
from gpuyard.system.files import NO_DESCRIPTOR, NO_SPACE


@contextmanager
def as_journal_errors(folder: Path) -> Iterator[None]:
    """Turn what the file system says into errors of the journal."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise no_space(folder) from error
        if error.errno in NO_DESCRIPTOR:
            raise no_descriptor(folder) from error
        raise JournalError(f"The journal in {folder} can not be used: {error}.") from error


def no_space(folder: Path) -> StorageFull:
    """The error for a full disk or a quota that is used up."""
    return StorageFull(f"There is no space left in {folder}. Nothing was written; free some space and try again.")


def no_descriptor(folder: Path) -> StorageFull:
    """The error for a process or a system that has too many files open: like a full disk, it passes."""
    return StorageFull(
        f"There is no file descriptor left to write in {folder}. Nothing was written; it is tried again. "
        "Raise the limit of open files (LimitNOFILE in a unit of systemd)."
    )
