"""The option `--idle-rate`: a number, or `live` for that of the cluster."""

from dataclasses import dataclass
from typing import Annotated

import typer

from gpuyard.cli.input.options import client

LIVE = "live"

IdleRateOption = Annotated[
    str | None,
    typer.Option(
        "--idle-rate",
        metavar="RATE|live",
        help=(
            "Idle rate of the GPUs, 0 to 1, which determines the weights of `pareto`; live: that of the cluster's GPUs now "
            "(default: that of the shortest plan)."
        ),
    ),
]


@dataclass(frozen=True, slots=True)
class GivenIdleRate:
    """An idle rate, and where it is from, in words."""

    rate: float | None = None
    source: str = "that of the shortest plan"


def given_idle_rate(text: str | None, server: str | None, token: str | None) -> GivenIdleRate:
    """Parse the option; ask the scheduler if it says so."""
    if text is None:
        return GivenIdleRate()
    if text == LIVE:
        from gpuyard.plan.workers.cluster_idle import idle_gpus

        found = idle_gpus(client(server, token))
        return GivenIdleRate(found.rate, str(found))
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0.0 <= rate <= 1.0:
        raise typer.BadParameter(f"{text!r} is not a number from 0 to 1 and not {LIVE!r}", param_hint="'--idle-rate'")
    return GivenIdleRate(rate, "as given")
