"""`gpuyard train evaluate`: measure the accuracy of predictions on rows that were not used for training."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gpuyard.cli.input.options import json_option
from gpuyard.cli.train.files import PeaksFile, SeedOption, SpecsFile, TargetOption, ThreadsOption


def evaluate(
    train: Annotated[list[Path], typer.Option("--train", metavar="FILE", help="Training rows; one or more files.")],
    test: Annotated[list[Path] | None, typer.Option("--test", metavar="FILE", help="Test rows; one or more files.")] = None,
    hold_out: Annotated[str | None, typer.Option("--hold-out", metavar="WHAT", help="Without --test: random rows, whole families (family), or each GPU in turn (gpu).")] = None,
    samples: Annotated[int, typer.Option("--samples", metavar="N", min=0, help=(
        "With --hold-out gpu: number of rows of the held-out GPU that are used for training, as from a "
        "minute of measuring."
    ))] = 0,
    target: TargetOption = None,
    specs: SpecsFile = None,
    calibration: PeaksFile = None,
    seed: SeedOption = 1,
    threads: ThreadsOption = 1,
    as_json: Annotated[bool, json_option("Print the figures as one JSON object.")] = False,
) -> None:  # fmt: skip
    """Train on some rows, predict others, and print the accuracy."""
    from gpuyard.cli.output.printing import print_json
    from gpuyard.cli.train.files import read_profiles, read_specs, rows_of_kind
    from gpuyard.core.domain.errors import WrongInput
    from gpuyard.learn.performance import evaluation, kind_model

    if bool(test) == (hold_out is not None):
        raise WrongInput("Choose either --test FILE or --hold-out random|family|gpu")
    if hold_out is not None and hold_out not in evaluation.SPLITS:
        raise WrongInput(f"--hold-out must be {', '.join(evaluation.SPLITS)}, not {hold_out!r}")
    if samples and hold_out != "gpu":
        raise WrongInput("--samples requires --hold-out gpu")
    kind_model.THREADS = threads
    known, rows = read_specs(specs, calibration), read_profiles(train)
    if test:
        told = evaluation.across_files(rows, rows_of_kind(read_profiles(test), target), known, seed)
    else:
        told = evaluation.cross_validated(rows_of_kind(rows, target), known, hold_out or "", seed, samples)
    figures = evaluation.report(told)
    if as_json:
        print_json(figures)
    else:
        _print(figures)


def _print(figures: dict[str, Any]) -> None:
    """Print one line for all rows, then one for each GPU, kind and head."""
    from gpuyard.cli.output.printing import print_table

    parts = [
        ("all", figures),
        *((name, one) for by in ("by_gpu", "by_kind", "by_head") for name, one in figures[by].items()),
    ]
    shown = [
        (
            name,
            one["rows"],
            *(f"{100 * one[key]:.1f} %" for key in ("mape", "median_ape", "within_20", "band_coverage")),
        )
        for name, one in parts
    ]
    print_table(
        ("ROWS OF", "ROWS", "MAPE", "MEDIAN", "WITHIN 20 %", "IN THE RANGE"),
        shown,
        right=("ROWS", "MAPE", "MEDIAN", "WITHIN 20 %", "IN THE RANGE"),
    )
