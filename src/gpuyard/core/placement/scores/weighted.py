"""Weigh run time, energy, balance and fragmentation against each other.

Promise: of all places with room, the task gets one with the least cost. With r, the idle rate, which is the part of the
cluster's GPUs that are free now, the cost of a place is

      weight_time           ·           (run time there / shortest run time among the places - 1)
    + weight_energy         ·    r    · (energy there / least energy among the places - 1)
    + weight_balance        ·    r    ·  part of the node's GPUs that are in use afterwards
    + weight_fragmentation  · (1 - r) ·  free GPUs that become useless for the open tasks / GPUs of the largest node

Without `weights_follow_idle` both factors are 1. The terms have no unit and the same scale: one tenth more time counts as
much as one tenth more energy, or as a node that is one tenth fuller. So a weight moves the choice, whatever the hardware is.
The idle rate decides what room is worth. In an idle cluster room costs nothing, and energy and even load count; in a full
one every GPU that no task can use delays one, and only run time and fragments count.

Run time and energy follow from the speeds that the task declares and the board power of the GPU model
(`domain.board_power`); without speeds neither differs between places, because nothing is known. Fragments are counted as in
the score `fragmentation`, for whole GPUs and without CPUs. Equal costs go to the fullest node.

Choose it for a cluster of several GPU models whose operator pays for energy. Other scores take the fastest GPUs with room
first and choose among those; this one may give a task slower GPUs on purpose. For gangs, shares, whole nodes and link
preferences it does as the others do, and orders nodes by fragmentation. It examines classes of equal nodes, not nodes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from gpuyard.core.domain.board_power import busy_watts
from gpuyard.core.domain.settings import Settings
from gpuyard.core.placement.demand import Demand
from gpuyard.core.placement.device_group_mask import DeviceGroupMask
from gpuyard.core.placement.index import Index


class GpuKind(NamedTuple):
    """The device groups with the same number of GPUs of one model."""

    model: str
    watts: float
    size: int
    device_groups: DeviceGroupMask


class ScoreWeights(NamedTuple):
    """The weights of the four terms."""

    time: float
    energy: float
    balance: float
    fragmentation: float


class WeightedCosts:
    """Tables of the score: built when the demand, the nodes or the settings have changed, read in every decision."""

    def __init__(self, index: Index, demand: Demand, settings: Settings) -> None:
        self._weights = ScoreWeights(
            settings.weight_time, settings.weight_energy, settings.weight_balance, settings.weight_fragmentation
        )
        self._follow_idle = settings.weights_follow_idle
        self.kinds = _kinds(index)
        most = max(len(index.by_free) - 1, *(kind.size for kind in self.kinds), 1)
        sizes = [0] * (most + 2)
        for ask, count in demand.asks():
            if ask.gpus:
                sizes[min(ask.gpus, most + 1)] += count
        tasks = max(sum(sizes), 1)
        self._useless = [free * sum(sizes[free + 1 :]) / tasks / most for free in range(most + 1)]
        """The part of a node's GPUs that is expected to be useless for an open task, by the number of free ones."""

    def weights(self, index: Index) -> ScoreWeights:
        """Return the weights at the present idle rate."""
        if not self._follow_idle:
            return self._weights
        idle = idle_rate(index)
        time, energy, balance, fragmentation = self._weights
        return ScoreWeights(time, energy * idle, balance * idle, fragmentation * (1 - idle))

    def fragments(self, free: int, wanted: int) -> float:
        """Return the useless part that taking `wanted` of `free` GPUs adds; negative if it removes some."""
        return self._useless[free - wanted] - self._useless[free]

    def counts(self, wanted: int) -> Sequence[int]:
        """Return the numbers of free GPUs in order of preference, for searches that do not know kinds of GPUs."""
        return sorted(
            range(wanted, len(self._useless)), key=lambda free: (round(self.fragments(free, wanted), 6), free)
        )


def idle_rate(index: Index) -> float:
    """Return the part of the GPUs of the cluster that are free."""
    free = sum(count * device_groups.bit_count() for count, device_groups in enumerate(index.by_free))
    return min(free / index.gpus_up, 1.0) if index.gpus_up else 0.0


def _kinds(index: Index) -> list[GpuKind]:
    """Return the kinds of GPUs of the cluster, in a fixed order."""
    found: dict[tuple[str, int], DeviceGroupMask] = {}
    for device_group in index.all_device_groups():
        kind = (device_group.model, device_group.all.bit_count())
        found[kind] = found.get(kind, 0) | device_group.bit
    return [GpuKind(model, busy_watts(model), size, found[model, size]) for model, size in sorted(found) if size]


def order(wanted: int, index: Index, demand: Demand, settings: Settings) -> WeightedCosts:  # noqa: ARG001
    """Return the tables; they do not depend on the number of GPUs wanted."""
    return WeightedCosts(index, demand, settings)
