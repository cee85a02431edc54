"""The jobs of a comparison as a CSV file, one row for each job and policy, for plots and statistics of one's own.

    policy, job, name, user, gpu_num     the request; `gpu_num` is fractional for a share of a GPU
    submit_s, start_s, end_s             instants; `start_s` is when it first had GPUs; empty if it never came to that
    jct_s, queue_s, held_s               from submission to end; without GPUs; with GPUs
    duration_s                           its real run time without interruption; empty if it is not known
    preemptions                          how often it was stopped for another

Instants are seconds since the beginning of a trace; of a journal they are Unix time.

`held_s - duration_s` is what stops and shared GPUs cost: repeated work, checkpoints, slow neighbors.
"""

import csv
import gzip
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from io import TextIOWrapper
from pathlib import Path

from gpuyard.core.domain.task import Resources
from gpuyard.core.domain.values import MILLI
from gpuyard.simulator.run import Result
from gpuyard.simulator.workloads.arrival import Arrival, Workload

COLUMNS = (
    "policy", "job", "name", "user", "gpu_num", "submit_s", "start_s", "end_s", "jct_s", "queue_s", "held_s", "duration_s",
    "preemptions",
)  # fmt: skip


def write_job_table(path: Path, runs: Iterable[tuple[Workload, Result]]) -> list[int]:
    """Write the jobs of all runs, each with its own workload, compressed if the name ends in .gz.

    Return the number of rows of each run.
    """
    counts = []
    with path.open("wb") as raw, ExitStack() as stack:
        packed = stack.enter_context(gzip.GzipFile("", "wb", fileobj=raw, mtime=0)) if path.suffix == ".gz" else raw
        file = stack.enter_context(TextIOWrapper(packed, encoding="utf-8", newline=""))
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for workload, result in runs:
            count = 0
            for row in _rows(workload, result):
                writer.writerow(row)
                count += 1
            counts.append(count)
    return counts


def _rows(workload: Workload, result: Result) -> Iterator[tuple[object, ...]]:
    lives = result.recorder.lives
    for arrival in _arrivals(workload, result):
        life = lives.get(arrival.task)
        if life is None:  # it was refused
            continue
        over = life.ended is not None
        yield (
            result.policy_variant.name, arrival.task, arrival.spec.name, arrival.spec.user, _gpus(arrival.spec.resources),
            _seconds(life.submitted), _seconds(life.started), _seconds(life.ended), _seconds(life.jct if over else None),
            _seconds(life.queued if over else None), _seconds(life.held), _seconds(arrival.seconds), life.preemptions,
        )  # fmt: skip


def _arrivals(workload: Workload, result: Result) -> Iterator[Arrival]:
    for _, coming in workload.arrivals(result.policy_variant):
        if isinstance(coming, tuple):
            yield from coming


def _gpus(ask: Resources) -> float:
    return ask.share.fraction_milli / MILLI if ask.share is not None else ask.gpus * ask.nodes


def _seconds(value: float | None) -> float | str:
    return "" if value is None else round(value, 3)
