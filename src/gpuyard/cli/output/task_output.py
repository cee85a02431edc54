"""Following a task: its output as it is written, over attempts of the task and restarts of the scheduler.

`run` and `logs -f` do this. The scheduler may be away meanwhile, and another process may listen at its address: the task
is not affected, so both go on trying for as long as the SDK does (`RESTART_SECONDS`). When they give up, they name the
task and the command that follows it again, and exit with `GAVE_UP`.

Whoever answers when the scheduler is back may have other data, in which the number belongs to another task or to none:
every request is about the task that was submitted, not about its number, and `gone` says that it is not there any more.
"""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from gpuyard.cli.output.errors import complain

if TYPE_CHECKING:
    from gpuyard.cli.output.progress import WaitProgress
    from gpuyard.core.domain.errors import GpuyardError
    from gpuyard.live.sdk import Client, ClusterError, Refused, Task

GAVE_UP = 75
"""EX_TEMPFAIL of sysexits.h: the scheduler could not be asked any more. The task goes on."""
OUTPUT_SECONDS = 15.0
"""How long the output of a task that ended is asked for."""
LOOK_SECONDS = 0.2
NOT_THERE = "UnknownTask", "AnotherTask"
"""Codes with which a scheduler says that it does not know a task, or has another one under its number."""

Write = Callable[[bytes], None]


def to_standard_output(part: bytes) -> None:
    """At once, byte for byte."""
    sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()


class Output:
    """How much of a task's output was copied. One attempt after the other, each from its beginning to its end."""

    def __init__(
        self,
        cluster: "Client",
        write: Write,
        *,
        node: str | None = None,
        attempt: int | None = None,
        tail: int | None = None,
        strict: bool = False,
    ) -> None:
        """Of one `attempt` or of all from the present one on, whose last `tail` bytes are enough.

        `strict`: a refusal of the first request is raised, unless the node may return.
        """
        self._yard = cluster
        self._write = write
        self._node = node
        self._only = attempt
        self._tail = tail
        self._strict = strict
        self._attempt = self._offset = 0
        self._told_of_node = False
        self.is_whole = True

    def is_over(self, task: "Task") -> bool:
        """Whether nothing more can come, once what there is was copied."""
        if task.ended or self._only is None:
            return task.ended
        return task.attempts > self._only or task.status == "pending"

    def copy(self, task: "Task") -> None:
        """What was written since the last time, and what is being written until the attempt or the connection ends."""
        attempt = self._only or task.attempts
        if attempt != self._attempt:
            if self._attempt:
                # It may have ended while the scheduler was away: a scheduler that stops ends a flow as an attempt does.
                self._read(task, follow=False)
                self._tail = None
            self._attempt, self._offset = attempt, 0
        give_up_at = time.monotonic() + OUTPUT_SECONDS
        over = self.is_over(task)
        while (error := self._read(task, follow=not over)) is not None and over and task.started_at:
            if time.monotonic() >= give_up_at:
                self.is_whole = False
                print(f"gpuyard: the rest of its output can not be had. {error}", file=sys.stderr)
                return
            time.sleep(LOOK_SECONDS)

    def _read(self, task: "Task", *, follow: bool) -> "ClusterError | None":
        """Once; the error that broke it off, if that can pass."""
        from gpuyard.live.sdk import Refused
        from gpuyard.live.sdk.waiting import AWAY

        tail = self._tail
        offset = self._offset if tail is None else None
        parts = self._yard.logs(task, follow=follow, attempt=self._attempt, node=self._node, offset=offset, tail=tail)
        try:
            for part in parts:
                self._strict = False
                self._offset += len(part)
                if tail is not None:
                    self._tail = 0  # where it begins in the whole output is not known: go on with what is new
                self._write(part)
        except (*AWAY, Refused) as error:
            if isinstance(error, Refused) and (
                is_gone(error) or error.status not in {404, 409, 503} or self._is_final(error)
            ):
                raise
            return error
        return None

    def _is_final(self, refused: "Refused") -> bool:
        """Whether a refusal is the caller's mistake; a node that is away is told of, once."""
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
    """Until it ended, or until the one attempt did that is followed."""
    for now in cluster.changes(task, on_outage=on_outage):
        if watch is not None:
            watch(now)
        if output is not None and (now.started_at or (now.ended and now.attempts)):
            output.copy(now)
        if now.ended or (output is not None and output.is_over(now)):
            return now
    raise AssertionError("changes end with the end of the task")


def told_of_outages(task_id: str, progress: "WaitProgress | None" = None) -> "Callable[[ClusterError], None]":
    """One line on standard error that says what is seen, and that the task is not affected."""

    def tell(error: "ClusterError") -> None:
        from gpuyard.live.sdk.waiting import RESTART_SECONDS

        if progress is not None:
            progress.clear()
        seen = str(error).split(". ")[0].rstrip(".")
        words = f"{seen}. {task_id} goes on; the scheduler is waited for, up to {RESTART_SECONDS:.0f} s."
        print(f"gpuyard: {words}", file=sys.stderr, flush=True)

    return tell


def gave_up(error: "GpuyardError", task_id: str, server: str | None, *, as_json: bool) -> typer.Exit:
    """What to raise when a task can not be followed any longer: it names the task and the command that goes on."""
    at = f" --server {server}" if server else ""
    message = f"{error} {task_id} goes on; follow it again with: gpuyard logs -f{at} {task_id}"
    complain(message, code=error.code, as_json=as_json)
    return typer.Exit(GAVE_UP)


def is_gone(error: "GpuyardError") -> bool:
    """Whether the scheduler said that the task itself, and not something of it, is not there."""
    return error.code in NOT_THERE


def gone(error: "GpuyardError", task_id: str, cluster: "Client", *, as_json: bool) -> typer.Exit:
    """What to raise when the scheduler at this address does not know a task that it, or one before it, has accepted."""
    server = cluster.connection.server
    if error.code == "AnotherTask":
        found = f"the scheduler at {server} has another task under this number now: its data folder was replaced or restored"
    else:
        found = (
            f"the scheduler at {server} does not know it any more: its data folder was replaced or restored, "
            "or you may not see the task now"
        )
    message = f"{task_id} can not be followed, {found}. How {task_id} ends can not be learned there."
    complain(message, code=error.code, as_json=as_json)
    return typer.Exit(1)
