"""How fast a task is on the GPUs it has.

A task may say how fast it is on GPU models; only the ratios count. Everywhere else, 1 is the speed on the fastest model it
names, and work is counted in seconds there: an estimate of an hour is an hour on that model, and two where the task
is half as fast. A model that it does not name is as slow as the slowest that it does, so nobody gains by leaving one out.
A gang goes at the pace of its slowest part.
"""

from gpuyard.core.domain.placement import Placement
from gpuyard.core.placement.index import Index

Speeds = tuple[tuple[str, float], ...]


def relative(speeds: Speeds) -> dict[str, float]:
    """By model, where 1 is the fastest."""
    fastest = max(speed for _, speed in speeds)
    return {model: speed / fastest for model, speed in speeds}


def speed_of(speeds: Speeds, placement: Placement, index: Index) -> float:
    """How fast a task with these speeds is where it is placed."""
    if not speeds:
        return 1.0
    by_model = relative(speeds)
    slowest = min(by_model.values())
    models = [index.hosts[part.node].device_group_of[part.gpus[0]].model for part in placement.slices if part.gpus]
    return min((by_model.get(model, slowest) for model in models), default=1.0)
