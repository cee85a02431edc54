"""The output of several tasks at once: whole lines, each behind the name of its task, in a color of its own."""

import os
import sys
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any

import typer

from gpuyard.cli.output.screen import Screen, cells, padded
from gpuyard.cli.output.task_output import GAVE_UP, Output, Write, follow, gave_up, gone, is_gone, outage_printer
from gpuyard.core.domain.errors import GpuyardError

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client, ClusterError, Task

FOLLOWED_AT_ONCE = 32
PALETTE = ("cyan", "green", "yellow", "magenta", "blue", "red")
LONGEST_LABEL = 24
SAME_OUTAGE_SECONDS = 5.0
"""Threads that lose the scheduler within this time have lost it together."""
LONGEST_LINE = 1 << 20
"""A longer line is printed in pieces, so that a task that writes no line break does not fill the memory."""
STAMP_BYTES = len("2026-11-20T18:00:00Z")
Rewrite = Callable[[bytes], "bytes | None"]
"""Changes a line, or leaves it out."""


class LineWriter:
    """Passes on whole lines, changed by a function; the last one may have no line break."""

    def __init__(self, write: Write, rewrite: Rewrite) -> None:
        self._write = write
        self._rewrite = rewrite
        self._rest = b""

    def write(self, part: bytes) -> None:
        """Pass on the lines that are complete."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        changed = [line for one in lines if (line := self._rewrite(one)) is not None]
        if changed:
            self._write(b"".join(line + b"\n" for line in changed))

    def end(self) -> None:
        """Pass on the last line."""
        if self._rest:
            self.write(b"\n")


def labels_of(tasks: "Iterable[Task]") -> dict[str, str]:
    """Return what to print before the lines of each task: its name if no other has it, otherwise its id, too."""
    from gpuyard.cli.output.printing import one_line
    from gpuyard.cli.output.screen import cut

    tasks = list(tasks)
    names = {task.id: one_line(task.name if task.array_index is None else f"{task.name}[{task.array_index}]") for task in tasks}  # fmt: skip
    found = {}
    for task in tasks:
        name = names[task.id]
        alone = bool(name) and list(names.values()).count(name) == 1
        found[task.id] = cut(name, LONGEST_LABEL) if alone else f"{task.id} {cut(name, LONGEST_LABEL - 9)}".rstrip()
    return found


def prefixing(label: str, width: int, number: int, screen: Screen) -> Rewrite:
    """Return a function that puts a label before a line."""
    painted = screen.paint(padded(label, width), PALETTE[number % len(PALETTE)])
    before = f"{painted} | ".encode()
    return lambda line: before + line.rstrip(b"\r").rpartition(b"\r")[2]


def matching(text: str, screen: Screen, *, case: bool) -> Rewrite:
    """Return a function that leaves out lines without a text, and marks it in the others."""
    wanted = text if case else text.casefold()

    def rewrite(line: bytes) -> bytes | None:
        words = line.decode(errors="replace")
        return (
            mark(words, text, screen, case=case).encode() if wanted in (words if case else words.casefold()) else None
        )

    return rewrite


def with_local_time(line: bytes) -> bytes:
    """Return a line with the time before it in local time, and of a line that was drawn again and again only the last."""
    at, rest = time_and_line(line)
    return local_time(at) + b" " + rest.rstrip(b"\r").rpartition(b"\r")[2] if at else line


def time_and_line(line: bytes) -> tuple[bytes, bytes]:
    """Return the time that the scheduler has put before a line, in UTC, and the line; empty: it is a piece of a long line."""
    return (line[:STAMP_BYTES], line[STAMP_BYTES + 1 :]) if line[19:21] == b"Z " else (b"", line)


@lru_cache(maxsize=1)
def local_time(at: bytes) -> bytes:
    """Return an instant in local time; many lines have the same."""
    from datetime import datetime

    return datetime.fromisoformat(at.decode()).astimezone().isoformat().encode()


def mark(line: str, text: str, screen: Screen, *, case: bool) -> str:
    """Return a line with the text in red, where colors are shown."""
    if not screen.colors:
        return line
    import re

    found = re.compile(re.escape(text), 0 if case else re.IGNORECASE)
    return found.sub(lambda hit: f"\x1b[1;31m{hit[0]}\x1b[0m", line)


class _Shared:
    """Standard output, used by one thread at a time."""

    def __init__(self) -> None:
        self._lock = Lock()

    def write(self, part: bytes) -> None:
        with self._lock:
            try:
                sys.stdout.buffer.write(part)
                sys.stdout.buffer.flush()
            except BrokenPipeError:  # the reader, such as `head`, has left: end as quietly as without threads
                os._exit(0)

    def close(self) -> None:
        """Let no thread write any more: the interpreter is about to end."""
        self._lock.acquire()


class _OneVoice:
    """Tells of an outage once, although every thread notices it."""

    def __init__(self, tell: "Callable[[ClusterError], None]") -> None:
        self._tell = tell
        self._lock = Lock()
        self._told_at = float("-inf")

    def tell(self, error: "ClusterError") -> None:
        """Tell of it, unless another thread has just done so."""
        with self._lock:
            now = time.monotonic()
            is_news, self._told_at = now - self._told_at > SAME_OUTAGE_SECONDS, now
        if is_news:
            self._tell(error)


def writers_for(
    tasks: "list[Task]", write: Write, then: "Callable[[Task, int], list[Rewrite]]"
) -> "dict[str, LineWriter]":
    """Return a writer for each task whose lines pass through these functions."""

    def chain(steps: list[Rewrite]) -> Rewrite:
        def rewrite(line: bytes) -> bytes | None:
            changed: bytes | None = line
            for step in steps:
                if changed is not None:
                    changed = step(changed)
            return changed

        return rewrite

    return {task.id: LineWriter(write, chain(then(task, number))) for number, task in enumerate(tasks)}


def follow_all(
    cluster: "Client",
    tasks: "list[Task]",
    rewrites: "Callable[[Task, int], list[Rewrite]]",
    tails: "dict[str, int | None]",
    server: str | None,
    *,
    times: dict[str, Any],
    as_json: bool,
) -> None:
    """Follow the output of tasks to the end of all of them; Ctrl-C only leaves. A restart of the scheduler is waited for."""
    shared = _Shared()
    writers = writers_for(tasks, shared.write, rewrites)
    codes: list[int] = []
    tell = outage_printer(f"{tasks[0].id} and {len(tasks) - 1} more" if len(tasks) > 1 else tasks[0].id)
    voice = _OneVoice(lambda error: None if as_json else tell(error))

    def one(task: "Task") -> None:
        from gpuyard.live.sdk import NotFound
        from gpuyard.live.sdk.waiting import AWAY

        writer = writers[task.id]
        output = Output(cluster.without_waiting(), writer.write, tail=tails.get(task.id), strict=True, **times)
        try:
            follow(cluster, task, output, on_outage=voice.tell)
            codes.append(0 if output.is_whole else 1)
        except AWAY as error:
            codes.append(gave_up(error, task.id, server, as_json=as_json).exit_code)
        except NotFound as error:
            if is_gone(error):
                codes.append(gone(error, task.id, cluster, as_json=as_json).exit_code)
            else:
                codes.append(_complained(error, task.id))
        except GpuyardError as error:
            codes.append(_complained(error, task.id))
        finally:
            writer.end()

    threads = [Thread(target=one, args=(task,), daemon=True, name=f"logs of {task.id}") for task in tasks]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # not for ever: Ctrl-C is handled between two waits
    except KeyboardInterrupt:
        shared.close()
        raise
    worst = GAVE_UP if GAVE_UP in codes else max(codes, default=0)
    if worst:
        raise typer.Exit(worst)


def _complained(error: GpuyardError, task_id: str) -> int:
    print(f"gpuyard: {task_id}: {error}", file=sys.stderr, flush=True)
    return 1


def label_width(labels: Iterable[str]) -> int:
    """Return the width that all labels fit in."""
    return max(map(cells, labels), default=0)
