"""Replace and sync files so that they survive a crash or a power loss."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
NO_DESCRIPTOR = frozenset({errno.EMFILE, errno.ENFILE})


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield an empty file next to `path` that only its owner can read; at the end, rename it to `path`.

    A reader sees the old or the new content, never a part of it. `durable`: the new content is on disk when this
    returns. On an error the old file is kept and the new one is removed.
    """
    new = path.with_name(path.name + ".new")
    try:
        new.unlink(missing_ok=True)
        new.touch(mode=0o600, exist_ok=False)
        yield new
        if durable:
            sync_file(new)
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def replace_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Write a file atomically; see `replacing`."""
    with replacing(path, durable=durable) as new:
        new.write_bytes(content)


def sync_folder(folder: Path) -> None:
    """Make files created, renamed or removed in a folder survive a power loss."""
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


def no_descriptor_left() -> bool:
    """Test whether file descriptors have run out, by opening eight: SQLite reports only that it cannot open a file.

    SQLite needs several descriptors, and has closed those it got before it failed.
    """
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
    """Test whether the disk or a quota is full, by writing 64 KiB: SQLite reports it as an I/O error in some cases."""
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
