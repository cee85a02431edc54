"""Handle Ctrl-C and SIGTERM in a command that holds resources it has to release.

Python raises KeyboardInterrupt wherever the program happens to be. In a callback (of the garbage collector, an import lock
or compiled code) the exception is printed at best and then lost; between acquiring a resource and recording it, the
resource is never released. So a signal is recorded first. While nothing is held, it also ends the command at once. After
`defer`, the running code checks `asked` and stops in an orderly way; only a second signal does not wait for
that.
"""

import signal
from types import FrameType, TracebackType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptGuard:
    """Records the signals of a command inside a `with` block."""

    def __init__(self) -> None:
        self.asked = False
        """Whether a signal has asked the command to end."""
        self._at_once = True

    def __enter__(self) -> Self:
        self._before = [signal.getsignal(number) for number in SIGNALS]
        self.listen()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in zip(SIGNALS, self._before, strict=True):
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def listen(self) -> None:
        """Install the signal handlers; call it again after a library that installs its own, such as Ray."""
        for number in SIGNALS:
            signal.signal(number, self._hear)

    def defer(self) -> None:
        """Only record signals from now on, because resources will be held. A signal received before ends the command now."""
        self._at_once = False
        if self.asked:
            raise KeyboardInterrupt

    def _hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        again, self.asked = self.asked, True
        if self._at_once or again:
            raise KeyboardInterrupt
