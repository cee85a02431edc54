"""Small problems for tests: a few words each."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuyard.plan.planner.generate import generate
from gpuyard.plan.planner.instance import (
    FORMAT,
    Instance,
    WrittenGpu,
    WrittenModel,
    WrittenNode,
    WrittenRequest,
    WrittenWorkflow,
)
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.problem_file import problem_of

Node = tuple[str, str, float, str]
"""Name, model, seconds, and what it waits for, with spaces between."""


def instance(*nodes: Node, gpus: int = 2, requests: int = 1, **more: Any) -> Instance:
    """One workflow. Models have 25 GB on as many GPUs as the figure in their name says: 3 s to load, 1 s to unload."""
    models = {model for _, model, _, _ in nodes}
    return Instance(
        FORMAT,
        {m: WrittenModel(25.0, int(m[1:] or 1)) for m in sorted(models)},
        [WrittenGpu(i) for i in range(gpus)],
        {"w": WrittenWorkflow(tuple(WrittenNode(n, m, s, tuple(b.split())) for n, m, s, b in nodes))},
        [WrittenRequest(f"r{i}", "w") for i in range(requests)],
        "small",
        **more,
    )


def problem(*nodes: Node, gpus: int = 2, requests: int = 1, **more: Any) -> Problem:
    """The same, as strategies see it."""
    return problem_of(instance(*nodes, gpus=gpus, requests=requests, **more))


def drawn(
    family: str, nodes: int, gpus: int, seed: int = 0, *, mixed: bool = False, pcie_gb_s: float = 25.0
) -> Problem:
    """One of the families."""
    return problem_of(generate(family, nodes, gpus, seed=seed, mixed=mixed, pcie_gb_s=pcie_gb_s))


def plan(*calls: Sequence[float]) -> Plan:
    """GPU, start and end of each call."""
    gpu, start, end = zip(*calls, strict=True)
    return Plan(np.array(gpu, dtype=np.int32), np.array(start, dtype=float), np.array(end, dtype=float))
