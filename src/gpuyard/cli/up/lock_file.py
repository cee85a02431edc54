"""Marks the process that is up on a data folder: a file that is locked while the process lives and has its addresses.

A process id alone would be wrong after a crash, when the number belongs to another process; the lock ends with its
process.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gpuyard.cli.up import LOCK_FILE, command_on
from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.journal.folders import FolderNotSafe, closed_folder
from gpuyard.system.locks import take_lock

FILE = LOCK_FILE
READER_SECONDS, RETRY_SECONDS = 1.0, 0.01


class AlreadyUp(GpuyardError):
    """A cluster already runs in this data folder; stop it with `gpuyard down`."""


class NoFolder(GpuyardError):
    """The data folder cannot be used; choose another one with --data-dir."""


class RunningCluster(msgspec.Struct, frozen=True):
    """A cluster that is up."""

    pid: int
    http: str = ""
    """Empty while it starts."""
    grpc: str = ""


class InstanceLock:
    """The locked file of this process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    @contextmanager
    def take(cls, folder: Path) -> Iterator["InstanceLock"]:
        """Lock the file of this folder; if it is locked, fail with an error that names the other process."""
        try:
            closed_folder(folder, "data folder", "--data-dir")
            descriptor = _locked(folder)
        except BlockingIOError:
            other = running_cluster(folder)
            who = f" (process {other.pid}{f', {other.http}' if other.http else ''})" if other else ""
            down = command_on(folder, "down")
            message = (
                f"A cluster is already running in {folder}{who}; stop it with `{down}`, or use another --data-dir."
            )
            raise AlreadyUp(message) from None
        except FolderNotSafe as error:
            raise NoFolder(str(error)) from None
        except OSError as error:
            message = f"Cannot use the data folder {folder}: {error.strerror}. Choose another one with --data-dir."
            raise NoFolder(message) from None
        try:
            lock = cls(descriptor)
            lock.write()
            yield lock
            os.truncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def write(self, http: str = "", grpc: str = "") -> None:
        """Write the addresses at which we listen."""
        os.truncate(self._descriptor, 0)
        os.pwrite(self._descriptor, msgspec.json.encode(RunningCluster(os.getpid(), http, grpc)), 0)


def _locked(folder: Path) -> int:
    """Lock the file. A process that asks `running_cluster` holds the lock for a moment, so try again for a second."""
    give_up_at = time.monotonic() + READER_SECONDS
    while True:
        try:
            return take_lock(folder / FILE)
        except BlockingIOError:
            if running_cluster(folder) is not None or time.monotonic() > give_up_at:
                raise
            time.sleep(RETRY_SECONDS)


def running_cluster(folder: Path) -> RunningCluster | None:
    """Return the cluster that is up on this folder, or None."""
    try:
        descriptor = os.open(folder / FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(descriptor)
    finally:
        os.close(descriptor)
    return None


def _read(descriptor: int) -> RunningCluster | None:
    try:
        return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=RunningCluster)
    except msgspec.MsgspecError:
        return None  # it is being written
