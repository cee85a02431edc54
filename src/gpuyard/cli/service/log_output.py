"""Logs of the scheduler and the agent: JSON or text, to standard output or a file that is rotated.

Our own code uses structlog. Messages of libraries that use `logging` are written in the same format. A call with
`lines` writes a line for each of them, with its own timestamp: the cost of a call is paid once for many lines.
"""

import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec
import structlog
from structlog.typing import EventDict, Processor

from gpuyard.core.domain.errors import GpuyardError

LARGEST_FILE_BYTES = 16 * 1024 * 1024
OLD_FILES = 4
QUIET = ("uvicorn.access", "asyncio", "grpc")
"""Libraries of which only warnings and errors are logged."""


class NoLog(GpuyardError):
    """The log cannot be written; choose another file in logging.output."""


class LogOutput(Protocol):
    """A destination for lines."""

    def write(self, line: bytes, /) -> int: ...  # noqa: D102
    def flush(self) -> None: ...  # noqa: D102


def set_up(level: str, form: str, output: str) -> None:
    """Log everything from `level` on, as `json` or `text`, to `stdout`, `stderr` or a file."""
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=_processors(form),
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=_Factory(_out(output)),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(handlers=[_Forward()], level=number, force=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


def _processors(form: str) -> list[Processor]:
    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if form == "json":
        return [*common, structlog.processors.format_exc_info, _as_json]
    return [*common, _as_text]


def _as_json(_logger: Any, _name: str, event: EventDict) -> bytes:
    lines = event.pop("lines", None)
    if lines is None:
        return _encode(event)
    return b"\n".join([_encode({**line, "level": event["level"]}) for line in lines])


_encode = msgspec.json.Encoder(enc_hook=str).encode


def _as_text(logger: Any, name: str, event: EventDict) -> bytes:
    lines = event.pop("lines", None)
    if lines is None:
        text = str(_render(logger, name, event))
    else:  # there may be many, and the renderer is slow
        level = event["level"]
        text = "\n".join([f"{line.pop('timestamp')} [{level:<9}] {_words(**line)}" for line in lines])
    return text.encode(errors="replace")


_render = structlog.dev.ConsoleRenderer(
    colors=False, exception_formatter=structlog.dev.plain_traceback, pad_event_to=24, sort_keys=False
)


def _words(event: str, **more: object) -> str:
    said = [
        f"{name}={value if isinstance(value, str) and ' ' not in value else repr(value)}"
        for name, value in more.items()
    ]
    return f"{event:<24} {' '.join(said)}"


class _Factory:
    """Gives every logger the same output."""

    def __init__(self, out: LogOutput) -> None:
        self._logger = structlog.BytesLogger(_Steady(out))  # type: ignore[arg-type]  # it writes and flushes, no more

    def __call__(self, *_: object) -> structlog.BytesLogger:
        return self._logger


class _Steady:
    """Drops lines while the log cannot be written, so that the process continues."""

    def __init__(self, out: LogOutput) -> None:
        self._out = out

    def write(self, line: bytes, /) -> int:
        with suppress(OSError):
            return self._out.write(line)
        return 0

    def flush(self) -> None:
        with suppress(OSError):
            self._out.flush()


def _out(output: str) -> LogOutput:
    if output in {"stdout", "stderr"}:
        return getattr(sys, output).buffer  # type: ignore[no-any-return]
    try:
        return RotatingFile(Path(output))
    except OSError as error:
        raise NoLog(f"Cannot write the log {output}: {error.strerror}. Choose another file.") from None


class RotatingFile:
    """A file that is rotated when it is large: `x.log`, then `x.log.1` to `x.log.4`; older ones are deleted."""

    def __init__(self, path: Path, largest_bytes: int = LARGEST_FILE_BYTES) -> None:
        self._path = path
        self._largest = largest_bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        self._open()

    def write(self, line: bytes, /) -> int:
        """Append a line; rotate first if the file is full."""
        if self._size + len(line) > self._largest and self._size:
            self._put_aside()
        written = self._file.write(line)
        self._size += written
        return written

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _open(self) -> None:
        self._file = self._path.open("ab", buffering=0)
        self._size = self._file.tell()

    def _put_aside(self) -> None:
        for number in range(OLD_FILES, 1, -1):
            older = self._path.with_name(f"{self._path.name}.{number - 1}")
            if older.exists():
                older.replace(self._path.with_name(f"{self._path.name}.{number}"))
        with suppress(FileNotFoundError):  # the file was removed externally
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        full = self._file
        self._open()
        full.close()


class _Forward(logging.Handler):
    """Forwards messages of libraries to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        say = structlog.get_logger(library=record.name)
        say.log(record.levelno, record.getMessage(), exc_info=record.exc_info or None)
