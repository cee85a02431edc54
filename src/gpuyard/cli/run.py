"""`gpuyard run`: run a task as if it were a local command: print its output, cancel it on Ctrl-C, return its exit code.

Exit codes: the task's own; 128+n when signal n ended it, as shells have it; 124 when it took too long, as timeout(1)
has it; 130 when it was cancelled, whatever signal ended it then; 1 when it could not be run, with the reason; 75 when the scheduler was away for too long
to learn how it ends: the task goes on, and the command that follows it again is named. 1 also when the scheduler does not
know the task any more.
"""

import os
import re
import signal
import stat
import sys
import time
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn, Self

import typer

from gpuyard.cli.console.options import EscapeOption, LingerOption, check_escape, ends_with, escapes, linger_of
from gpuyard.cli.explain import CANCELLED
from gpuyard.cli.input.options import JsonOption, QuietOption, ServerOption, TokenOption, client
from gpuyard.cli.input.task_options import RequestFields, task_options
from gpuyard.cli.output.errors import complain
from gpuyard.cli.output.missing_module import LastOutput, hint_on_missing_module
from gpuyard.cli.output.progress import WaitProgress
from gpuyard.cli.output.task_output import Output, follow, gave_up, gone, is_gone, outage_printer, to_standard_output
from gpuyard.cli.shell.messages import localized
from gpuyard.cli.submit import submitted, warn_if_nothing_fits
from gpuyard.core.domain.errors import GpuyardError

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Thread

    from gpuyard.cli.console.session import SessionEnd
    from gpuyard.live.sdk import Client, Task

USUAL_LINGER = "15m"
TOOK_TOO_LONG = 124
SIGNALLED = 128
INTERRUPTED = 130
INTERACTIVE = re.compile(r"(ba|da|z|fi|k|c|tc)?sh|i?python[0-9.]*|R|julia|node|irb|lua")
"""Programs that ask for input if they are started without arguments."""
CANCEL_SECONDS = 5.0
CANCEL_PAUSE_SECONDS = 0.5
"""Seconds between two tries to cancel a task while the scheduler cannot be reached."""


