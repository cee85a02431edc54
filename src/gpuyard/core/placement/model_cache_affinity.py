"""Prefer the node where a model ran last: its weights may still be in memory there, and compiled artifacts on disk.

For each GPU, the index records the model of the last task placed on it. A task that names no model clears the record,
and so does the loss of the node. Among otherwise equal choices, a node where the model ran last is taken, and on it the
GPUs that had the model. A model that is new to a node takes GPUs without a recorded model while there are any.
"""

from typing import TYPE_CHECKING, TypeAlias

from gpuyard.core.domain.values import Link
from gpuyard.core.placement.device_group_mask import DeviceGroupMask

if TYPE_CHECKING:
    from gpuyard.core.placement.index import DeviceGroup

ModelKey: TypeAlias = str
"""Tenant and model name, such as `team/llama`: the same name in two tenants means two models."""


class ModelCache:
    """Device groups by the models that ran last on any of their GPUs."""

    def __init__(self) -> None:
        self.by_model: dict[ModelKey, DeviceGroupMask] = {}

    def device_groups(self, model: ModelKey | None) -> DeviceGroupMask:
        """Return the device groups where a model ran last; none for None."""
        return self.by_model.get(model, 0) if model is not None else 0

    def note(self, device_group: "DeviceGroup", gpus: int, model: ModelKey | None) -> None:
        """Record that a task was placed on GPUs (`gpus` is a bit mask); `model` is None if it names no model."""
        had = device_group.models.get(model, 0) if model is not None else 0
        if device_group.warm & gpus & ~had:
            self._wipe(device_group, gpus & ~had)
        if model is not None and had & gpus != gpus:
            device_group.models[model] = had | gpus
            device_group.warm |= gpus
            if not had:
                self.by_model[model] = self.by_model.get(model, 0) | device_group.bit

    def forget(self, device_group: "DeviceGroup") -> None:
        """Clear all records of a device group."""
        self._wipe(device_group, device_group.warm)

    def _wipe(self, device_group: "DeviceGroup", gpus: int) -> None:
        gone = []
        for model, had in device_group.models.items():
            if had & gpus:
                device_group.models[model] = had & ~gpus
                if not had & ~gpus:
                    gone.append(model)
        device_group.warm &= ~gpus
        for model in gone:
            del device_group.models[model]
            if left := self.by_model[model] ^ device_group.bit:
                self.by_model[model] = left
            else:
                del self.by_model[model]


def pick(device_group: "DeviceGroup", count: int, link: Link, model: ModelKey | None) -> tuple[int, ...]:
    """Choose `count` free GPUs of a device group.

    Prefer GPUs where the model ran last, then GPUs without a recorded model, unless that makes the topology worse.
    """
    free, topology = device_group.free_mask, device_group.topology
    if model is not None and device_group.warm:
        for liked in (free & device_group.models.get(model, 0), free & ~device_group.warm):
            if liked and (gpus := topology.pick_preferred(free, liked, count, link)):
                return gpus
    return topology.pick(free, count, link)
