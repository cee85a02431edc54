"""`gpuyard show`: print all details of a task."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client

if TYPE_CHECKING:
    from gpuyard.live.sdk.values import Task
    from gpuyard.live.wire.task_answers import ForecastAnswer

TaskIdArgument = Annotated[str, typer.Argument(metavar="ID", help="A task, such as task-7 or 7.")]
INSTANTS = frozenset({"created_at", "started_at", "finished_at", "running_since"})
TWICE = frozenset({"task_id", "assigned_gpus", "node_id", "estimated_low_seconds", "estimated_high_seconds"})
"""Fields that are left out, because another field has the same information."""


def show(
    task_id: TaskIdArgument, as_json: JsonOption = False, server: ServerOption = None, token: TokenOption = None
) -> None:
    """Show all details of a task."""
    cluster = client(server, token)
    task = cluster.task(task_id)
    from gpuyard.cli.output.printing import format_instant, print_answer, print_pairs

    if as_json:
        print_answer(cluster)
        return
    from msgspec import to_builtins

    predicted = "; ".join(map(_predicted, task.forecasts))
    fields = {name: value for name, value in to_builtins(task).items() if name not in TWICE}
    if task.estimated_seconds is not None:
        fields["estimated_seconds"] = _estimated(task)
    if predicted:
        fields["forecasts"] = predicted
    print_pairs((name, format_instant(value) if name in INSTANTS else value) for name, value in fields.items())


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
