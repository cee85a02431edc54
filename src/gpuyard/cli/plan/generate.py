"""`gpuyard plan generate`: generate a random problem."""

from pathlib import Path
from typing import Annotated

import typer

from gpuyard.cli.input.options import finite
from gpuyard.cli.plan.files import PlanSeedOption, write


def generate(
    family: Annotated[str, typer.Argument(metavar="FAMILY", help="chain, fanout, diamond, agentic, hot_model, tiny, huge, multi_gpu, hetero_time, tight_chain or switch_heavy.")],
    nodes: Annotated[int, typer.Argument(metavar="N", min=1, help="Minimum number of model calls in all requests together.")],
    gpus: Annotated[int, typer.Argument(metavar="G", min=1, help="GPUs.")],
    seed: PlanSeedOption = 0,
    mixed: Annotated[bool, typer.Option("--mixed", help="Half of the GPUs have 40 GB, the others 80 GB.")] = False,
    pcie: Annotated[float, typer.Option("--pcie", metavar="GB/S", callback=finite, min=0.001, help="Bandwidth at which models are loaded.")] = 25.0,
    levels: Annotated[bool, typer.Option("--levels", help="Give GPUs four power levels (assumed figures).")] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Output file, compressed if it ends in .gz (default: standard output).")] = None,
) -> None:  # fmt: skip
    """Generate a random problem of a family: the same seed gives the same problem."""
    from gpuyard.plan.planner.api import check_search
    from gpuyard.plan.planner.generate import generate as drawn
    from gpuyard.plan.planner.instance import write_instance

    check_search(seed=seed)
    text = write_instance(drawn(family, nodes, gpus, seed=seed, mixed=mixed, pcie_gb_s=pcie, levels=levels))
    if out is None:
        typer.echo(text.decode())
    else:
        write(out, text)
