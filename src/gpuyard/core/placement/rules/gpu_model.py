"""The GPUs are of a model the task accepts."""

from gpuyard.core.domain.gpu_names import closest_gpu_name
from gpuyard.core.domain.refusals import Never, UnknownGpuModel
from gpuyard.core.domain.task import Resources
from gpuyard.core.placement.device_group_mask import DeviceGroupMask
from gpuyard.core.placement.index import Index


def device_groups(ask: Resources, index: Index) -> DeviceGroupMask:
    """Return the device groups with one of the named models; all device groups if none is named."""
    if not ask.models:
        return index.everywhere
    found = 0
    for model in ask.models:
        found |= index.by_model.get(model, 0)
    return found


def refusal(ask: Resources, index: Index, among: DeviceGroupMask) -> Never:
    """Name the available models and, if there is one, the model with the closest name."""
    known = sorted(model for model, having in index.by_model.items() if having & among)
    return UnknownGpuModel(
        ask.models, tuple(known), next(filter(None, (closest_gpu_name(it, known) for it in ask.models)), "")
    )
