"""`gpuyard down`: stop what `gpuyard up` started."""

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import DataDirOption, json_option

if TYPE_CHECKING:
    from pathlib import Path

    from gpuyard.cli.up.lock_file import RunningCluster

STOP_SECONDS = 60.0
ANSWER_SECONDS = 3.0
StopTasks = Annotated[bool, typer.Option("--stop-tasks", help="Cancel all waiting and running tasks too.")]


def down(
    data_dir: DataDirOption = None,
    stop_tasks: StopTasks = False,
    as_json: Annotated[bool, json_option("Print what was stopped as one JSON object.")] = False,
) -> None:
    """Stop the cluster of `gpuyard up`. Tasks continue and are managed again after the next start, unless --stop-tasks is given."""
    from gpuyard.cli.up import command_on, data_folder
    from gpuyard.cli.up.lock_file import running_cluster
    from gpuyard.cli.up.remaining_tasks import end_all, running_tasks_message

    folder = data_folder(data_dir)
    known = running_cluster(folder)
    cancelled = _cancel_all(known) if stop_tasks and known else 0
    if known:
        _stop(folder, known)
    supervisor = folder / "agent" / "supervisor"
    if stop_tasks:
        cancelled += end_all(supervisor)
    if as_json:
        from msgspec import json

        told = {"was_up": known is not None, "pid": known.pid if known else None, "stopped_tasks": cancelled}
        typer.echo(json.encode(told).decode())
        return
    typer.echo(f"The cluster in {folder} has stopped." if known else f"No cluster is running in {folder}.")
    if stop_tasks and (known or cancelled):
        typer.echo(f"{cancelled} {('task was' if cancelled == 1 else 'tasks were')} cancelled.")
    elif known:
        typer.echo(running_tasks_message(supervisor, command_on(folder, "up"), command_on(folder, "down")))
    else:
        typer.echo(
            running_tasks_message(supervisor, command_on(folder, "up"), command_on(folder, "down"), none=_elsewhere())
        )


def _elsewhere() -> str:
    """Return where the cluster may be that is not in this folder: its tasks may run."""
    from gpuyard.core.domain.errors import GpuyardError
    from gpuyard.live.sdk import connect

    words = "A cluster that was started with --data-dir needs the same --data-dir here."
    try:
        cluster = connect(timeout_seconds=ANSWER_SECONDS)
        cluster.health()
    except GpuyardError:
        return words
    return f"{words} A scheduler answers at {cluster.connection.server}."


def _cancel_all(known: "RunningCluster") -> int:
    """Ask the scheduler, so that the cancellations are recorded in the journal."""
    from gpuyard.live.sdk import NotAllowed, connect

    cluster = connect(known.http or None, token="")
    try:
        tasks = list(cluster.tasks(status="pending,running,suspended"))
    except NotAllowed:  # login is on
        cluster = connect(known.http or None)
        tasks = list(cluster.tasks(status="pending,running,suspended"))
    for number, task in enumerate(tasks):
        _progress(f"cancelling tasks, {number} of {len(tasks)}")
        cluster.cancel(task)
    longest = max((task.grace or 0.0 for task in tasks), default=0.0)
    for number, _ in enumerate(cluster.ends(tasks, timeout=STOP_SECONDS + longest)):
        _progress(f"waiting for tasks to end, {number + 1} of {len(tasks)}")
    _progress("")
    return len(tasks)


def _stop(folder: "Path", known: "RunningCluster") -> None:
    from gpuyard.cli.up.lock_file import running_cluster
    from gpuyard.core.domain.errors import GpuyardError

    os.kill(known.pid, signal.SIGTERM)
    give_up_at = time.monotonic() + STOP_SECONDS
    while (now := running_cluster(folder)) and now.pid == known.pid:
        if time.monotonic() > give_up_at:
            raise GpuyardError(
                f"Process {known.pid} does not stop. Read {folder}/logs/scheduler.log or kill the process."
            )
        _progress("stopping")
        time.sleep(0.05)
    _progress("")


def _progress(words: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{words}", end="", file=sys.stderr, flush=True)
