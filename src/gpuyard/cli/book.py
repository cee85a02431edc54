"""`gpuyard book`: hold GPUs for a time in the future, or close nodes for maintenance."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client, gpus_of, seconds_of

if TYPE_CHECKING:
    from datetime import datetime

    from gpuyard.live.wire.booking_answers import BookingAnswer


def book(
    gpus: Annotated[
        str | None,
        typer.Option("-g", "--gpus", metavar="N|MODEL:N", help="Number of GPUs, on one node if possible."),
    ] = None,
    begin: Annotated[
        str,
        typer.Option("--from", metavar="TIME", help="Begin, such as 18:00, 'fri 18:00' or now+2h (default: now)."),
    ] = "now",
    length: Annotated[str | None, typer.Option("--for", metavar="TIME", help="Length, such as 12h.")] = None,
    end: Annotated[str | None, typer.Option("--until", metavar="TIME", help="End, instead of --for.")] = None,
    weekly: Annotated[
        int, typer.Option("--weekly", metavar="N", min=1, max=52, help="Book the same hours in N weeks (default: 1).")
    ] = 1,
    gpu_model: Annotated[
        list[str] | None,
        typer.Option("-m", "--gpu-model", "--model", metavar="MODEL", help="GPU model; repeat to allow several."),
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option("--node", metavar="NODE", help="Node to use; repeat to allow several.")
    ] = None,
    maintenance: Annotated[
        bool, typer.Option("--maintenance", help="Close the nodes for maintenance: no task runs there meanwhile.")
    ] = False,
    preempt: Annotated[
        bool, typer.Option("--preempt", help="Stop tasks that are in the way at the begin, if they allow preemption.")
    ] = False,
    tenant: Annotated[
        str | None,
        typer.Option("-t", "--tenant", metavar="NAME", help="Tenant that may use the GPUs (default: yours)."),
    ] = None,
    note: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="Purpose of the booking.")] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Book GPUs for a time in the future; tasks use them with `submit --booking ID`. Or close nodes for maintenance."""
    times = _times(begin, length, end, weekly)
    if maintenance and (gpus or gpu_model):
        raise typer.BadParameter("a maintenance window closes whole nodes; omit the GPUs", param_hint="'--gpus'")
    if maintenance and not node:
        raise typer.BadParameter("a maintenance window needs at least one node", param_hint="'--node'")
    count, models = (None, None) if maintenance else gpus_of(gpus, gpu_model, None)
    asked: dict[str, Any] = {
        "gpu_model": models,
        "nodes": node,
        "tenant_id": tenant,
        "maintenance": maintenance,
        "preempt": preempt,
        "note": note,
    }
    cluster = client(server, token)
    made: list[BookingAnswer] = []
    try:
        for begins_at, ends_at in times:
            many = None if maintenance else 1 if count is None else count
            made.append(cluster.book(many, begins_at=begins_at, ends_at=ends_at, **asked))
            if as_json:
                from gpuyard.cli.output.printing import print_answer

                print_answer(cluster)
            else:
                typer.echo(_said(made[-1], begins_at, ends_at))
                _warn(made[-1])
    except BaseException:
        for booking in made:  # all weeks or none
            cluster.cancel_booking(booking.id)
        raise


def _times(begin: str, length: str | None, end: str | None, weekly: int) -> "list[tuple[datetime, datetime]]":
    """Return begin and end of each booking. Weeks are counted on the calendar, so that clock changes do not move them."""
    from datetime import datetime, timedelta

    now = datetime.now()  # noqa: DTZ005 - local time, in which the options are meant
    first = _instant(begin, now, "--from")
    if (length is None) == (end is None):
        raise typer.BadParameter("give the length with --for, or the end with --until", param_hint="'--for'")
    seconds = seconds_of(length, "--for")
    if end is not None:
        last = _instant(end, first.replace(tzinfo=None), "--until")
        seconds = (last - first).total_seconds()
        if seconds <= 0:
            raise typer.BadParameter(f"{end!r} is not after the begin", param_hint="'--until'")
    assert seconds is not None
    local = first.replace(tzinfo=None)
    begins = [first, *((local + timedelta(weeks=week)).astimezone() for week in range(1, weekly))]
    return [(one, one + timedelta(seconds=seconds)) for one in begins]


def _instant(text: str, now: "datetime", option: str) -> "datetime":
    from gpuyard.cli.input.instants import instant_in

    try:
        return instant_in(text, now)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a time: {error}", param_hint=f"'{option}'") from None


def _said(booking: "BookingAnswer", begins_at: "datetime", ends_at: "datetime") -> str:
    """Return what was booked, with absolute times and the length."""
    from gpuyard.cli.input.instants import spoken_instant
    from gpuyard.cli.output.printing import format_seconds

    where = ", ".join(
        part.node_id if booking.maintenance else f"{part.gpu_count} on {part.node_id}" for part in booking.parts
    )
    what = "maintenance" if booking.maintenance else f"{booking.gpu_count} GPU{'s' * (booking.gpu_count != 1)}"
    when = f"from {spoken_instant(begins_at)} to {spoken_instant(ends_at.astimezone())}"
    return f"{booking.id}: {what} ({where}) {when}, {format_seconds(booking.seconds)}."


def _warn(booking: "BookingAnswer") -> None:
    """Say which tasks are expected to be in the way."""
    if booking.late_tasks:
        names = ", ".join(booking.late_tasks[:5]) + (", …" if len(booking.late_tasks) > 5 else "")
        what = "are stopped if they allow it" if booking.preempt or booking.maintenance else "are waited for"
        print(f"gpuyard: These tasks may still run at the begin and {what}: {names}.", file=sys.stderr)
