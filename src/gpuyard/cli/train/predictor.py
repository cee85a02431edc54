"""`gpuyard train predictor`: train a model on profiles and write it."""

from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from gpuyard.cli.input.options import json_option
from gpuyard.cli.train.files import PeaksFile, SeedOption, SpecsFile, ThreadsOption


def predictor(
    out: Annotated[Path, typer.Option("--out", metavar="MODEL", help="Output file of the model.")],
    profiles: Annotated[list[Path] | None, typer.Option("--profiles", metavar="FILE", help="Measured rows; one or more files.")] = None,
    journal: Annotated[Path | None, typer.Option("--journal", metavar="DIR", help="Data folder of a cluster: run times of its tasks that declared their workload.")] = None,
    specs: SpecsFile = None,
    calibration: PeaksFile = None,
    seed: SeedOption = 1,
    threads: ThreadsOption = 1,
    as_json: Annotated[bool, json_option("Print a summary of the training data as one JSON object.")] = False,
) -> None:  # fmt: skip
    """Train a predictor of run time, memory and GPU utilization on measured rows and on ended tasks of a cluster."""
    from gpuyard.cli.output.printing import print_json, print_pairs
    from gpuyard.cli.train.files import read_journal, read_profiles, read_specs
    from gpuyard.core.domain.errors import WrongInput
    from gpuyard.learn.performance import kind_model
    from gpuyard.learn.performance.model import PerformanceModel

    if not out.parent.is_dir():
        raise WrongInput(f"Folder {out.parent} does not exist")
    kind_model.THREADS = threads
    began = perf_counter()
    if not profiles and journal is None:
        raise WrongInput("Choose --profiles FILE, --journal DIR, or both")
    known = read_specs(specs, calibration)
    ended = None if journal is None else read_journal(journal, known, alone=not profiles)
    kinds = read_profiles(profiles or [], () if ended is None else ended.rows)
    model = PerformanceModel.trained(kinds, known, seed, 0.0 if ended is None else ended.seen_until)
    model.save(out)
    gpus = sorted({gpu for one in model.kind_models.values() for gpu in one.vocabulary["gpu"]})
    said = {
        "model": str(out),
        "rows": dict(model.trained_on),
        **({} if ended is None else {"tasks": ended.tasks, "kept_back": ended.kept_back}),
        "gpus": gpus,
        "bytes": out.stat().st_size,
        "seconds": round(perf_counter() - began, 1),
    }
    if as_json:
        print_json(said)
    else:
        print_pairs(said.items())
