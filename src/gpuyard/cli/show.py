"""`gpuyard show`: all details of tasks, and what has happened to them."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client
from gpuyard.cli.input.task_selection import TasksArgument, tasks_named

if TYPE_CHECKING:
    from gpuyard.cli.output.screen import Screen
    from gpuyard.live.sdk import Client
    from gpuyard.live.sdk.values import Task
    from gpuyard.live.wire.story_answers import StoryEvent
    from gpuyard.live.wire.task_answers import ForecastAnswer

INSTANTS = frozenset({"created_at", "started_at", "finished_at", "running_since"})
TWICE = frozenset({"task_id", "assigned_gpus", "node_id", "estimated_low_seconds", "estimated_high_seconds", "origins"})
"""Fields that are left out: another field has the same information, or only programs need it."""
WITH_OUTPUT = frozenset({"failed", "timeout"})
"""The ends after which one wants to see the last lines of the output."""
EVENT_COLORS = {"failed": "red", "lost": "red", "stopped": "yellow"}

SHOWN_VARIABLES = 3
"""More variables than this are only counted; `--env` prints them."""


def show(
    tasks: TasksArgument = None,
    env: Annotated[
        bool, typer.Option("--env", help="Show its environment: variables, names of secrets, umask and limits.")
    ] = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Show all details of tasks: what was asked for, where they ran, what has happened and why.

    Of a task that has failed, the last lines of its output are shown, too. With --json one line for each task.
    """
    cluster = client(server, token)
    from gpuyard.cli.output.printing import print_answer, print_pairs
    from gpuyard.cli.output.screen import screen_of

    screen = screen_of()
    for place, task_id in enumerate(tasks_named(cluster, tasks)):
        task = cluster.task(task_id)
        if as_json:
            print_answer(cluster)
            continue
        if place:
            typer.echo("")
        if env:
            _print_environment(task)
            continue
        print_pairs(_details(task))
        lines = story_lines(cluster.events(task), screen)
        if task.status in WITH_OUTPUT and task.started_at is not None:
            from gpuyard.cli.output.last_lines import last_lines

            lines += ["", *last_lines(cluster, task, task.id)]
        sys.stdout.write("".join(f"{line}\n" for line in ["", *lines]))


def detail_lines(cluster: "Client", task_id: str) -> list[str]:
    """Return what `show` prints about a task, without colors."""
    from gpuyard.cli.output.printing import pair_lines
    from gpuyard.cli.output.screen import Screen

    task = cluster.task(task_id)
    plain = Screen(None, 0, colors=False, moves=False)
    return [*pair_lines(_details(task)), "", *story_lines(cluster.events(task), plain)]


def _details(task: "Task") -> "list[tuple[str, object]]":
    from msgspec import to_builtins

    from gpuyard.cli.output.printing import format_instant
    from gpuyard.cli.shell.messages import localized

    predicted = "; ".join(map(_predicted, task.forecasts))
    fields: dict[str, Any] = {name: value for name, value in to_builtins(task).items() if name not in TWICE}
    fields.pop("submit_process", None)
    if len(task.env) > SHOWN_VARIABLES:
        fields["env"] = f"{len(task.env)} variables; `gpuyard show --env {task.id}` prints them"
    if task.is_call:
        fields["command"] = f"the Python function {task.name}"
    if task.estimated_seconds is not None:
        fields["estimated_seconds"] = _estimated(task)
    if predicted:
        fields["forecasts"] = predicted
    if task.snapshot is not None:
        from gpuyard.cli.output.snapshots import short_snapshot

        fields["snapshot"] = short_snapshot(task.snapshot)
    fields["reason"] = localized(task.reason or "")
    return [(name, format_instant(value) if name in INSTANTS else value) for name, value in fields.items()]


def _print_environment(task: "Task") -> None:
    """Print what the task gets from the shell that submitted it, one variable on each line."""
    from gpuyard.cli.output.printing import print_lines

    variables: dict[str, str] = {**task.env, **dict.fromkeys(task.secrets, "(secret)")}
    lines = [f"{name}={value!r}" if "\n" in value else f"{name}={value}" for name, value in sorted(variables.items())]
    told = task.submit_process
    if told is not None and told.umask is not None:
        lines.append(f"umask {told.umask:04o}")
    limits = (told.limits if told is not None else None) or {}
    lines += [f"limit {name} {'unlimited' if most < 0 else most}" for name, most in sorted(limits.items())]
    print_lines(
        "".join(f"{line}\n" for line in lines) or "The task got nothing of the environment it was submitted from.\n"
    )


def story_lines(events: "list[StoryEvent]", screen: "Screen") -> list[str]:
    """Return what has happened, one event a line: when, how long after the event before, what, why, and who caused it."""
    from datetime import datetime

    from gpuyard.cli.output.printing import format_instant, format_seconds, one_line

    lines, before = [], None
    stamps = [format_instant(event.at) for event in events]
    width = max(map(len, stamps), default=0)
    for stamp, event in zip(stamps, events, strict=True):
        at = datetime.fromisoformat(event.at)
        passed = max(0.0, (at - before).total_seconds()) if before is not None else 0.0
        later = f"+{format_seconds(passed)}" if passed >= 1 else ""
        before = at
        outcome = str(event.data.get("outcome") or event.data.get("status") or "")
        said = " ".join(one_line(words) for words in (event.text, event.cause or "") if words)
        by = f" [{one_line(event.by)}]" if event.by and not event.by.startswith("agent:") else ""
        lines.append(f"{stamp:<{width}} {later:>7}  {screen.paint(said, EVENT_COLORS.get(outcome))}{by}")
    return lines


def _estimated(task: "Task") -> str:
    """The expected run time with its range."""
    low, high = task.estimated_low_seconds, task.estimated_high_seconds
    between = "" if low is None or high is None or low == high else f" ({low:,.0f} to {high:,.0f})"
    return f"{task.estimated_seconds:,.0f}{between}"


def _predicted(one: "ForecastAnswer") -> str:
    """A prediction in a few words."""
    from gpuyard.cli.output.printing import format_seconds

    likely, low, high = map(format_seconds, (one.seconds, one.low_seconds, one.high_seconds))
    memory = "" if one.memory_mib is None else f", {one.memory_mib:,.0f} MiB"
    return f"{one.gpu_model} {likely} ({low} to {high}){memory}"
