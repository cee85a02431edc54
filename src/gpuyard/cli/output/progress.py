"""Progress messages while a task waits, on standard error only.

On a terminal it is one line that is overwritten and disappears. Elsewhere it is one line when the task begins to wait,
with the reason, and one when it starts; for a task that never waits nothing is printed.
"""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

from gpuyard.cli.output.screen import cut, screen_of
from gpuyard.cli.shell.messages import localized

if TYPE_CHECKING:
    from gpuyard.live.sdk import Task

NO_NODES = "NoNodesYet"
NO_NODES_SENTENCE = (
    "No node has joined yet. The agent of `gpuyard up` joins a few seconds after its start; on other GPU hosts start "
    "`gpuyard agent`."
)
"""Usually seen right after `gpuyard up`, when no action is needed."""


class StatusLine:
    """One line on standard error that says what is waited for. In a terminal it is written over and removed at the end;
    elsewhere each different line is printed once.
    """

    def __init__(self) -> None:
        self._is_terminal = screen_of(sys.stderr).moves
        self._shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._is_terminal and self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def show(self, words: str) -> None:
        """Show these words in place of the last ones."""
        words = localized(words)
        if words == self._shown:
            return
        self._shown = words
        if self._is_terminal:
            width = (screen_of(sys.stderr).width or 80) - 1
            print(f"\r\x1b[K{cut(words, width)}", end="", file=sys.stderr, flush=True)
        else:
            print(f"gpuyard: {words}", file=sys.stderr, flush=True)


class WaitProgress:
    """Progress of one task. As a context manager it always removes its line from the terminal."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._is_terminal = screen_of(sys.stderr).moves
        self._shown = ""
        """The text on the terminal, or the last line printed; empty while the task does not wait."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.clear()

    def tell(self, task: "Task") -> None:
        """Show the current state of the task."""
        if self._quiet:
            return
        waits = localized(_waits(task))
        if self._is_terminal:
            self._write_over(waits)
        elif waits and not self._shown:
            self._shown = waits
            print(f"gpuyard: {waits}", file=sys.stderr, flush=True)
        elif self._shown and not waits and task.started_at:
            self._shown = ""
            print(f"gpuyard: {localized(_started(task))}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Remove the line from the terminal to make room for other output."""
        if self._is_terminal:
            self._write_over("")

    def _write_over(self, words: str) -> None:
        if words == self._shown:
            return
        width = (screen_of(sys.stderr).width or 80) - 1
        print(f"\r\x1b[K{cut(words, width)}", end="", file=sys.stderr, flush=True)
        self._shown = words


def _waits(task: "Task") -> str:
    """Return why the task waits, in a sentence; empty when it runs, has ended, or is being started."""
    if task.status == "pending" and task.reason:
        reason = NO_NODES_SENTENCE if task.reason_code == NO_NODES else task.reason
        return f"{task.id} waits. {reason}"
    return f"{task.id} is suspended. {task.reason or ''}".strip() if task.status == "suspended" else ""


def _started(task: "Task") -> str:
    return (
        f"{task.id} has its GPUs." if task.command is None else f"{task.id} started on {' and '.join(task.node_ids)}."
    )
