"""Files that are there after a power loss, and errors that say what to do."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuyard.domain.errors import JournalError, StorageFull

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextmanager
def as_journal_errors(folder: Path) -> Iterator[None]:
    """Turn what the file system says into errors of the journal."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise StorageFull(
                f"There is no space left in {folder}. Nothing was written; free some space and try again."
            ) from error
        raise JournalError(f"The journal in {folder} can not be used: {error}.") from error


def sync_folder(folder: Path) -> None:
    """Make what was created, renamed or removed in a folder survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the content of a file survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file so that under its name stands all of the new content or all of the old."""
    beside = path.with_name(path.name + ".new")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def no_space_left(folder: Path) -> bool:
    """Try it: SQLite calls some failed writes an I/O error where the disk or a quota is full."""
    probe = folder / "probe.new"
    try:
        with probe.open("wb") as file:
            file.write(bytes(65536))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno in NO_SPACE
    finally:
        probe.unlink(missing_ok=True)
    return False
