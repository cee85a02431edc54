"""`gpuyard demo`: submit a small sample workload."""

from importlib.resources import files
from typing import TYPE_CHECKING

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client
from gpuyard.cli.submit import warn_if_nothing_fits

if TYPE_CHECKING:
    from gpuyard.live.sdk import Task
    from gpuyard.live.sdk.client import NewTaskFields


def demo(as_json: JsonOption = False, server: ServerOption = None, token: TokenOption = None) -> None:
    """Submit six short sample tasks, to see a queue, logs, a failure and a dependency. They end within a minute."""
    cluster = client(server, token)
    tasks = cluster.submit_many(sample_workload())
    if as_json:
        from gpuyard.cli.output.printing import print_answer

        print_answer(cluster)
    else:
        _print(tasks, cluster.connection.server)
    warn_if_nothing_fits(cluster, tasks[0], alone=True)


def _print(tasks: "list[Task]", address: str) -> None:
    typer.echo("\n".join(f"{task.id}  {task.name}" for task in tasks))
    typer.echo(f"Watch them with `gpuyard ps` and `gpuyard logs -f {tasks[0].id}`, or at {address}.")


def sample_workload() -> "list[NewTaskFields]":
    """Return the tasks. The button of the empty dashboard submits the same file."""
    import msgspec

    found: dict[str, list[NewTaskFields]] = msgspec.json.decode(
        files("gpuyard.cli").joinpath("sample_workload.json").read_bytes()
    )
    return found["tasks"]
