"""Rows from ended tasks of a cluster: their declared workload, and the time and memory it took.

A task says less than a profile. Its run time includes the start of the program and everything that is not a step. So
only tasks count that succeeded, ran for at least half a minute on one GPU, and declared their number of steps. Its
memory is what the driver reported, minus CUDA's own part. Both values are what the next task of its kind will take on
this cluster.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from gpuyard.core.domain.causes import CauseKind
from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.workload import WorkloadSpec
from gpuyard.learn.performance.dataset import ProfileRows, merge_rows
from gpuyard.learn.performance.gpu_specs import GpuSpec, GpuSpecs
from gpuyard.learn.performance.model import PerformanceModel
from gpuyard.learn.performance.operation_profile import OperationProfile
from gpuyard.learn.performance.query import CUDA_CONTEXT_MIB, profile_of, query_rows

LEAST_SECONDS = 30.0
"""The run time of shorter tasks is mostly startup."""
LEAST_MIB = 16.0


class EndedRun(msgspec.Struct, frozen=True):
    """An ended task that declared its workload, with its time and memory."""

    work: WorkloadSpec
    gpu_model: str
    seconds: float
    ended_at: float
    memory_peak_mib: float | None = None
    utilization: float | None = None
    """GPU utilization in percent; None if it was not measured."""


class _Answer(msgspec.Struct):
    """The fields of an archived task that are used here."""

    gpu_count: int
    nodes: int
    reason_code: str | None
    run_seconds: float | None = None
    ran_on: str | None = None
    work: WorkloadSpec | None = None
    gpu_memory_peak_mib: float | None = None
    gpu_utilization: float | None = None


_decode = msgspec.json.Decoder(_Answer).decode


def ended_runs(ended: Iterable[tuple[float, bytes]]) -> list[EndedRun]:
    """Return the archived tasks that can be learned from, in the order in which they ended."""
    found = []
    for at, answer in ended:
        if b'"work":null' in answer:
            continue
        try:
            said = _decode(answer)
        except msgspec.DecodeError:  # archived by a version without declared workloads
            continue
        if said.work is None or said.ran_on is None or said.reason_code != CauseKind.SUCCEEDED:
            continue
        if said.gpu_count * said.nodes == 1 and said.work.steps > 1 and (said.run_seconds or 0.0) >= LEAST_SECONDS:
            seconds = said.run_seconds or 0.0
            found.append(
                EndedRun(said.work, said.ran_on, seconds, at, said.gpu_memory_peak_mib, said.gpu_utilization)
            )  # fmt: skip
    return found


def rows_of(ran: Sequence[EndedRun], specs: GpuSpecs) -> dict[str, ProfileRows]:
    """Return the runs as rows, by kind. Unknown models and GPUs are left out."""
    alike: dict[tuple[WorkloadSpec, str], list[EndedRun]] = {}
    for one in ran:
        alike.setdefault((one.work, one.gpu_model), []).append(one)
    parts: list[ProfileRows] = []
    for (work, gpu_model), some in alike.items():
        try:
            made, chip = profile_of(work), specs.find(gpu_model)
        except WrongInput:
            continue
        parts += _measured(work, made, chip, some)
    return merge_rows(parts)


def _measured(work: WorkloadSpec, made: OperationProfile, chip: GpuSpec, some: list[EndedRun]) -> list[ProfileRows]:
    """Return the rows of tasks with the same workload on the same GPU."""
    took = {
        "network": [one.seconds / work.steps * 1e3 for one in some],
        "memory": [
            max(one.memory_peak_mib - CUDA_CONTEXT_MIB, LEAST_MIB)
            for one in some
            if one.memory_peak_mib is not None and made.parameter_bytes
        ],
        "utilization": [max(one.utilization / 100.0, 0.01) for one in some if one.utilization is not None],
    }
    return [_rows(kind, work, made, chip, values) for kind, values in took.items() if values]


def _rows(kind: str, work: WorkloadSpec, made: OperationProfile, chip: GpuSpec, values: list[float]) -> ProfileRows:
    count = len(values)
    asked = query_rows(kind, work, [made] * count, np.full(count, float(work.batch)), [chip.gpu] * count)
    return replace(asked, measured=np.array(values))


def mean_error(model: PerformanceModel, ran: Sequence[EndedRun]) -> float | None:
    """Return the mean relative error of the predictions for these run times; None if none can be predicted."""
    found = rows_of(ran, model.specs).get("network")
    if found is None:
        return None
    said = model.predict(found)
    return float(np.mean(np.abs(said.middle / found.measured - 1.0)))
