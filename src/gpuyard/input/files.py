"""Open files that a user names: only regular ones, of a limited size, plain or compressed.

A pipe or a device could block or never end. What a shell has opened for the command, `<(…)` or `/dev/stdin`,
may be a pipe. Every reason is an `OSError` whose `strerror` says it, like those of the system.
"""

import gzip
import os
import zlib
from errno import EFBIG, EINVAL, EISDIR
from io import BufferedReader, BytesIO
from pathlib import Path
from stat import S_ISBLK, S_ISCHR, S_ISDIR, S_ISFIFO, S_ISREG
from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.strict import fault_in

AnyPath: TypeAlias = str | Path
LARGEST_BYTES: Final = 1024**3
"""The limit for files of data, also after decompression: a problem of ten million calls is smaller."""
LARGEST_TEXT_BYTES: Final = 4 * 1024 * 1024
"""The limit for files that people write: settings, tasks."""
_PathText = Annotated[str, Meta(max_length=4095, description="the path of a file")]
LONGEST_SHOWN: Final = 200
GZIP: Final = b"\x1f\x8b"
"""First bytes of a gzip file; the file name does not matter."""
_OPENED_BY_SHELL: Final = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")


def path_of(name: str, value: object) -> Path:
    """Return an argument that names a file or folder as a path; raise `WrongInput` if it cannot be one."""
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if (wrong := fault_in(_PathText, text, name)) or not isinstance(text, str):
        raise WrongInput(str(wrong))
    return Path(text)


def shown_path(path: Path | str) -> str:
    """Return a path for a message: on one line, with at most `LONGEST_SHOWN` characters."""
    text = str(path)
    clean = "".join(one if one.isprintable() else repr(one)[1:-1] for one in text[:LONGEST_SHOWN])
    return clean + ("…" if len(text) > LONGEST_SHOWN else "")


def is_file(path: Path) -> bool:
    """Return whether this is a regular file; text that is too long for a path is none."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Return whether this is a folder; text that is too long for a path is none."""
    try:
        return path.is_dir()
    except OSError:
        return False


def open_file(path: Path) -> BufferedReader:
    """Open a regular file for reading. Raises OSError, at once, if it is anything else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if S_ISDIR(mode):
            raise OSError(EISDIR, os.strerror(EISDIR))
        by_shell = S_ISFIFO(mode) and str(path).startswith(_OPENED_BY_SHELL)
        if not S_ISREG(mode) and not by_shell:
            raise OSError(EINVAL, f"this is {_kind(mode)}, not a file")
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_file(path: Path, *, largest: int = LARGEST_BYTES) -> bytes:
    """Read a regular file; gzip is decompressed. Raises OSError if it is none, is too large, or is damaged."""
    with open_file(path) as file:
        content = file.read(largest + 1) if os.fstat(file.fileno()).st_size <= largest else None
    if content is not None and content.startswith(GZIP):
        content = _unpacked(content, largest)
    if content is None or len(content) > largest:
        raise OSError(EFBIG, f"it is larger than {size_words(largest)}")
    return content


def size_words(largest: int) -> str:
    """Return a limit in words: `4 MiB`, `1 GiB`."""
    return f"{largest // 1024**3} GiB" if largest >= 1024**3 else f"{largest // 1024**2} MiB"


def _unpacked(content: bytes, largest: int) -> bytes:
    try:
        with gzip.GzipFile(fileobj=BytesIO(content)) as file:
            return file.read(largest + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise OSError(EINVAL, "the compressed file is cut off or damaged") from None


def _kind(mode: int) -> str:
    if S_ISFIFO(mode):
        return "a pipe"
    return "a device" if S_ISCHR(mode) or S_ISBLK(mode) else "a socket"
