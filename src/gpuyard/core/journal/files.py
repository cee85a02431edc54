"""Convert file system errors to journal errors that tell the operator what to do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuyard.core.domain.errors import JournalError, StorageFull
from gpuyard.system.files import NO_DESCRIPTOR, NO_SPACE


@contextmanager
def as_journal_errors(folder: Path) -> Iterator[None]:
    """Convert OSError to JournalError, and to StorageFull if space or file descriptors have run out."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise no_space(folder) from error
        if error.errno in NO_DESCRIPTOR:
            raise no_descriptor(folder) from error
        raise JournalError(f"The journal in {folder} cannot be used: {error}.") from error


def no_space(folder: Path) -> StorageFull:
    """Return the error for a full disk or an exhausted disk quota."""
    return StorageFull(f"No space is left in {folder}. Nothing was written; free disk space and try again.")


def no_descriptor(folder: Path) -> StorageFull:
    """Return the error for too many open files in the process or the system; like a full disk, it is temporary."""
    return StorageFull(
        f"No file descriptor is left to write in {folder}. Nothing was written; gpuyard tries again. "
        "Raise the limit of open files (LimitNOFILE in a unit of systemd)."
    )
