"""Problems and plans to draw."""

import msgspec
import numpy as np

from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.problem_file import read_problem


def two_step_problem(requests: int, gpus: int = 2, *, wide: bool = False) -> Problem:
    """Requests of `draft` (model small, 4 s) and `write` (model large, 6 s); small loads in 1 s and large in 2."""
    return read_problem(
        msgspec.json.encode(
            {
                "format": "planner-instance/1",
                "name": "two steps",
                "pcie_gb_s": 10.0,
                "models": {
                    "small": {"memory_gb": 10, "load_time_s": 1},
                    "large": {"memory_gb": 40, "gpus": 2 if wide else 1, "load_time_s": 2},
                },
                "gpus": [{"id": i} for i in range(gpus)],
                "workflows": {
                    "w": {
                        "nodes": [
                            {"id": "draft", "model": "small", "exec_time": 4},
                            {"id": "write", "model": "large", "exec_time": 6, "deps": ["draft"]},
                        ]
                    }
                },
                "requests": [{"id": f"r{i}", "workflow": "w"} for i in range(requests)],
            }
        )
    )


def plan(*calls: tuple[int, float, float]) -> Plan:
    """GPU, start and end of each call."""
    gpu, start, end = zip(*calls, strict=True)
    return Plan(np.array(gpu, dtype=np.int32), np.array(start, dtype=np.float64), np.array(end, dtype=np.float64))


def back_to_back(problem: Problem) -> Plan:
    """Request after request, each on the GPU of its turn; every call waits for its model to be loaded."""
    free = np.zeros(len(problem.gpus))
    calls = []
    for request in range(len(problem.requests.ids)):
        g = request % len(problem.gpus)
        drafted = free[g] + (1.0 if not free[g] else 5.0) + 4.0
        free[g] = drafted + 3.0 + 6.0
        calls += [(g, drafted - 4.0, drafted), (g, drafted + 3.0, float(free[g]))]
    return plan(*calls)
