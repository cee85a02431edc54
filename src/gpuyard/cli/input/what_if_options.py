"""`gpuyard simulate --journal … --quota …, --tenant …, --mix …`: parse what is different from the recorded cluster."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from gpuyard.core.domain.errors import WrongInput

if TYPE_CHECKING:
    from gpuyard.simulator.comparison import JobSet


class WrongWhatIf(WrongInput):
    """These changes of a journal cannot be understood."""


def journal_with(
    folder: Path,
    *,
    quota: str | None,
    nodes: Path | None,
    cluster: str | None,
    add_nodes: str | None,
    remove_nodes: str | None,
    tenants: Sequence[str],
    mix: str | None,
    resample: bool,
    seed: int,
) -> "JobSet":
    """Read a journal with the changes that the options name."""
    from gpuyard.simulator.clusters import parse_cluster, read_nodes
    from gpuyard.simulator.comparison import journal_jobs

    if nodes is not None and cluster is not None:
        raise WrongWhatIf("Choose the nodes: either --nodes FILE or --cluster NxG, or neither for the recorded ones.")
    others = read_nodes(nodes) if nodes is not None else parse_cluster(cluster, "--cluster") if cluster else None
    return journal_jobs(
        folder,
        quota=quota,
        cluster=others,
        add_nodes=parse_cluster(add_nodes, "--add-nodes") if add_nodes is not None else None,
        remove_nodes=remove_nodes or (),
        tenants=dict(_tenant(text) for text in tenants),
        mix=_mix(mix or ""),
        resample=resample,
        seed=seed,
    )


def _tenant(text: str) -> tuple[str, dict[str, float | None]]:
    """Parse `NAME:max_gpus=8:weight=2`; `none` removes a limit."""
    from gpuyard.simulator.workloads.what_if import LimitName

    known: tuple[Any, ...] = get_args(LimitName)
    name, *changes = text.split(":")
    limits: dict[str, float | None] = {}
    for change in changes:
        limit, _, value = change.partition("=")
        if limit not in known:
            raise WrongWhatIf(f"--tenant: {limit!r} is not a limit of a tenant; the limits are {', '.join(known)}.")
        limits[limit] = None if value == "none" else _number(value, f"--tenant {name}: {limit}")
    if not name or not limits:
        raise WrongWhatIf(f"--tenant is {text!r}; it must be NAME:LIMIT=VALUE, such as research:max_gpus=16:weight=2.")
    return name, limits


def _mix(text: str) -> dict[str, float]:
    """Parse `tenant:research=2,class:online=0.5`."""
    found: dict[str, float] = {}
    for one in filter(None, text.split(",")):
        tasks, equals, value = one.strip().rpartition("=")
        if not equals or not tasks:
            raise WrongWhatIf(
                f"--mix is {text!r}; it must be TASKS=FACTOR, such as tenant:research=2,class:online=0.5."
            )
        found[tasks] = _number(value, f"--mix {tasks}")
    return found


def _number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise WrongWhatIf(f"{what} is {text!r}; it must be a number.") from None
