"""Where a model ran last: its weights may still be in the memory of that node, and what was made for it beside the card.

Of each card it is remembered which model the last task was about that was placed there. A task that names none wipes it,
and so does the loss of the node. Of places that are equally good by everything else, one where the model ran last is
taken, and there the cards that had it; a model that is new to a node takes cards that no model was on, while there are any.
"""

from typing import TYPE_CHECKING, TypeAlias

from gpuyard.core.domain.values import Link
from gpuyard.core.placement.device_group_mask import DeviceGroupMask

if TYPE_CHECKING:
    from gpuyard.core.placement.index import DeviceGroup

ModelKey: TypeAlias = str
"""Whose it is, and what they call it, such as `team/llama`: tenants do not know of each other's models."""


class ModelCache:
    """The device groups by the models that ran last on any of their cards."""

    def __init__(self) -> None:
        self.by_model: dict[ModelKey, DeviceGroupMask] = {}

    def device_groups(self, model: ModelKey | None) -> DeviceGroupMask:
        """Where it ran last."""
        return self.by_model.get(model, 0) if model is not None else 0

    def note(self, device_group: "DeviceGroup", cards: int, model: ModelKey | None) -> None:
        """A task about a model, or about none, was placed on cards: bits, as everywhere in a device group."""
        had = device_group.models.get(model, 0) if model is not None else 0
        if device_group.warm & cards & ~had:
            self._wipe(device_group, cards & ~had)
        if model is not None and had & cards != cards:
            device_group.models[model] = had | cards
            device_group.warm |= cards
            if not had:
                self.by_model[model] = self.by_model.get(model, 0) | device_group.bit

    def forget(self, device_group: "DeviceGroup") -> None:
        """Nothing is left there of anything."""
        self._wipe(device_group, device_group.warm)

    def _wipe(self, device_group: "DeviceGroup", cards: int) -> None:
        gone = []
        for model, had in device_group.models.items():
            if had & cards:
                device_group.models[model] = had & ~cards
                if not had & ~cards:
                    gone.append(model)
        device_group.warm &= ~cards
        for model in gone:
            del device_group.models[model]
            if left := self.by_model[model] ^ device_group.bit:
                self.by_model[model] = left
            else:
                del self.by_model[model]


def pick(device_group: "DeviceGroup", count: int, link: Link, model: ModelKey | None) -> tuple[int, ...]:
    """So many of the free cards of a device group, for a task about a model."""
    free, topology = device_group.free_mask, device_group.topology
    if model is not None and device_group.warm:
        for liked in (free & device_group.models.get(model, 0), free & ~device_group.warm):
            if liked and (cards := topology.pick_preferred(free, liked, count, link)):
                return cards
    return topology.pick(free, count, link)
