"""Files that are there after a power loss, and errors that say what to do."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuyard.core.domain.errors import JournalError, StorageFull

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})


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
    """Write a file for its owner alone, so that under its name stands all of the new content or all of the old."""
    beside = path.with_name(path.name + ".new")
    try:
        beside.unlink(missing_ok=True)
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def no_descriptor_left() -> bool:
    """Try it: SQLite only says that it can not open a file. It needs several, and has closed those that it got."""
    opened = []
    try:
        for _ in range(8):
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))  # noqa: PERF401 - those of a failure, too
    except OSError as error:
        return error.errno in NO_DESCRIPTOR
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return False


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
