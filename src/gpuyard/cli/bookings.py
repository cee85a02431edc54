"""`gpuyard bookings`: list bookings and maintenance windows, and cancel them."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client
from gpuyard.cli.output.listing import Listing, group

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client

NAMES = ("ID", "STATUS", "FROM", "TO", "LENGTH", "GPUS", "WHERE", "TENANT", "USER", "TASKS", "NOTE")


def bookings(cluster: "Client") -> Listing:
    """List bookings and maintenance windows, the next one first; `book` makes one."""
    from datetime import datetime

    from gpuyard.cli.input.instants import spoken_instant
    from gpuyard.cli.output.printing import format_seconds

    rows = (
        (
            one.id,
            "late" if one.status == "active" and one.late_tasks else one.status,
            spoken_instant(datetime.fromisoformat(one.begins_at).astimezone()),
            spoken_instant(datetime.fromisoformat(one.ends_at).astimezone()),
            format_seconds(one.seconds),
            one.gpu_count,
            [part.node_id for part in one.parts],
            one.tenant_id,
            one.user,
            one.tasks,
            f"maintenance{': ' * bool(one.note)}{one.note}" if one.maintenance else one.note,
        )
        for one in cluster.bookings().bookings
    )
    return Listing(NAMES, rows, right=("LENGTH", "GPUS", "TASKS"))


app = group(bookings)


@app.command("cancel")
def cancel_booking(
    booking: Annotated[list[str], typer.Argument(metavar="ID...", help="Bookings, such as booking-3 or 3.")],
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Cancel bookings, or end them early; tasks that run on their GPUs continue."""
    from gpuyard.cli.output.printing import report

    cluster = client(server, token)
    for one in dict.fromkeys(booking):
        told = cluster.cancel_booking(one)
        report(cluster, told.message, as_json=as_json)
