"""Training jobs with their data loading, on K80, P100 and V100 (stanford-futuredata/gavel, MIT). A rate of 0 was not measured.

The files name their jobs and say nothing of what is in them; `SAMPLE_GFLOPS` is what a sample of each takes in training, by
the papers of these models, and only has to be right within a factor of a few.
"""

import re

import numpy as np

from gpuyard.learn.performance.arrays import FloatArray, TextArray
from gpuyard.learn.performance.dataset import CsvColumns, ProfileRows, constant_column

SAMPLE_GFLOPS = {
    "ResNet-18": 3.3,
    "ResNet-50": 24.6,
    "Transformer": 5.0,
    "LM": 20.0,
    "Recommendation": 0.12,
    "CycleGAN": 700.0,
    "A3C": 2.0,
}


def alone(columns: CsvColumns) -> list[ProfileRows]:
    """Jobs with exclusive GPUs."""
    count = len(columns)
    jobs = _rows(
        columns.texts("gpu"),
        columns.texts("model"),
        columns.numbers("batch_size", empty=1.0),
        columns.numbers("n_gpus", above=0),
        columns.numbers("steps_per_sec"),
        np.where(columns.numbers("consolidated") > 0, "yes", "no"),
        constant_column("none", count),
        np.zeros(count),
    )
    return [jobs]


def pairs(columns: CsvColumns) -> list[ProfileRows]:
    """Two jobs on one GPU: a row for each, with the other one."""
    gpu = columns.texts("gpu")
    found = {side: _named(columns.texts(f"job_{side}")) for side in "ab"}
    together = constant_column("yes", len(columns))
    return [
        _rows(
            gpu,
            *found[one],
            columns.numbers(f"n_gpus_{one}", above=0),
            columns.numbers(f"steps_per_sec_{one}"),
            together,
            *found[other],
        )
        for one, other in ("ab", "ba")
    ]


def _named(jobs: TextArray) -> tuple[TextArray, FloatArray]:
    """`ResNet-18 (batch size 16)`: the model, and its batch."""
    said = [re.fullmatch(r"(.*?)(?: \(batch size (\d+)\))?", job) for job in jobs.tolist()]
    return np.array([s[1] if s else "" for s in said]), np.array([float((s and s[2]) or 1) for s in said])


def _rows(
    gpu: TextArray,
    model: TextArray,
    batch: FloatArray,
    gpus: FloatArray,
    rate: FloatArray,
    consolidated: TextArray,
    company: TextArray,
    company_batch: FloatArray,
) -> ProfileRows:
    measured = rate > 0
    gflops = np.array([SAMPLE_GFLOPS.get(name, 5.0) for name in model.tolist()])
    every = ProfileRows(
        "gavel_jobs",
        gpu,
        model,
        constant_column("fp32", len(gpu)),
        1e3 / np.where(measured, rate, 1.0),
        {"batch": batch, "gpus": gpus, "gflops": gflops, "company_batch": company_batch},
        {"model": model, "consolidated": consolidated, "company": company},
    )
    return every.take(measured)