@task_options
def run(
    request: RequestFields,
    pty: Annotated[
        bool, typer.Option("--pty", help="Run it in a terminal: for a shell, an editor or a notebook.")
    ] = False,
    linger: LingerOption = USUAL_LINGER,
    keep: Annotated[
        bool, typer.Option("--keep", help="With --pty: never close the terminal for want of a client.")
    ] = False,
    escape: EscapeOption = "ctrl-]",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Submit a task, print its output and return its exit code. Ctrl-C cancels it; a second Ctrl-C leaves at once.

    Standard input is passed on if it is a pipe or a file.
    """
    check_escape(escape)
    if request["array"]:
        raise typer.BadParameter("an array has several outputs; use `gpuyard submit`", param_hint="'--array'")
    _point_out_directives(request["command"])
    if pty:
        _run_in_terminal(request, linger_of(linger, keep=keep), escape, quiet or as_json, as_json, server, token)
    feeds = _has_input()
    if not (feeds or as_json):
        _point_out_terminal(request["command"])
    if feeds:
        request["console"] = {"terminal": False, "linger": linger_of(linger, keep=keep)}
    cluster = client(server, token)
    with _Interrupts(cluster, silent=as_json) as interrupts, WaitProgress(quiet=quiet or as_json) as progress:
        task = submitted(cluster, request)[0]
        cluster = cluster.without_waiting()  # from here on the one who follows deals with outages
        interrupts.submitted(task)
        if not as_json:
            warn_if_nothing_fits(cluster, task)
        remembered = LastOutput()
        if feeds:
            from gpuyard.cli.console.standard_input import feed

            feed(cluster, task)
        output = None if as_json else Output(cluster, _behind(progress, remembered))
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
    elif hint := hint_on_missing_module(ended, remembered.text, os.environ):
        print(f"gpuyard: {localized(hint)}", file=sys.stderr)
    raise typer.Exit(exit_code_of(ended, silent=as_json))


def _run_in_terminal(
    request: RequestFields,
    linger_seconds: float | None,
    escape: str,
    quiet: bool,
    as_json: bool,
    server: str | None,
    token: str | None,
) -> NoReturn:
    """Submit the task, wait for its start, and connect its terminal with this one. Does not return."""
    from gpuyard.cli.console.raw_terminal import traveling_variables
    from gpuyard.cli.console.session import SessionEnd, TerminalSession, check_terminal, own_size

    check_terminal("leave out --pty to pass on a file or a pipe")
    columns, rows = own_size()
    request["console"] = {"terminal": True, "columns": columns, "rows": rows, "linger": linger_seconds}
    request["env"] = {**traveling_variables(), **(request["env"] or {})}
    cluster = client(server, token)
    with _Interrupts(cluster, silent=as_json) as interrupts, WaitProgress(quiet=quiet) as progress:
        task = submitted(cluster, request)[0]
        cluster = cluster.without_waiting()
        interrupts.submitted(task)
        if not as_json:
            warn_if_nothing_fits(cluster, task)
        try:
            now = until_started(cluster, task, progress)
        except GpuyardError as error:
            progress.clear()
            if is_gone(error):
                raise gone(error, task.id, cluster, as_json=as_json) from None
            raise gave_up(error, task.id, server, as_json=as_json) from None
    again = f"gpuyard attach {task.id}"
    console = cluster.console(task, received=0, size=own_size())
    end = SessionEnd("over")
    if not now.ended:
        session = TerminalSession(console, escape=escapes(escape), reads=True, types=True, again=again, insists=True)
        end = session.run()
        if end.why == "refused":
            end = _refused(cluster, task, end)
    ends_with(end, cluster, task, console, as_json=as_json, again=again)
    raise AssertionError("`ends_with` ends this command")


def _refused(cluster: "Client", task: "Task", end: "SessionEnd") -> "SessionEnd":
    """Return the end of a session that was refused: a short command may be over; another one is of no use and cancelled.

    A session that another client has taken over leaves the task alone.
    """
    from gpuyard.cli.console.session import OVER, TAKEN, SessionEnd

    if end.reason in OVER or cluster.task(task).ended:
        return SessionEnd("over")
    if end.reason in TAKEN:
        return end
    cluster.cancel(task)
    return end._replace(sentence=f"{end.sentence} {task.id} was cancelled.")


def until_started(cluster: "Client", task: "Task", progress: WaitProgress) -> "Task":
    """Wait until the task runs, or has ended."""
    for now in cluster.changes(task, on_outage=outage_printer(task.id, progress)):
        progress.tell(now)
        if now.ended or (now.status == "running" and now.started_at):
            return now
    raise AssertionError("changes end with the end of the task")


def _has_input() -> bool:
    """Return whether standard input is a pipe, a socket or a file, with something in it or still to come."""
    try:
        about = os.fstat(0)
    except OSError:
        return False
    if stat.S_ISREG(about.st_mode):
        return os.lseek(0, 0, os.SEEK_CUR) < about.st_size
    if not stat.S_ISFIFO(about.st_mode) and not stat.S_ISSOCK(about.st_mode):
        return False
    import select

    poll = select.poll()
    poll.register(0, select.POLLIN)
    return all(mask & select.POLLIN or not mask & select.POLLHUP for _, mask in poll.poll(0))


def _point_out_directives(command: "list[str] | str") -> None:
    """Report that the options in a job script of Slurm are not used: `run` runs it as an ordinary program."""
    if isinstance(command, str):
        return
    from pathlib import Path

    from gpuyard.cli.slurm.script import is_job_script

    if is_job_script(Path(command[0])):
        words = f"{command[0]} has #SBATCH lines, which `gpuyard run` does not read; `gpuyard submit` does."
        print(f"gpuyard: {words}", file=sys.stderr)


def _point_out_terminal(command: "list[str] | str") -> None:
    """Report to a terminal that a shell or interpreter without arguments reads nothing here."""
    words = command.split() if isinstance(command, str) else command
    if len(words) == 1 and INTERACTIVE.fullmatch(words[0].rpartition("/")[2]) and sys.stdin.isatty():
        told = f"{words[0]} reads nothing without a terminal and ends at once; `gpuyard run --pty` gives it one."
        print(f"gpuyard: {localized(told)}", file=sys.stderr)


def _behind(progress: WaitProgress, remembered: LastOutput) -> "Callable[[bytes], None]":
    """Remove the progress line before output is printed."""

    def write(part: bytes) -> None:
        progress.clear()
        remembered.add(part)
        to_standard_output(part)

    return write


def exit_code_of(task: "Task", *, silent: bool) -> int:
    """Return our exit code; if it is not the one of the task, print the reason, unless JSON output has it."""
    if task.signal is not None and task.status not in {"timeout", "cancelled"}:
        return SIGNALLED + task.signal
    if task.status == "failed" and task.exit_code:
        return task.exit_code
    if task.status == "success":
        return 0
    if not silent:
        reason = "" if task.reason == CANCELLED else task.reason or ""
        print(f"gpuyard: {task.id} ended as {task.status}. {reason}".rstrip(), file=sys.stderr)
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
            print(f"{behind_ctrl_c}gpuyard: {localized(words)}", file=sys.stderr)


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
