"""Jobs in the format of Gavel's simulator (OSDI 2020): training steps, and steps per second on each GPU model.

    jobs           job_type, total_steps, scale_factor (GPUs), arrival_s
    throughputs    gpu_type, model (the type of job), num_gpus, iters_per_s

A job can run on the GPU models that have a row with its type and number of GPUs and more than zero steps per second.
Its run time is that of its steps on the fastest of them. Priority weights are not read. An invalid row is an error with
its line.
"""

from pathlib import Path

from gpuyard.core.domain.validation import LEAST_SPEED, MOST_SPEED
from gpuyard.core.placement.speeds import Speeds
from gpuyard.input.files import shown_path
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.trace import (
    LAST_INSTANT,
    MOST_GPUS,
    MOST_SECONDS,
    Trace,
    WrongTrace,
    number_in,
    rows_of,
)

JOB_COLUMNS = ("job_type", "total_steps", "scale_factor", "arrival_s")
SPEED_COLUMNS = ("gpu_type", "model", "num_gpus", "iters_per_s")
MOST_STEPS = 1e15

ThroughputTable = dict[tuple[str, int], dict[str, float]]
"""Steps per second, by type of job and number of GPUs, and then by GPU model."""


def read_gavel(path: Path, throughputs: Path) -> Trace:
    """Read the jobs of one file with the throughputs of another."""
    table = read_throughputs(throughputs)
    jobs: list[Job] = []
    out_of_order = 0
    shown = shown_path(path)
    for line, row in rows_of(path, JOB_COLUMNS):
        where = f"{shown}, line {line}"
        submit = number_in(row, "arrival_s", where, 0, LAST_INSTANT)
        steps = number_in(row, "total_steps", where, 0, MOST_STEPS)
        gpus = _gpus(row, "scale_factor", where)
        by_kind = table.get((row["job_type"], gpus))
        if by_kind is None:
            raise WrongTrace(f"{where}: {shown_path(throughputs)} has no speed of {row['job_type']} on {gpus} GPUs.")
        speeds: Speeds = tuple(sorted(by_kind.items()))
        seconds = steps / max(speed for _, speed in speeds)
        if seconds > MOST_SECONDS:
            raise WrongTrace(
                f"{where}: its {row['total_steps']} steps would take longer than {MOST_SECONDS:g} seconds."
            )
        out_of_order += bool(jobs) and submit < jobs[-1].submit
        jobs.append(Job(submit, seconds, gpus, name=row["job_type"], models=tuple(sorted(by_kind)), speeds=speeds))
    if not jobs:
        raise WrongTrace(f"{shown}: the file contains no jobs.")
    if out_of_order:
        jobs.sort(key=lambda job: job.submit)
    return Trace(jobs, sorted_rows=out_of_order)


def read_throughputs(path: Path) -> ThroughputTable:
    """Read the speed of job types on GPU models; rows with zero throughput are left out."""
    table: ThroughputTable = {}
    shown = shown_path(path)
    for line, row in rows_of(path, SPEED_COLUMNS):
        where = f"{shown}, line {line}"
        a_second = number_in(row, "iters_per_s", where, 0, MOST_SPEED)
        if 0 < a_second < LEAST_SPEED:
            raise WrongTrace(
                f"{where}: iters_per_s is {row['iters_per_s']}; it must be 0, or at least {LEAST_SPEED:g}."
            )
        if not row["gpu_type"]:
            raise WrongTrace(f"{where}: gpu_type is empty.")
        gpus = _gpus(row, "num_gpus", where)
        by_kind = table.setdefault((row["model"], gpus), {})
        if row["gpu_type"] in by_kind:
            raise WrongTrace(f"{where}: {row['model']} on {gpus} GPUs of {row['gpu_type']} occurs twice.")
        by_kind[row["gpu_type"]] = a_second
    return {
        kind: possible
        for kind, by_kind in table.items()
        if (possible := {gpu: speed for gpu, speed in by_kind.items() if speed})
    }


def _gpus(row: dict[str, str], name: str, where: str) -> int:
    gpus = number_in(row, name, where, 0, MOST_GPUS)
    if gpus != int(gpus) or not gpus:
        raise WrongTrace(f"{where}: {name} is {row[name]!r}; it must be a whole number above zero.")
    return int(gpus)
