"""`gpuyard lease`: GPUs for work that is started by hand."""

import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.input.options import (
    JsonOption,
    QuietOption,
    ServerOption,
    TenantOption,
    TokenOption,
    client,
    finite,
    gpu_memory_of,
    gpus_of,
    is_for_subcommand,
    priority_of,
    seconds_of,
)
from gpuyard.cli.lease.command import COMMAND, LEASE_VARIABLE, LeaseGroup, check_here, nodes_here, run_command
from gpuyard.cli.lease.guard import LeaseGuard
from gpuyard.cli.output.errors import complain
from gpuyard.cli.output.listing import Listing, list_command
from gpuyard.cli.output.progress import WaitProgress
from gpuyard.cli.output.task_output import gone, is_gone, outage_printer
from gpuyard.cli.shell.messages import localized

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from gpuyard.live.sdk import Client, Lease
    from gpuyard.live.wire.answers import LeaseAnswer

app = typer.Typer(cls=LeaseGroup, rich_markup_mode=None)
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NAMES = ("ID", "STATUS", "TENANT", "USER", "GPUS", "EXPIRES", "REASON")


@app.callback(invoke_without_command=True)
def lease(
    context: typer.Context,
    gpus: Annotated[
        str | None,
        typer.Option("-g", "--gpus", metavar="N|MODEL:N", help="Number of GPUs, such as 2 or A100:2 (default: 1)."),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="TIME", help="Release the lease after this time, such as 30m or 2h."),
    ] = None,
    wait: Annotated[
        str | None, typer.Option("--wait", metavar="TIME", help="Give up if the GPUs are not granted within this time.")
    ] = None,
    gpu_model: Annotated[
        list[str] | None,
        typer.Option("-m", "--gpu-model", metavar="MODEL", help="Allowed GPU model; repeat to allow several."),
    ] = None,
    any_of: Annotated[
        str | None, typer.Option("--any-of", metavar="MODEL,...", help="Allowed GPU models, such as H100,A100.")
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option("--gpu-mem", "--gpu-memory", metavar="SIZE", help="Minimum memory of each GPU, such as 24G."),
    ] = None,
    fraction: Annotated[
        float | None, typer.Option("--fraction", callback=finite, metavar="F", help="Share of one GPU, such as 0.5.")
    ] = None,
    priority: Annotated[
        str | None,
        typer.Option("-p", "--priority", metavar="high|low|N", help="Priority, 0 to 100; higher starts first."),
    ] = None,
    name: Annotated[str | None, typer.Option("-n", "--name", metavar="NAME", help="Name of the lease.")] = None,
    tenant: TenantOption = None,
    project: Annotated[str | None, typer.Option("--project", metavar="NAME", help="Project of the lease.")] = None,
    booking: Annotated[
        str | None, typer.Option("--booking", metavar="ID", help="Use the GPUs of this booking, when it has begun.")
    ] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Lease GPUs: wait for them, then print the id of the lease and CUDA_VISIBLE_DEVICES. `lease release` releases them.

    In a pipe, as in `eval $(gpuyard lease)`, print both as commands of the shell. With `-- COMMAND`, run it here with
    CUDA_VISIBLE_DEVICES set, and release them when it ends.
    """
    if is_for_subcommand(context, as_json, server, token):
        return
    cluster = client(server, token)
    command: list[str] | None = context.meta.get(COMMAND)
    if command is not None and as_json:
        raise typer.BadParameter("a command prints its own output; omit one of the two", param_hint="'--json'")
    if command is not None:
        check_here(cluster)
    count, models = gpus_of(gpus, gpu_model, any_of)
    if count == 0:
        raise typer.BadParameter("a lease needs at least one GPU", param_hint="'--gpus'")
    fields: dict[str, Any] = {
        "gpu_model": models,
        "gpu_memory_mb": gpu_memory_of(gpu_memory, share=fraction is not None and fraction < 1),
        "gpu_fraction": fraction,
        "priority": priority_of(priority),
        "name": name,
        "tenant_id": tenant,
        "project": project,
        "booking": booking,
    }
    from gpuyard.live.sdk import ClusterError, NotFound, Unreachable
    from gpuyard.live.sdk.client import new_key

    seconds, wait_seconds = seconds_of(timeout, "--timeout"), seconds_of(wait, "--wait")
    interrupts = _interrupts()
    pressed = _note_interrupts(interrupts)
    key = new_key()
    guard = LeaseGuard(
        lambda: client(server, token),
        lambda own: own.ask_for_lease(count, timeout=seconds, idempotency_key=key, **fields),
    )
    try:
        asked = cluster.ask_for_lease(count, timeout=seconds, idempotency_key=key, **fields)
    except ClusterError as error:
        if not error.may_have_arrived:
            guard.settle()
        elif isinstance(error, Unreachable):
            message = f"{error} If the lease was created, it is released within two minutes."
            raise Unreachable(message, may_have_arrived=True) from None
        raise
    guard.answered(asked)
    try:
        for number in interrupts:
            signal.signal(number, signal.default_int_handler)
        if pressed:
            raise KeyboardInterrupt
        with WaitProgress(quiet=quiet or as_json) as progress:
            outages = None if as_json else outage_printer(asked.id, progress)
            held = cluster.granted(asked, wait_seconds=wait_seconds, watch=progress.tell, on_outage=outages)
        if command is None:
            if not (quiet or as_json):
                _tell(cluster, held)
            _print(held, as_json=as_json)
        else:
            check_here(cluster, held.node_id)
            code = run_command(cluster, held, command)
            _give_up(cluster, asked, guard, as_json=as_json)
            raise typer.Exit(code)
    except typer.Exit:
        raise
    except BaseException as error:
        _give_up(cluster, asked, guard, as_json=as_json)
        if isinstance(error, NotFound) and is_gone(error):
            raise gone(error, asked.id, cluster, as_json=as_json) from None
        raise
    guard.settle()


def _print(held: "Lease", *, as_json: bool) -> None:
    """Print a lease: for people, for `eval` where nobody reads it, or as JSON."""
    if as_json:
        from gpuyard.cli.output.printing import print_json

        print_json(held)
    elif sys.stdout.isatty():
        typer.echo(held.id)
        for variable, value in held.env.items():
            typer.echo(f"{variable}={value}")
    else:
        from shlex import quote

        for variable, value in {**held.env, LEASE_VARIABLE: held.id}.items():
            typer.echo(f"export {variable}={quote(value)};")  # `eval $(…)` makes one line of all
    sys.stdout.flush()


def _tell(cluster: "Client", held: "Lease") -> None:
    """Say on standard error where the GPUs are, until when, and how they are given back."""
    from gpuyard.cli.output.printing import format_instant, one_line
    from gpuyard.live.sdk import ClusterError

    where = f" of node {held.node_id}" if held.node_id else ""
    try:
        if held.node_id and held.node_id not in nodes_here(cluster):
            where += ", which is not this machine"
    except ClusterError:  # it may not see the nodes; the lease is granted all the same
        pass
    until = f" until {format_instant(held.expires_at)}" if held.expires_at else " without a time limit"
    gpus = "1 GPU" if len(held.gpus) == 1 else f"{len(held.gpus)} GPUs"
    words = f"{held.id} holds {gpus}{where},{until}. To give back: gpuyard lease release {held.id}"
    print(f"gpuyard: {one_line(localized(words))}", file=sys.stderr)


def _give_up(cluster: "Client", lease: "LeaseAnswer", guard: LeaseGuard, *, as_json: bool) -> None:
    """Release a lease that only this command knows; if the scheduler cannot be reached, the guard keeps trying."""
    from gpuyard.live.sdk import NotFound
    from gpuyard.live.sdk.waiting import AWAY

    try:
        cluster.without_waiting().release_lease(lease)
    except AWAY as error:
        again = f"gpuyard lease release {lease.id}"
        message = f"{lease.id} could not be released yet; gpuyard retries for two minutes. If that fails, run: {again}"
        complain(message, code=error.code, as_json=as_json)
    except NotFound:  # the scheduler does not know it, or has another task under its number
        guard.settle()
    else:
        guard.settle()


def _interrupts() -> list[signal.Signals]:
    """Return the signals that release a lease. A signal that is ignored stays ignored, as SIGHUP is under nohup."""
    return [number for number in INTERRUPTS if signal.getsignal(number) is not signal.SIG_IGN]


def _note_interrupts(interrupts: "Sequence[signal.Signals]") -> list[int]:
    """Delay Ctrl-C (and TERM, HUP) during the request until the answer names the lease to release.

    The second signal does not wait.
    """
    pressed: list[int] = []

    def hear(number: int, frame: "FrameType | None") -> None:  # noqa: ARG001
        pressed.append(number)
        if len(pressed) > 1:
            raise KeyboardInterrupt

    for number in interrupts:
        signal.signal(number, hear)
    return pressed


@app.command()
def release(
    lease_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="ID...", help="Leases, such as task-7 (default: GPUYARD_LEASE_ID)."),
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Release leases. A lease that has ended is not changed."""
    from gpuyard.cli.output.printing import report
    from gpuyard.live.sdk import NotAllowed, Refused

    own = os.environ.get(LEASE_VARIABLE, "")
    ids = lease_ids or ([own] if own else [])
    if not ids:
        message = "name a lease, such as task-7; `gpuyard lease list` shows all"
        raise typer.BadParameter(message, param_hint="'ID'")
    cluster = client(server, token)
    failed = False
    for one in ids:
        try:
            answer = cluster.release_lease(one)
        except NotAllowed:
            raise
        except Refused as refused:  # the others are released all the same
            complain(refused.message, code=refused.code, field=refused.field, as_json=as_json)
            failed = True
            continue
        report(cluster, answer.message, as_json=as_json)
    if failed:
        raise typer.Exit(1)


@app.command("list")
@list_command
def list_(cluster: "Client") -> Listing:
    """List leases that are granted or waiting."""
    from gpuyard.cli.output.printing import format_instant

    rows = (
        (one.id, one.status, one.tenant_id, one.user, one.gpus, format_instant(one.expires_at), one.reason)
        for one in cluster.leases().leases
    )
    return Listing(NAMES, rows)
