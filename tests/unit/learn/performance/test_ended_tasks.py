"""Ended tasks of a cluster as training rows."""

import json
from typing import Any

import pytest

from gpuyard.core.domain.workload import WorkloadSpec
from gpuyard.learn.performance import gpu_specs
from gpuyard.learn.performance.ended_tasks import EndedRun, ended_runs, rows_of

WORK = {"model": "resnet50", "batch": 64, "steps": 1000}


def answer(**said: Any) -> tuple[float, bytes]:
    usual = {
        "gpu_count": 1, "nodes": 1, "reason_code": "succeeded", "run_seconds": 100.0, "ran_on": "NVIDIA H200",
        "work": WORK, "gpu_memory_peak_mib": 9_400, "gpu_utilization": 80.0, "name": "something else",
    }  # fmt: skip
    return 5.0, json.dumps(usual | said).encode()


def test_a_successful_task_reports_what_its_work_took() -> None:
    assert ended_runs([answer()]) == [
        EndedRun(WorkloadSpec(model="resnet50", batch=64, steps=1000), "NVIDIA H200", 100.0, 5.0, 9_400, 80.0)
    ]


@pytest.mark.parametrize(
    "said",
    [
        {"work": None},
        {"work": {**WORK, "steps": 1}},
        {"reason_code": "exit_code"},
        {"run_seconds": 29.0},
        {"run_seconds": None},
        {"ran_on": None},
        {"gpu_count": 2},
        {"nodes": 2},
        {"gpu_count": "rubbish"},
    ],
)
def test_other_tasks_report_nothing(said: dict[str, Any]) -> None:
    assert ended_runs([answer(**said)]) == []


def test_rows_are_steps_and_memory_without_the_cuda_context() -> None:
    known = rows_of(ended_runs([answer(), answer(run_seconds=110.0, gpu_memory_peak_mib=None)]), gpu_specs.shipped())
    assert known["network"].measured.tolist() == [100.0, 110.0]
    assert known["memory"].measured.tolist() == [8_000.0]
    assert known["utilization"].measured.tolist() == [0.8, 0.8]
    assert set(known["network"].gpu) == {"H200-SXM"}


def test_unknown_models_and_gpus_are_left_out() -> None:
    strange = [answer(work={**WORK, "model": "no such model"}), answer(ran_on="virtual")]
    assert rows_of(ended_runs(strange), gpu_specs.shipped()) == {}
