"""`gpuyard nodes`: the machines of the yard, and what an operator does to them."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.listing import Listing, group
from gpuyard.cli.options import Json, Server, Token, client

if TYPE_CHECKING:
    from gpuyard.sdk import Client

NAMES = ("ID", "STATUS", "GPUS", "IDLE", "MODELS", "CPUS", "MEMORY", "LOAD", "TASKS", "SEEN")
NodeId = Annotated[str, typer.Argument(metavar="ID", help="A node, as `gpuyard nodes` names it.")]


def nodes(yard: "Client") -> Listing:
    """List all nodes; with a verb, take one out of use or back into it."""
    from gpuyard.cli.printing import seconds_since, spoken_seconds

    rows = (
        (
            node.id,
            node.status if node.supervisor_silent_seconds is None else f"{node.status}, supervisor silent",
            node.gpus,
            node.gpus_idle,
            [f"{count}×{model}" for model, count in node.gpu_models.items()],
            node.cpus,
            f"{node.memory_mb / 1024:.0f} GB",
            None if node.load is None else f"{node.load:.1f}",
            len(node.tasks),
            f"{spoken_seconds(seconds_since(node.last_seen))} ago" if node.last_seen else None,
        )
        for node in yard.nodes().nodes
    )
    return Listing(NAMES, rows, right=("GPUS", "IDLE", "CPUS", "MEMORY", "LOAD", "TASKS"))


app = group(nodes)


@app.command()
def cordon(node: NodeId, as_json: Json = False, server: Server = None, token: Token = None) -> None:
    """Place nothing new on a node."""
    yard = client(server, token)
    from gpuyard.cli.printing import report

    told = yard.cordon(node)
    report(yard, f"{told.id} is {told.status}: nothing new is placed there.", as_json=as_json)


@app.command()
def drain(
    node: NodeId,
    force: Annotated[
        bool, typer.Option("--force", help="Move away what is suspended there, too; it starts from its beginning.")
    ] = False,
    as_json: Json = False,
    server: Server = None,
    token: Token = None,
) -> None:
    """Place nothing new on a node, and move away what allows it."""
    yard = client(server, token)
    from gpuyard.cli.printing import counted, report

    told = yard.drain(node, force=force)
    report(yard, f"{told.id} is {told.status}; it still has {counted(len(told.tasks), 'task')}.", as_json=as_json)


@app.command()
def uncordon(node: NodeId, as_json: Json = False, server: Server = None, token: Token = None) -> None:
    """Use a node again."""
    yard = client(server, token)
    from gpuyard.cli.printing import report

    told = yard.uncordon(node)
    report(yard, f"{told.id} is {told.status}.", as_json=as_json)


@app.command()
def remove(node: NodeId, as_json: Json = False, server: Server = None, token: Token = None) -> None:
    """Take a node out of the yard. Its agent brings it back when it is started again."""
    yard = client(server, token)
    from gpuyard.cli.printing import report

    yard.remove_node(node)
    report(
        yard, f"{node} was taken out of the yard; its agent brings it back when it is started again.", as_json=as_json
    )
