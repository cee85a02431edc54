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
    """The bays by the models that ran last on any of their cards."""

    def __init__(self) -> None:
        self.by_model: dict[ModelKey, DeviceGroupMask] = {}

    def bays(self, model: ModelKey | None) -> DeviceGroupMask:
        """Where it ran last."""
        return self.by_model.get(model, 0) if model is not None else 0

    def note(self, bay: "DeviceGroup", cards: int, model: ModelKey | None) -> None:
        """A task about a model, or about none, was placed on cards: bits, as everywhere in a bay."""
        had = bay.models.get(model, 0) if model is not None else 0
        if bay.warm & cards & ~had:
            self._wipe(bay, cards & ~had)
        if model is not None and had & cards != cards:
            bay.models[model] = had | cards
            bay.warm |= cards
            if not had:
                self.by_model[model] = self.by_model.get(model, 0) | bay.bit

    def forget(self, bay: "DeviceGroup") -> None:
        """Nothing is left there of anything."""
        self._wipe(bay, bay.warm)

    def _wipe(self, bay: "DeviceGroup", cards: int) -> None:
        gone = []
        for model, had in bay.models.items():
            if had & cards:
                bay.models[model] = had & ~cards
                if not had & ~cards:
                    gone.append(model)
        bay.warm &= ~cards
        for model in gone:
            del bay.models[model]
            if left := self.by_model[model] ^ bay.bit:
                self.by_model[model] = left
            else:
                del self.by_model[model]


def pick(bay: "DeviceGroup", count: int, link: Link, model: ModelKey | None) -> tuple[int, ...]:
    """So many of the free cards of a bay, for a task about a model."""
    free, topology = bay.free_mask, bay.topology
    if model is not None and bay.warm:
        for liked in (free & bay.models.get(model, 0), free & ~bay.warm):
            if liked and (cards := topology.pick_preferred(free, liked, count, link)):
                return cards
    return topology.pick(free, count, link)
