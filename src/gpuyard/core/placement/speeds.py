"""The relative speed of a task on its GPUs.

A task may declare its speed on GPU models; only the ratios count. Everywhere else, 1 is the speed on the fastest model
it names, and work is measured in seconds on that model: an estimate of one hour means one hour there, and two hours
where the task is half as fast. A model it does not name is as slow as the slowest named one, so leaving a model out
gives no advantage. A gang runs at the speed of its slowest part.
"""

from gpuyard.core.domain.placement import Placement
from gpuyard.core.placement.index import Index

Speeds = tuple[tuple[str, float], ...]


def relative(speeds: Speeds) -> dict[str, float]:
    """Return the speeds by GPU model, scaled so that the fastest is 1."""
    fastest = max(speed for _, speed in speeds)
    return {model: speed / fastest for model, speed in speeds}


def speed_of(speeds: Speeds, placement: Placement, index: Index) -> float:
    """Return the relative speed of a task on its placement; 1 if it declares no speeds or holds no GPUs."""
    if not speeds:
        return 1.0
    by_model = relative(speeds)
    slowest = min(by_model.values())
    models = [index.hosts[part.node].device_group_of[part.gpus[0]].model for part in placement.slices if part.gpus]
    return min((by_model.get(model, slowest) for model in models), default=1.0)
