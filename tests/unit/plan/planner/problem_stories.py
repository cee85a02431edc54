"""Small problems, written as sentences."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from gpuyard.plan.planner.problem import Ints, Problem
from gpuyard.plan.planner.problem_file import read_problem

Node = tuple[str, str, float, list[str]]
"""Its name, its model, its seconds, the nodes it waits for."""


def problem(
    nodes: Sequence[Node],
    models: Mapping[str, Mapping[str, float]],
    gpus: list[dict[str, object]] | int,
    **more: object,
) -> Problem:
    """One request of one workflow; loading takes `load_time_s`, unloading a second for each GB."""
    text = msgspec.json.encode(
        {
            "format": "planner-instance/1",
            "models": models,
            "gpus": [{"id": i} for i in range(gpus)]
            if isinstance(gpus, int)
            else [{"id": i} | g for i, g in enumerate(gpus)],
            "workflows": {"w": {"nodes": [{"id": n, "model": m, "exec_time": s, "deps": d} for n, m, s, d in nodes]}},
            "requests": [{"id": "r", "workflow": "w"}],
            "pcie_gb_s": 1.0,
        }
        | more
    )
    return read_problem(text)


def ints(*values: int) -> Ints:
    """A column of whole numbers."""
    return np.array(values, dtype=np.int32)
