"""Read and write files of problems and plans; names that end in .gz are compressed."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.error_location import shortened

if TYPE_CHECKING:
    from gpuyard.plan.planner.problem import Problem

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="Models, GPUs, workflows and requests; may be compressed (.gz).")
]
PlanSeedOption = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of all random numbers.")]
Gpus = Annotated[
    int | None,
    typer.Option("--gpus", metavar="N", help="Number of GPUs, instead of those in the file."),
]


MultiModel = Annotated[
    bool | None,
    typer.Option(
        "--multi-model/--single-model",
        help="Load several models on a GPU while its memory suffices, or only one (default: from the file).",
    ),
]


Preload = Annotated[
    bool | None,
    typer.Option(
        "--preload/--no-preload",
        help="Load the next model of a GPU while it runs calls, if its memory holds both (default: from the file).",
    ),
]


MOST_PREDICTED = 8
"""The most predicted times that are printed."""


class WrongFile(WrongInput):
    """The file cannot be used."""


def open_problem(
    path: Path, gpus: int | None = None, multi_model: bool | None = None, preload: bool | None = None
) -> "Problem":
    """Read the problem of a file and apply the options."""
    from gpuyard.plan.planner import read

    predicted: dict[str, float] = {}
    problem = read(
        path, gpus=gpus, multi_model=multi_model, preload=preload, predict=partial(_predicted_seconds, predicted)
    )
    for sentence in list(predicted)[:MOST_PREDICTED]:
        typer.echo(sentence, err=True)
    if len(predicted) > MOST_PREDICTED:
        typer.echo(f"{len(predicted) - MOST_PREDICTED:,} more times are predicted.", err=True)
    return problem


def _predicted_seconds(said: dict[str, float], work: "Mapping[str, Any]", gpu: str) -> float:
    """Return the predicted seconds of all steps of a work on a GPU, and note in a sentence what they are from."""
    from gpuyard.learn.performance.api import describe_workload, predict

    described = describe_workload(work)
    (found,) = predict(described, gpu)
    spec, a_millisecond = described.spec, found.seconds / found.step_ms
    mode = "training" if spec.mode == "train" else "inference"
    sentence = (
        f"exec_time predicted: {found.seconds:.4g} s ({found.step_low_ms * a_millisecond:.3g} to "
        f"{found.step_high_ms * a_millisecond:.3g} s) on {found.gpu} for {spec.steps:,} x {shortened(spec.model)}, "
        f"{mode}, batch {spec.batch}, size {spec.size}, {spec.precision}; from {found.from_}."
    )
    return said.setdefault(sentence, found.seconds)


def can_be_written(*paths: Path | None, beside: Sequence[Path | None]) -> None:
    """Check before planning that the output files can be written and that all files are different.

    `beside`: the input files.
    """
    taken = {path.resolve() for path in beside if path is not None}
    for path in paths:
        if path is None:
            continue
        if why := _why_not(path):
            raise WrongFile(f"Cannot write {path}: {why}.")
        if path.resolve() in taken:
            raise WrongFile(f"{path} is given twice; the second output would overwrite the first.")
        taken.add(path.resolve())


def _why_not(path: Path) -> str | None:
    if path.is_dir():
        return "it is a folder"
    if not path.parent.is_dir():
        return f"folder {path.parent} does not exist"
    return None if os.access(path if path.exists() else path.parent, os.W_OK) else "Permission denied"


def write(path: Path, content: bytes) -> None:
    """Write a file, compressed if the name ends in .gz."""
    from gpuyard.plan.planner import api

    if why := _why_not(path):
        raise WrongFile(f"Cannot write {path}: {why}.")
    api.write(path, content)
