"""The user's terminal while it belongs to a task: raw, and always restored."""

import os
import re
import signal
import sys
import termios
import time
import tty
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

ESCAPE_BYTE = 0x1D
"""Ctrl-]"""
ESCAPE_COUNT = 3
ESCAPE_SECONDS = 1.0
_MODE = re.compile(rb"\x1b\[\?(1049|1000|1002|1003|1006|2004|25)([hl])")
_OFF = {b"1049": b"l", b"1000": b"l", b"1002": b"l", b"1003": b"l", b"1006": b"l", b"2004": b"l", b"25": b"h"}
"""Alternate screen, mouse, pasting, and the cursor: how a terminal has them usually."""
TRAVELING = ("TERM", "COLORTERM", "LANG", "LANGUAGE")
ENDING = (signal.SIGTERM, signal.SIGHUP)


class LeaveTerminal(Exception):
    """A signal asks this program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class RawTerminal:
    """Standard input in raw mode. Restores it however the block is left, also by SIGTERM and SIGHUP."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._modes: dict[bytes, bytes] = {}
        self._seen = b""
        self.wakeup, self._bell = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._resized = False
        self._ending = 0

    def __enter__(self) -> Self:
        if sys.stdin.isatty():
            self._before = termios.tcgetattr(0)
            tty.setraw(0, termios.TCSADRAIN)
        for number in (signal.SIGWINCH, *ENDING):
            self._handlers[number] = signal.signal(number, self._hear)
        self._old_bell = signal.set_wakeup_fd(self._bell, warn_on_full_buffer=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal.set_wakeup_fd(self._old_bell)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self.reset_modes()
        if self._before is not None:
            try:
                termios.tcsetattr(0, termios.TCSADRAIN, self._before)
            except (termios.error, OSError):
                return  # the terminal is gone
        os.close(self.wakeup)
        os.close(self._bell)

    def _hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if number == signal.SIGWINCH:
            self._resized = True
        else:
            self._ending = number

    def heed_signals(self) -> tuple[int, int] | None:
        """Return the new size if there is one. Raise `LeaveTerminal` after a signal to end."""
        with suppress(BlockingIOError):
            os.read(self.wakeup, 4096)
        if self._ending:
            raise LeaveTerminal(self._ending)
        if not self._resized:
            return None
        self._resized = False
        return terminal_size()

    def write(self, data: bytes) -> None:
        """Write output of the task, and remember the modes it sets. Raise `LeaveTerminal` if the terminal is gone."""
        known = self._seen + data
        for mode, state in _MODE.findall(known):
            self._modes[mode] = state
        self._seen = known[-8:]
        try:
            sys.stdout.flush()
            while data:
                data = data[os.write(1, data) :]
        except OSError:
            raise LeaveTerminal(signal.SIGHUP) from None

    def reset_modes(self) -> None:
        """Leave the alternate screen, mouse and paste modes that the task has left on, and show the cursor."""
        off = b"".join(b"\x1b[?" + mode + _OFF[mode] for mode, state in self._modes.items() if state != _OFF[mode])
        self._modes.clear()
        if off:
            try:
                os.write(1, off)
            except OSError:
                return

    def say(self, sentence: str) -> None:
        """Print a line about the session."""
        try:
            os.write(2, f"\r\n[gpuyard: {sentence}]\r\n".encode())
        except OSError:
            return


class EscapeKeys:
    """Finds the keys that leave the session: Ctrl-] three times within a second."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._pressed: list[float] = []

    def find(self, data: bytes) -> bool:
        """Return whether the keys are complete with this input. All of it is sent to the task nevertheless."""
        if not self._enabled:
            return False
        for byte in data:
            if byte != ESCAPE_BYTE:
                self._pressed.clear()
                continue
            now = time.monotonic()
            self._pressed = [at for at in self._pressed if now - at <= ESCAPE_SECONDS] + [now]
            if len(self._pressed) >= ESCAPE_COUNT:
                return True
        return False


def terminal_size() -> tuple[int, int]:
    """Return columns and rows of the terminal; 80 and 24 if it does not say."""
    for descriptor in (0, 1, 2):
        try:
            found = os.get_terminal_size(descriptor)
        except OSError:
            continue
        if found.columns > 0 and found.lines > 0:
            return found.columns, found.lines
    return 80, 24


def traveling_variables() -> dict[str, str]:
    """Return the variables that describe this terminal and the language of its user."""
    names = [name for name in os.environ if name in TRAVELING or name.startswith("LC_")]
    return {"TERM": "dumb", **{name: os.environ[name] for name in names}}
