"""`gpuyard logs`: print the output of a task. `-f` continues across restarts of the scheduler (`task_output`)."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client
from gpuyard.cli.output.task_output import Output, follow, gave_up, gone, is_gone, outage_printer, to_standard_output
from gpuyard.cli.show import TaskIdArgument

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client, Task, TaskRef

FIRST_LOOK_BYTES = 64 * 1024
NODE_SECONDS = 30.0
"""How long to wait for a node that is not connected."""
LOOK_SECONDS = 0.3


def logs(
    task_id: TaskIdArgument,
    following: Annotated[bool, typer.Option("-f", "--follow", help="Follow the output until the task ends.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", metavar="N", min=0, help="Only the last N lines.")] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", min=1, help="Attempt of the task (default: the last).")
    ] = None,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NODE", help="Node, if the task ran on several.")
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Print the output of a task, byte for byte; with --json one object per line. For a waiting task, print the reason."""
    cluster = client(server, token)
    task = cluster.task(task_id) if following else None
    if task is not None and not as_json:
        _tell_of_no_start(task)
    which: dict[str, Any] = {"attempt": attempt, "node": node}
    named = task_id if task is None else task
    last_bytes = None if tail is None else _bytes_of_last_lines(cluster, named, tail, which)
    lines = _Lines() if as_json else None
    write = lines.write if lines is not None else to_standard_output
    if task is not None and not task.ended and (attempt is None or attempt <= task.attempts):
        output = Output(cluster.without_waiting(), write, tail=last_bytes, strict=True, **which)
        _follow(cluster, task, output, server, as_json=as_json)
    else:
        wrote = False
        for part in _patiently(lambda: cluster.logs(named, tail=last_bytes, **which)):
            write(part)
            wrote = True
        if not wrote and not following and not as_json:
            _tell_of_no_start(cluster.task(task_id))
    if lines is not None:
        lines.end()


def _follow(cluster: "Client", task: "Task", output: Output, server: str | None, *, as_json: bool) -> None:
    """Follow the output to the end of the task, or of the selected attempt."""
    from gpuyard.live.sdk import NotFound
    from gpuyard.live.sdk.waiting import AWAY

    outages = None if as_json else outage_printer(task.id)
    try:
        follow(cluster, task, output, on_outage=outages)
    except AWAY as error:
        raise gave_up(error, task.id, server, as_json=as_json) from None
    except NotFound as error:
        if not is_gone(error):
            raise
        raise gone(error, task.id, cluster, as_json=as_json) from None
    if not output.is_whole:
        raise typer.Exit(1)


def _patiently(ask: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
    """Return the output; wait a while for a node that is not connected yet, as after a restart of the scheduler."""
    from gpuyard.live.sdk import Refused

    give_up_at = time.monotonic() + NODE_SECONDS
    waits = wrote = False
    while True:
        try:
            for part in ask():
                wrote = True
                yield part
        except Refused as refused:
            if wrote or refused.code != "NodeUnreachable" or time.monotonic() >= give_up_at:
                raise
            if not waits:
                waits = True
                said = f"gpuyard: {refused.message} Waiting for up to {NODE_SECONDS:.0f} s."
                print(said, file=sys.stderr, flush=True)
            time.sleep(LOOK_SECONDS)
        else:
            return


def _tell_of_no_start(task: "Task") -> None:
    """Print why a task that has not started has no output."""
    if task.started_at is None:
        words = "never started" if task.ended else "has not started"
        print(f"gpuyard: {task.id} {words}. {task.reason or ''}".rstrip(), file=sys.stderr, flush=True)


def _bytes_of_last_lines(cluster: "Client", task: "TaskRef", lines: int, which: dict[str, Any]) -> int:
    """Return the length of the last lines. The scheduler counts bytes, so read larger and larger parts of the end."""
    look = FIRST_LOOK_BYTES
    while lines:
        end = b"".join(_patiently(lambda look=look: cluster.logs(task, tail=look, **which)))  # type: ignore[misc]
        found = end[:-1].split(b"\n")  # the last line's end is no beginning of another
        if len(found) > lines:
            return sum(len(line) + 1 for line in found[-lines:]) - 1 + len(end[-1:])
        if len(end) < look:
            return max(len(end), 1)
        look *= 8
    return 0


class _Lines:
    """Prints {"line": "…"} for each line; bytes that are not text are replaced."""

    def __init__(self) -> None:
        self._rest = b""

    def write(self, part: bytes) -> None:
        """Print the lines that are complete."""
        from msgspec import json

        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            to_standard_output(json.encode({"line": line.decode(errors="replace")}) + b"\n")

    def end(self) -> None:
        """Print the last line, which may have no line break."""
        if self._rest:
            self.write(b"\n")
