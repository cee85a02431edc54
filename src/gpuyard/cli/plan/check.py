"""`gpuyard plan check`: check whether a plan is valid."""

from pathlib import Path
from typing import Annotated

import typer

from gpuyard.cli.input.options import json_option
from gpuyard.cli.plan.files import File, Gpus, MultiModel, Preload, open_problem

SHOWN = 10
"""The maximum number of violations that are printed."""


def check(
    file: File,
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan of the problem, as written by `solve --out`.")],
    gpus: Gpus = None,
    multi_model: MultiModel = None,
    preload: Preload = None,
    as_json: Annotated[bool, json_option("Print one JSON object: valid, faults, makespan_s.")] = False,
) -> None:
    """Check that a plan is valid; exit code 1 if it is not."""
    from gpuyard.cli.output.printing import print_json
    from gpuyard.plan import planner

    problem = open_problem(file, gpus, multi_model, preload)
    read = planner.read_plan(plan, problem)
    faults = planner.check(read, problem, at_most=SHOWN)
    if as_json:
        print_json({"valid": not faults, "faults": faults, "makespan_s": read.plan.makespan_s})
    elif faults:
        print("\n".join(faults))
    else:
        print(f"The plan is valid: {len(problem.calls):,} calls in {read.plan.makespan_s:,.2f} s.")
    if faults:
        raise typer.Exit(1)
