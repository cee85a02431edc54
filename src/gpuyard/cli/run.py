"""`gpuyard run`: run a task as if it were a local command: print its output, cancel it on Ctrl-C, return its exit code.

Exit codes: the task's own; 128+n when signal n ended it, as shells have it; 124 when it took too long, as timeout(1)
has it; 130 when it was cancelled; 1 when it could not be run, with the reason; 75 when the scheduler was away for too long
to learn how it ends: the task goes on, and the command that follows it again is named. 1 also when the scheduler does not
know the task any more.
"""

import signal
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING, Self

import typer

from gpuyard.cli.input.options import JsonOption, QuietOption, ServerOption, TokenOption, client
from gpuyard.cli.input.task_options import RequestFields, task_options
from gpuyard.cli.output.errors import complain
from gpuyard.cli.output.progress import WaitProgress
from gpuyard.cli.output.task_output import Output, follow, gave_up, gone, is_gone, outage_printer, to_standard_output
from gpuyard.cli.submit import submitted, warn_if_nothing_fits
from gpuyard.core.domain.errors import GpuyardError

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread

    from gpuyard.live.sdk import Client, Task

TOOK_TOO_LONG = 124
SIGNALLED = 128
INTERRUPTED = 130
CANCEL_SECONDS = 5.0
CANCEL_PAUSE_SECONDS = 0.5
"""Seconds between two tries to cancel a task while the scheduler cannot be reached."""


@task_options
def run(
    request: RequestFields,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Submit a task, print its output and return its exit code. Ctrl-C cancels it; a second Ctrl-C leaves at once."""
    if request["array"]:
        raise typer.BadParameter("an array has several outputs; use `gpuyard submit`", param_hint="'--array'")
    cluster = client(server, token)
    with _Interrupts(cluster, silent=as_json) as interrupts, WaitProgress(quiet=quiet or as_json) as progress:
        task = submitted(cluster, request)[0]
        cluster = cluster.without_waiting()  # from here on the one who follows deals with outages
        interrupts.submitted(task)
        if not as_json:
            warn_if_nothing_fits(cluster, task)
        output = None if as_json else Output(cluster, _behind(progress))
        outages = None if as_json else outage_printer(task.id, progress)
        try:
            ended = follow(cluster, task, output, watch=progress.tell, on_outage=outages)
        except GpuyardError as error:
            progress.clear()
            if is_gone(error):
                raise gone(error, task.id, cluster, as_json=as_json) from None
            raise gave_up(error, task.id, server, as_json=as_json) from None
    if as_json:
        from gpuyard.cli.output.printing import print_json

        print_json(ended)
    raise typer.Exit(_exit_code(ended, silent=as_json))


def _behind(progress: WaitProgress) -> "Callable[[bytes], None]":
    """Remove the progress line before output is printed."""

    def write(part: bytes) -> None:
        progress.clear()
        to_standard_output(part)

    return write


def _exit_code(task: "Task", *, silent: bool) -> int:
    """Return our exit code; if it is not the one of the task, print the reason, unless JSON output has it."""
    if task.signal is not None and task.status != "timeout":
        return SIGNALLED + task.signal
    if task.status == "failed" and task.exit_code:
        return task.exit_code
    if task.status == "success":
        return 0
    if not silent:
        print(f"gpuyard: {task.id} ended as {task.status}. {task.reason or ''}".rstrip(), file=sys.stderr)
    return {"timeout": TOOK_TOO_LONG, "cancelled": INTERRUPTED}.get(task.status, 1)


class _Interrupts:
    """Cancel the task on Ctrl-C (and TERM) and wait for its end; a second signal exits once the scheduler has the request.

    A signal during the submission waits for the answer, because only the answer names the task to cancel.
    """

    def __init__(self, cluster: "Client", *, silent: bool) -> None:
        self._yard = cluster
        self._silent = silent
        self._task: Task | None = None
        self._pressed = 0
        self._cancelling: Thread | None = None

    def submitted(self, task: "Task") -> None:
        """Set the task to cancel."""
        self._task = task
        if self._pressed:
            self._cancel(task)

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._hear), signal.signal(signal.SIGTERM, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        if self._cancelling is not None and self._task is not None:
            # Report it if a task that should be cancelled continues.
            self._cancelling.join(CANCEL_SECONDS)
            if self._cancelling.is_alive():
                self._say(f"the scheduler does not answer. Cancel the task later: gpuyard cancel {self._task.id}")
        signal.signal(signal.SIGINT, self._before[0])
        signal.signal(signal.SIGTERM, self._before[1])

    def _hear(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._pressed += 1
        if self._pressed > 1:
            raise KeyboardInterrupt
        if self._task is not None:
            self._cancel(self._task)
        else:
            self._say("the task is being submitted and will be cancelled; press Ctrl-C again to leave without waiting.")

    def _cancel(self, task: "Task") -> None:
        from threading import Thread

        # In a thread: this one's connection may be in use.
        self._cancelling = Thread(target=_cancel, args=(self._yard, task, self._silent), daemon=True)
        self._cancelling.start()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._say(f"{task.id} is being cancelled; press Ctrl-C again to leave without waiting.")

    def _say(self, words: str) -> None:
        if not self._silent:
            behind_ctrl_c = "\n" if sys.stderr.isatty() else ""
            print(f"{behind_ctrl_c}gpuyard: {words}", file=sys.stderr)


def _cancel(cluster: "Client", task: "Task", as_json: bool) -> None:
    """Send the cancellation; if the scheduler cannot be reached, repeat it for as long as a restart may take."""
    from gpuyard.live.sdk.waiting import AWAY, RESTART_SECONDS

    cluster = cluster.without_waiting()
    give_up_at = time.monotonic() + RESTART_SECONDS
    while True:
        try:
            cluster.cancel(task)
        except AWAY as error:
            if time.monotonic() < give_up_at:
                time.sleep(CANCEL_PAUSE_SECONDS)
                continue
            complain(str(error), code=error.code, as_json=as_json)
        except GpuyardError as error:
            complain(str(error), code=error.code, as_json=as_json)
        return
