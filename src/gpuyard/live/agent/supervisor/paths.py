"""What lies in a supervisor's folder, and how its socket is reached.

supervisor.lock      held by the one supervisor of this folder, as long as it lives
supervisor.sock      where it listens; only its own user may connect
supervisor.mark      drawn once: how processes of this folder are told from those of any other
supervisor.place     which folder this is: in a copy of it stands another one's
supervisor.out       what it had to say
attempts.log         what it holds, so that the next one knows
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
    """The address of the folder's socket, while in use.

    The kernel takes no address longer than 107 bytes. A longer one is said by way of a descriptor of the folder, so
    the socket still lies where it belongs, behind the folder's own permissions.
    """
    address = str(folder / SOCKET)
    if len(os.fsencode(address)) <= LONGEST_ADDRESS_BYTES:
        yield address
        return
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


def claim(folder: Path) -> None:
    """Put aside what was copied from another folder: the processes it speaks of are that one's, and are left alone."""
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
    """The folder's mark, drawn at the first call."""
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
            os.link(beside, path)
        except FileExistsError:
            if not path.stat().st_size:
                path.unlink()
        finally:
            beside.unlink()
