"""Ctrl-C (and TERM) of a command that holds something which has to be given back: noted, so that it cannot get lost.

Python raises KeyboardInterrupt wherever it happens to be. Where that is a callback that nobody called (of the garbage
collector, of the lock of an import, of compiled code), it prints a word at best and goes on as if nothing had been
pressed; and where it is between taking something and remembering what was taken, that is never given back. So a signal is
noted first. As long as nothing is held it ends the command at once, too; from `defer` on, whoever works looks at
`asked` and comes to an end in order, and only the second signal does not wait for that.
"""

import signal
from types import FrameType, TracebackType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptGuard:
    """Of one command, while `with` lasts."""

    def __init__(self) -> None:
        self.asked = False
        """Whether somebody wants it to end."""
        self._at_once = True

    def __enter__(self) -> Self:
        self._before = [signal.getsignal(number) for number in SIGNALS]
        self.listen()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in zip(SIGNALS, self._before, strict=True):
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def listen(self) -> None:
        """Once more after a library that takes signals for itself, as Ray does."""
        for number in SIGNALS:
            signal.signal(number, self._hear)

    def defer(self) -> None:
        """Something will be held. What was pressed before and got lost ends the command now."""
        self._at_once = False
        if self.asked:
            raise KeyboardInterrupt

    def _hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        again, self.asked = self.asked, True
        if self._at_once or again:
            raise KeyboardInterrupt
