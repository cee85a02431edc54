"""`gpuyard plan submit`: submit a plan to a cluster as batch tasks.

The scheduler decides where and when they run: online tasks are first and may preempt them. To execute a plan exactly, use
`gpuyard plan run`.
"""

import re
import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.input.options import ServerOption, TokenOption, client, json_option
from gpuyard.cli.plan.files import File, open_problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuyard.live.sdk import Client, Task
    from gpuyard.live.sdk.client import NewTaskFields
    from gpuyard.plan.planner.problem import Problem
    from gpuyard.plan.planner.sessions import Session

MIB_A_GB = 1e9 / 2**20
LEAST_SECONDS = 0.001
LONGEST_NAME = 200
PLACEHOLDER = re.compile(r"\{(calls|request|node|model)\}")


class TaskUnit(StrEnum):
    """The unit of a plan that becomes one task."""

    SESSION = "session"
    CALL = "call"


def submit(
    file: File,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="Command of every task; {model}, {calls}, {request} and {node} are replaced.")],
    plan: Annotated[Path, typer.Option("--plan", metavar="PLAN", help="Plan of the problem, as written by `solve --out`.")],
    task_unit: Annotated[TaskUnit, typer.Option("--task-unit", help="Submit one task per session (consecutive calls of one model, listed in {calls}) or one per call.")] = TaskUnit.SESSION,
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until all tasks have ended; exit code 1 unless all succeeded.")] = False,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Name of this submission; submitting again with the same name submits nothing.")] = None,
    tenant: Annotated[str | None, typer.Option("-t", "--tenant", metavar="NAME", help="Tenant whose quota is used (default: yours).")] = None,
    preemption: Annotated[str, typer.Option("--preemption", metavar="never|suspend|checkpoint|requeue", help="Whether and how the tasks may be preempted.")] = "requeue",
    work_dir: Annotated[Path | None, typer.Option("-C", "--work-dir", metavar="DIR", help="Working directory of the tasks (default: this folder).")] = None,
    as_json: Annotated[bool, json_option("Print the tasks as one JSON object; with --wait, their results.")] = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:  # fmt: skip
    """Submit a plan to a cluster as batch tasks with dependencies and models."""
    from gpuyard.plan.planner.api import valid_plan
    from gpuyard.plan.planner.sessions import LOADS, sessions_of

    _check_command(command, task_unit)
    problem = open_problem(file)
    followed = valid_plan(plan, problem)
    sessions = sessions_of(problem, followed, loads=LOADS if task_unit is TaskUnit.SESSION else 0.0)
    common: NewTaskFields = {
        "priority": "low",
        "tenant_id": tenant,
        "preemption": preemption,  # type: ignore[typeddict-item]
        "project": problem.name[:LONGEST_NAME] or None,
        "work_dir": work_dir or Path.cwd(),
    }
    tasks = [_task(problem, session, command, common) for session in sessions]
    cluster = client(server, token)
    made = cluster.submit_many(tasks, idempotency_key=key)
    if wait:
        made = _ended(cluster, made, followed.makespan_s, quiet=as_json)
    if as_json:
        from gpuyard.cli.output.printing import print_json

        calls = [[problem.name_of(call) for call in session.calls] for session in sessions]
        told = [_told(task, of) for task, of in zip(made, calls, strict=True)]
        print_json({"plan": problem.name, "planned_s": followed.makespan_s, "tasks": told})
    elif not wait:
        typer.echo("\n".join(task.id for task in made))
    if wait and not all(task.succeeded for task in made):
        raise typer.Exit(1)


def _check_command(command: "Sequence[str]", task_unit: TaskUnit) -> None:
    """Refuse a command without the placeholder for its calls: each task would run all calls, or none."""
    named = {name for word in command for name in PLACEHOLDER.findall(word)}
    if task_unit is TaskUnit.SESSION and named & {"request", "node"}:
        message = "a session has several calls: use {calls} or --task-unit call"
    elif task_unit is TaskUnit.SESSION and "calls" not in named:
        message = "it does not contain {calls}, so the tasks would not know their calls"
    elif not named & {"calls", "request"}:
        message = "it contains neither {request} nor {calls}, so the tasks would not know their calls"
    else:
        return
    raise typer.BadParameter(message, param_hint="'COMMAND...'")


def _task(problem: "Problem", session: "Session", command: "Sequence[str]", common: "NewTaskFields") -> "NewTaskFields":
    """Return the task request of one session."""
    from math import ceil

    model = problem.models[session.model]
    calls = [problem.name_of(call) for call in session.calls]
    request, _, node = calls[0].rpartition("/")
    words = {"calls": calls, "request": [request], "node": [node], "model": [model.name]}
    more = f" and {len(calls) - 1} more" if len(calls) > 1 else ""
    return {
        **common,
        "command": _filled_in(command, words),
        "name": f"{calls[0]}{more}"[:LONGEST_NAME],
        "model": model.name[:LONGEST_NAME],
        "gpu_count": model.gpus,
        "gpu_memory_mb": ceil(model.memory_gb * MIB_A_GB) or None,
        "estimated_seconds": max(model.load_s + session.work_s, LEAST_SECONDS),
        "depends_on": [f"tasks[{place}]" for place in sorted(session.after)] or None,
    }


def _filled_in(command: "Sequence[str]", words: dict[str, list[str]]) -> list[str] | str:
    """Fill in the placeholders: the argument {calls} becomes one argument per call; within a longer one, spaces separate calls."""
    if len(command) == 1 and " " in command[0].strip():
        return PLACEHOLDER.sub(lambda found: shlex.join(words[found[1]]), command[0])
    filled: list[str] = []
    for word in command:
        alone = PLACEHOLDER.fullmatch(word)
        filled += words[alone[1]] if alone else [PLACEHOLDER.sub(lambda found: " ".join(words[found[1]]), word)]
    return filled


def _ended(cluster: "Client", tasks: "list[Task]", planned_s: float, *, quiet: bool) -> "list[Task]":
    """Wait for all tasks and return them; print progress to standard error and the result to standard output."""
    import sys
    from time import perf_counter

    began, ends = perf_counter(), {}
    shown = sys.stderr.isatty() and not quiet
    for task in cluster.ends(tasks):
        ends[task.number] = task
        if shown:
            print(f"\r\x1b[K{len(ends):,} of {len(tasks):,} tasks ended", end="", file=sys.stderr, flush=True)
    if shown:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    found = [ends[task.number] for task in tasks]
    if not quiet:
        for task in found:
            if not task.succeeded and task.status != "cancelled":
                print(f"{task.id} ({task.name}): {task.status}. {task.reason or ''}".rstrip())
        well = sum(task.succeeded for task in found)
        print(
            f"{well:,} of {len(found):,} tasks succeeded in {perf_counter() - began:,.1f} s; the plan "
            f"takes {planned_s:,.1f} s."
        )
    return found


def _told(task: "Task", calls: list[str]) -> dict[str, Any]:
    return {
        "id": task.id,
        "name": task.name,
        "model": task.model,
        "gpu_count": task.gpu_count,
        "calls": calls,
        "depends_on": task.depends_on,
        "status": task.status,
        "attempts": task.attempts,
    }
