"""Follow a task: print its output as it is written, across attempts of the task and restarts of the scheduler.

`run` and `logs -f` use this. The scheduler may be away meanwhile, and another process may listen at its address: the
task is not affected, so both retry for as long as the SDK does (`RESTART_SECONDS`). When they give up, they print the
task and the command that follows it again, and exit with `GAVE_UP`.

A scheduler that is back may have other data, in which the number belongs to another task or to none: every request
identifies the submitted task, not only its number, and `gone` reports that the task no longer exists there.
"""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from gpuyard.cli.output.errors import complain

if TYPE_CHECKING:
    from datetime import datetime

    from gpuyard.cli.output.progress import WaitProgress
    from gpuyard.core.domain.errors import GpuyardError
    from gpuyard.live.sdk import Client, ClusterError, Refused, Task

GAVE_UP = 75
"""EX_TEMPFAIL of sysexits.h: the scheduler can no longer be reached. The task continues."""
OUTPUT_SECONDS = 15.0
"""How long to retry reading the output of a task that has ended."""
LOOK_SECONDS = 0.2
NOT_THERE = "UnknownTask", "AnotherTask"
"""Codes with which a scheduler reports that it does not know a task, or has another one under its number."""

Write = Callable[[bytes], None]


def to_standard_output(part: bytes) -> None:
    """Write at once, byte for byte."""
    sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()


class Output:
    """Copies a task's output and keeps the position: one attempt after the other, each from beginning to end."""

    def __init__(
        self,
        cluster: "Client",
        write: Write,
        *,
        node: str | None = None,
        attempt: int | None = None,
        tail: int | None = None,
        since: "datetime | None" = None,
        timestamps: bool = False,
        strict: bool = False,
    ) -> None:
        """Copy one `attempt`, or all from the current one on; with `tail`, only the last bytes of the first one.

        With `since` or `timestamps` an offset is not one in the whole output: after an interruption the same is read
        again, and what was written already is skipped. `strict`: a refusal of the first request is raised, unless the node may return.
        """
        self._yard = cluster
        self._write = write
        self._node = node
        self._only = attempt
        self._tail = tail
        self._times: dict[str, Any] = {"since": since, "timestamps": timestamps} if since or timestamps else {}
        self._strict = strict
        self._attempt = self._offset = 0
        self._told_of_node = False
        self.is_whole = True

    def is_over(self, task: "Task") -> bool:
        """Return whether no more output can come after the existing output was copied."""
        if task.ended or self._only is None:
            return task.ended
        return task.attempts > self._only or task.status == "pending"

    def copy(self, task: "Task") -> None:
        """Copy what was written since the last call, and follow until the attempt or the connection ends."""
        attempt = self._only or task.attempts
        if attempt != self._attempt:
            if self._attempt:
                # The previous attempt may have ended while the scheduler was away: a stopping scheduler ends the stream
                # just as the end of an attempt does.
                self._read(task, follow=False)
                self._tail = None
            self._attempt, self._offset = attempt, 0
        give_up_at = time.monotonic() + OUTPUT_SECONDS
        over = self.is_over(task)
        while (error := self._read(task, follow=not over)) is not None and over and task.started_at:
            if time.monotonic() >= give_up_at:
                self.is_whole = False
                print(f"gpuyard: the rest of the output is not available. {error}", file=sys.stderr)
                return
            time.sleep(LOOK_SECONDS)

    def _read(self, task: "Task", *, follow: bool) -> "ClusterError | None":
        """Read once; return the error that interrupted it if a retry may help, otherwise None."""
        from gpuyard.live.sdk import Refused
        from gpuyard.live.sdk.waiting import AWAY

        tail, times = self._tail, self._times
        skipped = self._offset if times and tail is None else 0
        offset = self._offset if tail is None and not times else None
        parts = self._yard.logs(
            task, follow=follow, attempt=self._attempt, node=self._node, offset=offset, tail=tail, **times
        )
        try:
            for received in parts:
                self._strict = False
                part = received[skipped:]
                skipped -= len(received) - len(part)
                if not part:
                    continue
                self._offset += len(part)
                if tail is not None:
                    self._tail = 0  # the offset in the whole output is unknown: continue with new output only
                self._write(part)
        except (*AWAY, Refused) as error:
            if isinstance(error, Refused) and (
                is_gone(error) or error.status not in {404, 409, 503} or self._is_final(error)
            ):
                raise
            return error
        return None

    def _is_final(self, refused: "Refused") -> bool:
        """Return whether a refusal is the caller's mistake; report an unreachable node once."""
        if not self._strict:
            return False
        if refused.code == "NodeUnreachable" and not self._told_of_node:
            self._told_of_node = True
            print(f"gpuyard: {refused.message} Waiting for it.", file=sys.stderr, flush=True)
        return refused.status != 503


def follow(
    cluster: "Client",
    task: "Task",
    output: Output | None,
    *,
    watch: "Callable[[Task], None] | None" = None,
    on_outage: "Callable[[ClusterError], None] | None" = None,
) -> "Task":
    """Follow the task until it has ended, or until the selected attempt has."""
    for now in cluster.changes(task, on_outage=on_outage):
        if watch is not None:
            watch(now)
        if output is not None and (now.started_at or (now.ended and now.attempts)):
            output.copy(now)
        if now.ended or (output is not None and output.is_over(now)):
            return now
    raise AssertionError("changes end with the end of the task")


def outage_printer(task_id: str, progress: "WaitProgress | None" = None) -> "Callable[[ClusterError], None]":
    """Return a callback that prints one line on standard error: the error, and that the task is not affected."""

    def tell(error: "ClusterError") -> None:
        from gpuyard.live.sdk.waiting import RESTART_SECONDS

        if progress is not None:
            progress.clear()
        seen = str(error).split(". ")[0].rstrip(".")
        words = f"{seen}. {task_id} continues; waiting for the scheduler for up to {RESTART_SECONDS:.0f} s."
        print(f"gpuyard: {words}", file=sys.stderr, flush=True)

    return tell


def gave_up(error: "GpuyardError", task_id: str, server: str | None, *, as_json: bool) -> typer.Exit:
    """Print the task and the command that follows it again; return the exception that ends this command."""
    at = f" --server {server}" if server else ""
    message = f"{error} {task_id} continues; to follow it again, run: gpuyard logs -f{at} {task_id}"
    complain(message, code=error.code, as_json=as_json)
    return typer.Exit(GAVE_UP)


def is_gone(error: "GpuyardError") -> bool:
    """Return whether the scheduler reported that the task itself, not a part of it, does not exist."""
    return error.code in NOT_THERE


def gone(error: "GpuyardError", task_id: str, cluster: "Client", *, as_json: bool) -> typer.Exit:
    """Print that the scheduler at this address does not know a task accepted earlier; return the exception to raise."""
    server = cluster.connection.server
    if error.code == "AnotherTask":
        found = (
            f"the scheduler at {server} now has another task with this number: its data folder was replaced or restored"
        )
    else:
        found = (
            f"the scheduler at {server} no longer has it: its data folder was replaced or restored, "
            "or you may no longer see the task"
        )
    message = f"{task_id} cannot be followed: {found}. Its result is not available there."
    complain(message, code=error.code, as_json=as_json)
    return typer.Exit(1)
