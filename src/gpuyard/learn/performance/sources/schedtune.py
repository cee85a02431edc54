"""Peak memory of twelve image models in training (SchedTune, CCGrid 2022, MIT). GPUs are described, not named."""

from functools import cache
from math import log

import numpy as np

from gpuyard.learn.performance.dataset import CsvColumns, ProfileRows, constant_column
from gpuyard.learn.performance.gpu_specs import GpuSpec, shipped
from gpuyard.learn.performance.operation_profile import OPERATION_MIX


@cache
def _nearest(sm: float, bandwidth: float) -> str:
    """Return the GPU that is most similar to this description."""

    def apart(gpu: GpuSpec) -> float:
        return abs(log(gpu.sm_count / sm)) + abs(log(gpu.mem_bw_gbs / bandwidth))

    return min(shipped().gpus.values(), key=apart).gpu


def rows(columns: CsvColumns) -> list[ProfileRows]:
    """Return rows of one kind: memory."""
    model = columns.texts("model")
    described = zip(
        columns.numbers("sm_count", above=0).tolist(), columns.numbers("mem_bw_gbs", above=0).tolist(), strict=True
    )
    return [
        ProfileRows(
            "memory",
            np.array([_nearest(sm, bandwidth) for sm, bandwidth in described]),
            model,
            constant_column("fp32", len(columns)),
            columns.numbers("peak_mem_mib", above=0),
            {
                "batch": columns.numbers("batch_size", above=0),
                "activations": columns.numbers("activations_mb", above=0),
                "parameters": columns.numbers("parameters_mb", above=0),
                "input": columns.numbers("input_mb", above=0),
                **dict.fromkeys(OPERATION_MIX, np.zeros(len(columns))),
            },
            {
                "source": constant_column("schedtune", len(columns)),
                "mode": constant_column("train", len(columns)),
                "numbers": constant_column("fp32", len(columns)),
            },
        )
    ]
