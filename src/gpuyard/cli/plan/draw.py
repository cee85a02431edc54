"""`gpuyard plan draw`: draw saved plans, or how they were executed."""

from pathlib import Path
from typing import Annotated

import typer

from gpuyard.cli.plan.files import File, Gpus, MultiModel, Preload, can_be_written, open_problem
from gpuyard.cli.plan.pictures import check_gantt_format, draw_gantt


def draw(
    file: File,
    plans: Annotated[list[Path], typer.Argument(metavar="PLAN...", help="Plans of the problem, or the output of `run --out`; drawn below each other.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Output file: .html, .png or .svg.")],
    gpus: Gpus = None,
    multi_model: MultiModel = None,
    preload: Preload = None,
) -> None:  # fmt: skip
    """Draw plans as timelines below each other: which model runs on which GPU, and when."""
    from gpuyard.plan.planner import read_plan

    check_gantt_format(out)
    can_be_written(out, beside=[file, *plans])
    problem = open_problem(file, gpus, multi_model, preload)
    draw_gantt(out, problem, [(plan.name, read_plan(plan, problem, or_actual=True).plan) for plan in plans])
    print(f"{out} shows {' and '.join(plan.name for plan in plans)}.")
