"""The counted cost of a step of a model: looked up, or counted here without a device if it is unknown."""

from functools import cache, partial

from gpuyard.learn.performance import operation_profile
from gpuyard.learn.performance.operation_profile import OperationProfile
from gpuyard.learn.profiler.zoo import ProfiledModel


@cache
def counted(subject: ProfiledModel, mode: str) -> OperationProfile:
    """Return the operations of a step with one sample."""
    sizes = operation_profile.shipped().get((subject.name, mode), {})
    return sizes[subject.size] if subject.size in sizes else _count(subject, mode)


def _count(subject: ProfiledModel, mode: str) -> OperationProfile:
    from gpuyard.learn.performance.flops import count

    few, many = (count(subject.build, partial(subject.inputs, b), training=mode == "train") for b in (2, 4))
    return OperationProfile.counted(few, many, 2, 4)
