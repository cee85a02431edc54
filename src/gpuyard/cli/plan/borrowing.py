"""Options of `plan run` that borrow GPUs from a cluster."""

import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import client
from gpuyard.core.domain.values import TaskClass
from gpuyard.plan.workers import On

if TYPE_CHECKING:
    from gpuyard.plan.planner.problem import Problem
    from gpuyard.plan.workers.leases import BorrowOptions, ClusterGpus, HeadRoom
    from gpuyard.plan.workers.running import Borrowing

BorrowOption = Annotated[
    bool | None,
    typer.Option(
        "--borrow/--no-borrow",
        help="Borrow GPUs from the cluster and return them on request (default: if GPUYARD_SERVER is set, outside of tasks).",
    ),
]
LeaveFreeOption = Annotated[
    str | None,
    typer.Option(
        "--leave-free",
        metavar="N|P%",
        help="GPUs of the cluster that stay idle for others: a number, or a part of all, such as 10% (default: 0).",
    ),
]
HoldClassOption = Annotated[
    TaskClass,
    typer.Option("--class", help="Class of the tasks that hold the GPUs."),
]
HoldPriorityOption = Annotated[
    int | None,
    typer.Option(
        "--priority",
        metavar="0-100",
        min=0,
        max=100,
        help="Priority of the tasks that hold the GPUs, within their class.",
    ),
]
ListenOption = Annotated[
    str | None,
    typer.Option(
        "--listen",
        metavar="HOST[:PORT]",
        help="Address at which workers on the nodes reach this command (default: the one that reaches the scheduler).",
    ),
]
WorkerPythonOption = Annotated[
    str | None,
    typer.Option(
        "--worker-python",
        metavar="PATH",
        help="Python interpreter with gpuyard on the nodes (default: the one of this command).",
    ),
]


def leave_free(text: str | None) -> "HeadRoom":
    """Parse a number of GPUs, or a part of all with a percent sign."""
    from gpuyard.plan.workers.leases import HeadRoom

    found = re.fullmatch(r"(\d{1,6})|(\d{1,3}(?:\.\d{1,3})?)%", text or "0", re.ASCII)
    part = float(found[2] or 0) / 100 if found else 2.0
    if found is None or part > 1:
        message = f"{text!r} is neither a number of GPUs nor a part of all, such as 10%"
        raise typer.BadParameter(message, param_hint="'--leave-free'")
    return HeadRoom(int(found[1] or 0), part)


def borrowing(
    on: On,
    wanted: bool | None,
    server: str | None,
    token: str | None,
    options: "Callable[[], BorrowOptions]",
    warn: Callable[[str], None],
) -> "Borrowing | None":
    """Return how GPUs of a cluster are borrowed, if requested or if GPUYARD_SERVER is set.

    In a task every node sets GPUYARD_SERVER, and the plan runs on the GPUs of the task.
    """
    if wanted is None:
        is_set = bool(os.environ.get("GPUYARD_SERVER")) and "GPUYARD_TASK_ID" not in os.environ
        wanted = on is On.LOCAL and (server is not None or is_set)
    if not wanted:
        return None
    said = options()

    def borrow(problem: "Problem", speed_up: float) -> "ClusterGpus":
        from gpuyard.plan.workers.leases import ClusterGpus

        return ClusterGpus(client(server, token), problem, speed_up, said, warn)

    return borrow


def borrow_options(
    free: str | None, task_class: TaskClass, priority: int | None, listen: str | None, python: str | None
) -> "BorrowOptions":
    """Return the options, with the environment of this command for workers, as `submit --env-all` passes it."""
    from gpuyard.cli.input.environment import everything
    from gpuyard.plan.workers.leases import BorrowOptions

    env, secrets = everything(os.environ)
    return BorrowOptions(leave_free(free), task_class, priority, listen, python or sys.executable, env, secrets)
