"""`gpuyard tenants`: list tenants and set their limits."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client, finite, seconds_of
from gpuyard.cli.output.listing import Listing, group

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client
    from gpuyard.live.sdk.client import TenantLimits
    from gpuyard.live.wire.answers import TenantAnswer

NAMES = ("TENANT", "GPUS", "MAX", "GUARANTEED", "WEIGHT", "RUNNING", "PENDING", "GPU HOURS", "BY MODEL")


def tenants(cluster: "Client") -> Listing:
    """List tenants with their limits and usage; `set` changes limits."""
    from gpuyard.cli.output.printing import format_seconds

    rows = (
        (
            tenant.id,
            f"{tenant.used_gpus:g}",
            tenant.max_gpus,
            tenant.guaranteed_gpus,
            tenant.weight,
            tenant.running_tasks,
            tenant.pending_tasks,
            f"{tenant.gpu_hours:g} in {format_seconds(tenant.gpu_hours_period)}" if tenant.gpu_hours else None,
            tenant.max_gpus_by_model,
        )
        for tenant in cluster.tenants().tenants
    )
    return Listing(NAMES, rows, right=NAMES[1:7])


app = group(tenants)


@app.command("set")
def set_(
    tenant: Annotated[str, typer.Argument(metavar="NAME", help="Name of the tenant; created if it does not exist.")],
    max_gpus: Annotated[
        int | None, typer.Option("--max-gpus", metavar="N", min=0, help="Maximum number of GPUs in use.")
    ] = None,
    max_by_model: Annotated[
        list[str] | None, typer.Option("--max-by-model", metavar="MODEL=N", help="Maximum number of GPUs of one model.")
    ] = None,
    guaranteed_gpus: Annotated[
        int | None,
        typer.Option(
            "--guaranteed-gpus",
            metavar="N",
            min=0,
            help="GPUs that the tenant can take back from tenants above their own guarantee.",
        ),
    ] = None,
    max_open_tasks: Annotated[
        int | None,
        typer.Option("--max-open-tasks", metavar="N", min=1, help="Maximum number of open tasks (default: 100,000)."),
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option("--weight", callback=finite, metavar="W", help="Weight under fair share (default: 1)."),
    ] = None,
    gpu_hours: Annotated[
        float | None, typer.Option("--gpu-hours", callback=finite, metavar="HOURS", help="GPU-hours in each period.")
    ] = None,
    period: Annotated[
        str | None, typer.Option("--period", metavar="TIME", help="Period of the GPU-hours (default: 30d).")
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Remove all limits that are not given here; by default they are kept.")
    ] = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Change limits of a tenant. Limits that are omitted are kept; a new tenant starts with those of `default`."""
    named: TenantLimits = {
        "max_gpus": max_gpus,
        "max_gpus_by_model": _by_model(max_by_model),
        "guaranteed_gpus": guaranteed_gpus,
        "max_open_tasks": max_open_tasks,
        "weight": weight,
        "gpu_hours": gpu_hours,
        "gpu_hours_period": seconds_of(period, "--period"),
    }
    if not reset and all(value is None for value in named.values()):
        raise typer.BadParameter("give at least one limit, or --reset to remove all", param_hint="'set'")
    cluster = client(server, token)
    from gpuyard.cli.output.printing import report

    told = cluster.set_tenant(tenant, **(named if reset else _changed(cluster, tenant, named)))
    report(cluster, _limits(told), as_json=as_json)


def _changed(cluster: "Client", tenant: str, named: "TenantLimits") -> "TenantLimits":
    """Return the current limits of a tenant with the named ones changed; the API replaces all of them at once."""
    every = {known.id: known for known in cluster.tenants().tenants}
    now = every.get(tenant) or every.get("default")
    if now is None:
        return named
    limits: TenantLimits = {
        "max_gpus": now.max_gpus,
        "guaranteed_gpus": now.guaranteed_gpus,
        "max_open_tasks": now.max_open_tasks,
        "weight": now.weight,
        "gpu_hours": now.gpu_hours,
        "gpu_hours_period": now.gpu_hours_period,
    }
    for name, value in named.items():
        if value is not None:
            limits[name] = value  # type: ignore[literal-required]
    limits["max_gpus_by_model"] = {**now.max_gpus_by_model, **(named.get("max_gpus_by_model") or {})}
    return limits


def _limits(told: "TenantAnswer") -> str:
    """Return all limits of a tenant in a sentence."""
    from gpuyard.cli.output.printing import counted, format_seconds

    limits = ["all GPUs" if told.max_gpus is None else f"{counted(told.max_gpus, 'GPU')} at once"]
    limits += [f"{count} of model {model}" for model, count in sorted(told.max_gpus_by_model.items())]
    if told.gpu_hours is not None:
        period = f" in {format_seconds(told.gpu_hours_period)}" if told.gpu_hours_period else ""
        limits.append(f"{counted(told.gpu_hours, 'GPU-hour')}{period}")
    sentence = f"{told.id} may use {', '.join(limits)}."
    if told.guaranteed_gpus is not None:
        sentence += f" {counted(told.guaranteed_gpus, 'GPU')} of these are guaranteed."
    return sentence


def _by_model(texts: list[str] | None) -> dict[str, int] | None:
    found = {}
    for text in texts or ():
        model, _, count = text.rpartition("=")
        if not model or not count.isdigit():
            raise typer.BadParameter(f"{text!r} does not have the form MODEL=COUNT", param_hint="'--max-by-model'")
        found[model] = int(count)
    return found or None
