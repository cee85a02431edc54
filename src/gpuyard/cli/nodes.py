"""`gpuyard nodes`: list and administer the nodes of the cluster."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client, json_option
from gpuyard.cli.output.listing import Listing, group

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client
    from gpuyard.live.wire.answers import NodeAnswer

NAMES = ("ID", "STATUS", "GPUS", "IDLE", "MODELS", "CPUS", "MEMORY", "LOAD", "TASKS", "SEEN", "REASON")
ReasonOption = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Why, for other people; shown by `gpuyard nodes`.")
]
LOOK_SECONDS = 0.5
NodeIdArgument = Annotated[str, typer.Argument(metavar="ID", help="Node id, as listed by `gpuyard nodes`.")]


def nodes(cluster: "Client") -> Listing:
    """List all nodes; the commands below take a node out of use or put it back."""
    from gpuyard.cli.output.printing import format_seconds, seconds_since

    rows = (
        (
            node.id,
            _status(node),
            node.gpus,
            node.gpus_idle,
            [f"{count}×{model}" for model, count in node.gpu_models.items()],
            node.cpus,
            f"{node.memory_mb / 1024:.0f} GB",
            None if node.load is None else f"{node.load:.1f}",
            len(node.tasks),
            f"{format_seconds(seconds_since(node.last_seen))} ago" if node.last_seen else None,
            node.reason,
        )
        for node in cluster.nodes().nodes
    )
    return Listing(NAMES, rows, right=("GPUS", "IDLE", "CPUS", "MEMORY", "LOAD", "TASKS"))


def _status(node: "NodeAnswer") -> str:
    """Return the status of a node, with conditions that an operator should check."""
    words: list[str] = [node.status]
    if node.supervisor_silent_seconds is not None:
        words.append("supervisor silent")
    if node.unknown_attempts:
        words.append(
            f"{len(node.unknown_attempts)} {'unknown attempt' if len(node.unknown_attempts) == 1 else 'unknown attempts'}"
        )
    return ", ".join(words)


app = group(nodes)


@app.command()
def cordon(
    node: NodeIdArgument,
    reason: ReasonOption = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Place no new tasks on a node."""
    cluster = client(server, token)
    from gpuyard.cli.output.printing import report

    told = cluster.cordon(node, reason=reason)
    report(cluster, f"{told.id} is {told.status}: no new tasks are placed on it.", as_json=as_json)


@app.command()
def drain(
    node: NodeIdArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Also move suspended tasks away; they restart from the beginning.")
    ] = False,
    reason: ReasonOption = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the node has no tasks. Ctrl-C ends the waiting, not the drain.")
    ] = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Place no new tasks on a node, and move away tasks that allow it. The others run to their end."""
    cluster = client(server, token)
    from gpuyard.cli.output.printing import counted, report

    told = cluster.drain(node, force=force, reason=reason)
    if wait:
        told = _until_empty(cluster, told)
        report(cluster, f"{told.id} is {told.status} and has no tasks.", as_json=as_json)
        return
    report(cluster, f"{told.id} is {told.status}; it still has {counted(len(told.tasks), 'task')}.", as_json=as_json)


def _until_empty(cluster: "Client", told: "NodeAnswer") -> "NodeAnswer":
    """Wait until a node has no tasks; on standard error, say which ones are left."""
    import time

    from gpuyard.cli.output.printing import counted
    from gpuyard.cli.output.progress import StatusLine
    from gpuyard.core.domain.errors import GpuyardError
    from gpuyard.live.sdk.waiting import AWAY

    with StatusLine() as line:
        while told.tasks:
            left = ", ".join(told.tasks[:5]) + (", …" if len(told.tasks) > 5 else "")
            line.show(f"{told.id} still has {counted(len(told.tasks), 'task')}: {left}")
            time.sleep(LOOK_SECONDS)
            try:
                told = cluster.node(told.id)
            except AWAY as error:
                line.show(f"{str(error).split('. ')[0].rstrip('.')}. The drain continues; trying again.")
                continue
            if told.status not in {"draining", "offline", "away"}:
                raise GpuyardError(f"{told.id} is {told.status} again: the drain was ended by somebody else.")
    return told


@app.command()
def uncordon(
    node: NodeIdArgument, as_json: JsonOption = False, server: ServerOption = None, token: TokenOption = None
) -> None:
    """Place tasks on a node again."""
    cluster = client(server, token)
    from gpuyard.cli.output.printing import report

    told = cluster.uncordon(node)
    report(cluster, f"{told.id} is {told.status}.", as_json=as_json)


@app.command("unknown-attempts")
def unknown_attempts(
    node: Annotated[str | None, typer.Argument(metavar="[ID]", help="Only attempts on this node.")] = None,
    as_json: Annotated[bool, json_option("Print them as one JSON object.")] = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """List unknown attempts: those that a node runs and the scheduler does not know, as after a restored backup."""
    cluster = client(server, token)
    from gpuyard.cli.output.printing import print_json, print_table

    found = _unknown_attempts(cluster, node)
    if as_json:
        rows = [{"node_id": where, "task_id": task, "attempt": attempt} for where, task, attempt in found]
        print_json({"unknown_attempts": rows, "total": len(rows)})
    else:
        print_table(("NODE", "TASK", "ATTEMPT"), found, right=("ATTEMPT",))


@app.command("stop-unknown-attempt")
def stop_unknown_attempt(
    node: NodeIdArgument,
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK", help="Task id, as listed by `gpuyard nodes unknown-attempts`, such as task-7 or 7."
        ),
    ],
    attempt: Annotated[
        int | None, typer.Argument(metavar="[ATTEMPT]", min=1, help="Only this attempt (default: all of the task).")
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Stop attempts that a node runs and the scheduler does not know."""
    cluster = client(server, token)
    from gpuyard.cli.output.printing import report
    from gpuyard.core.domain.errors import GpuyardError

    name = task if task.startswith("task-") else f"task-{task}"
    attempts = [attempt] if attempt else [number for _, of, number in _unknown_attempts(cluster, node) if of == name]
    if not attempts:
        raise GpuyardError(f"{node} has no unknown attempt of {name}; see `gpuyard nodes unknown-attempts`.")
    for number in attempts:
        told = cluster.stop_unknown_attempt(node, name, number)
        report(cluster, told.message, as_json=as_json)


def _unknown_attempts(cluster: "Client", node: str | None) -> list[tuple[str, str, int]]:
    known = cluster.nodes().nodes
    if node is not None and node not in {one.id for one in known}:
        from gpuyard.core.domain.errors import GpuyardError

        raise GpuyardError(f"Node {node} does not exist; see `gpuyard nodes`.")
    return [(one.id, it.task_id, it.attempt) for one in known for it in one.unknown_attempts if node in {None, one.id}]


@app.command()
def remove(
    node: NodeIdArgument, as_json: JsonOption = False, server: ServerOption = None, token: TokenOption = None
) -> None:
    """Remove a node from the cluster. It joins again when its agent is restarted."""
    cluster = client(server, token)
    from gpuyard.cli.output.printing import report

    cluster.remove_node(node)
    report(
        cluster,
        f"{node} was removed from the cluster. It joins again when its agent is restarted.",
        as_json=as_json,
    )
