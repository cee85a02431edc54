"""The files in a supervisor's folder, and the address of its socket.

supervisor.lock      held by the one supervisor of this folder while it runs
supervisor.sock      where it listens; only its own user may connect
supervisor.mark      drawn once: distinguishes processes of this folder from those of any other
supervisor.place     device and inode of the folder: in a copy it does not match
supervisor.out       its standard output and error
attempts.log         the attempts it holds, for the next supervisor
exits.log            how tasks ended whose supervisor was killed, written by its keeper
reaped.log           how tasks ended that the supervisor has just reaped
fences.table         which attempts are fenced and until when, shared with the watcher
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpuyard.system.files import replace_file

LOCK = "supervisor.lock"
SOCKET = "supervisor.sock"
MARK = "supervisor.mark"
PLACE = "supervisor.place"
OUT = "supervisor.out"
LOG = "attempts.log"
EXITS = "exits.log"
REAPED = "reaped.log"
TABLE = "fences.table"

LONGEST_ADDRESS_BYTES = 107


@contextmanager
def socket_address(folder: Path) -> Iterator[str]:
    """Yield the address of the folder's socket.

    The kernel accepts at most 107 bytes. A longer address goes through a descriptor of the folder, so the socket still
    is in the folder and protected by its permissions.
    """
    with short_path(folder / SOCKET) as address:
        yield address


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """Yield an address of a unix socket that is short enough for the kernel."""
    address = str(path)
    if len(os.fsencode(address)) <= LONGEST_ADDRESS_BYTES:
        yield address
        return
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)


def claim(folder: Path) -> None:
    """Rename files that were copied from another folder, so that the processes recorded in them are left alone."""
    found = folder.stat()
    here, path = f"{found.st_dev}:{found.st_ino}", folder / PLACE
    said = path.read_text(encoding="ascii").strip() if path.exists() else ""
    if said == here:
        return
    if said:
        for name in (MARK, LOG, REAPED, EXITS, TABLE):
            if (folder / name).exists():
                (folder / name).replace(folder / f"{name}.of-another-folder")
    with suppress(OSError):  # on a full disk it is written the next time
        replace_file(path, here.encode("ascii") + b"\n", durable=False)


def mark_of(folder: Path) -> str:
    """Return the folder's mark, drawn at the first call."""
    path = folder / MARK
    while True:
        try:
            if mark := path.read_text(encoding="ascii").strip():
                return mark
        except FileNotFoundError:
            pass  # the first call draws it, below
        beside = path.with_name(f"{MARK}.{os.getpid()}")
        beside.write_text(secrets.token_hex(8) + "\n", encoding="ascii")
        try:
            # A hard link is atomic: if several processes draw a mark at once, all of them end with the same one.
            os.link(beside, path)
        except FileExistsError:
            if not path.stat().st_size:
                path.unlink()
        finally:
            beside.unlink()
