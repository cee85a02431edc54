"""Take the room whose loss costs the cluster's tasks least.

Promise: each placement minimizes the increase of a cost (steepest descent). The open tasks of the cluster, waiting and
running, serve as the forecast of future requests (`Demand`); without any, or if all are alike, the result is best fit.
The cost is the sum of four terms, in thousandths of a GPU:

- *fragments*: a GPU in a group of k free ones, or the remainder of a shared GPU, is weighted by the fraction of tasks
  that request more than that; and, with a smaller weight, by the fraction that needs more CPUs than its node has left
  (Weng et al., "Beware of Fragmentation", USENIX ATC 2023);
- *worth*: what the remainder of a shared GPU could still hold, at prices that follow from the requested shares
  (`Demand.worth`);
- *stranded* GPUs: those for which the node has too few CPUs or too little memory left, if requests stay as they are;
- *pressure*: GPUs of models that tasks require, by the requested amount relative to the number of such GPUs.

Choose it when sizes are mixed, GPUs are shared, or tasks differ in CPUs and models. It compares a bounded number of
nodes per decision, so it is slower than the other scores. For gangs, whole nodes and link preferences it only counts
free GPUs. A memory share counts as its part of the largest GPU. The weights were tuned on the openb traces (decision
0016).
"""

from bisect import bisect_right
from collections.abc import Sequence

from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.values import MILLI
from gpuyard.core.placement.demand import Demand, milli_of
from gpuyard.core.placement.device_group_mask import DeviceGroupMask
from gpuyard.core.placement.fragmentation_cost import STEP_MILLI
from gpuyard.core.placement.index import Index, NodeEntry

WORTH = 6.0
"""Weight of the worth of one GPU, relative to a fragment of one GPU."""
PRESSURE = 1.0
"""Weight of a GPU of a model whose part of the demand, requested by name, equals its part of all GPUs."""
CPU_FRAGMENT = 0.1
"""Weight of a GPU on a node with too few CPUs for a task, relative to a fragment of one GPU."""
SLACK = 0.9
"""A node is short of CPUs or memory if it has less than this fraction of what tasks request per GPU on average."""


class FragmentationCosts:
    """Tables of the cost of room: built when the demand or the nodes have changed, read in every decision."""

    def __init__(self, index: Index, demand: Demand) -> None:
        most = max(len(index.by_free) - 1, 1)
        wholes, shares = [0] * (most + 2), [0] * (MILLI + 1)
        gpu_mib = index.by_gpu_memory.largest(index.everywhere)
        by_cpus: dict[int, int] = {}
        cpus = memory_mib = milli = 0
        for ask, count in demand.asks():
            if ask.share is not None:
                shares[milli_of(ask, gpu_mib)] += count
            elif ask.gpus:
                wholes[min(ask.gpus, most + 1)] += count
            else:
                continue
            by_cpus[ask.cpus] = by_cpus.get(ask.cpus, 0) + count
            cpus += ask.cpus * count
            memory_mib += ask.memory_mib * count
            milli += milli_of(ask, gpu_mib) * count
        tasks = max(sum(wholes) + sum(shares), 1)
        self._of_free = [free * MILLI * (sum(wholes[free + 1 :]) / tasks - WORTH) for free in range(most + 1)]
        self._of_rest = [0.0] * MILLI
        larger, worth = sum(wholes), demand.worth(gpu_mib)  # `larger`: tasks that request more than `left`
        for left in range(MILLI - 1, 0, -1):
            larger += shares[left + 1]
            self._of_rest[left] = left * larger / tasks - WORTH * MILLI * worth[left // STEP_MILLI]
        self._cpus = sorted(by_cpus)
        self._ask_for_more = [
            sum(by_cpus[more] for more in self._cpus[place:]) / tasks for place in range(len(by_cpus) + 1)
        ]
        self._milli_a_cpu = milli / (cpus * SLACK) if cpus else 0.0
        self._milli_a_mib = milli / (memory_mib * SLACK) if memory_mib else 0.0
        self.tiers = _tiers(index, demand, gpu_mib)
        """Device groups by the pressure on their model, lowest first."""

    def whole(self, free: int, wanted: int) -> float:
        """Return the cost of taking `wanted` of the `free` GPUs of a device group."""
        return self._of_free[free - wanted] - self._of_free[free]

    def fresh(self, free: int, milli: int) -> float:
        """Return the cost of placing a share on one of the `free` GPUs of a device group."""
        return self._of_free[free - 1] - self._of_free[free] + self._of_rest[MILLI - milli]

    def rest(self, left: int, milli: int) -> float:
        """Return the cost of placing a share on a shared GPU that has `left` thousandths left."""
        return self._of_rest[left - milli] - self._of_rest[left]

    def counts(self, wanted: int) -> Sequence[int]:
        """Return the numbers of free GPUs in order of preference, for searches that do not examine nodes."""
        return sorted(range(wanted, len(self._of_free)), key=lambda free: (round(self.whole(free, wanted), 6), free))

    def stranding(self, host: NodeEntry, milli: int, cpus: int, memory_mib: int) -> float:
        """Return the cost, in GPUs that lack CPUs or memory, of taking these resources from a node."""
        free, cpus_free, memory_free = host.milli_free, host.cpus_free, host.memory_free
        after = self._stranded(free - milli, cpus_free - cpus, memory_free - memory_mib)
        return after - self._stranded(free, cpus_free, memory_free)

    def least_stranding(self, milli: int, cpus: int, memory_mib: int) -> float:
        """Return a lower bound of `stranding` over all nodes."""
        return min(0.0, self._served(milli, cpus, memory_mib) - milli) - CPU_FRAGMENT * milli

    def _stranded(self, milli: int, cpus: int, memory_mib: int) -> float:
        short = max(0.0, milli - self._served(milli, cpus, memory_mib))
        return short + CPU_FRAGMENT * milli * self._ask_for_more[bisect_right(self._cpus, cpus)]

    def _served(self, milli: int, cpus: int, memory_mib: int) -> float:
        """Return the thousandths of GPUs that these CPUs and this memory can serve; all, if no task requests any."""
        by_cpus = cpus * self._milli_a_cpu if self._milli_a_cpu else milli
        by_memory = memory_mib * self._milli_a_mib if self._milli_a_mib else milli
        return min(by_cpus, by_memory)


def _tiers(index: Index, demand: Demand, gpu_mib: int) -> list[tuple[float, DeviceGroupMask]]:
    """Return the device groups by the pressure on their GPU model, lowest first.

    The pressure is the model's part of the demand, counting tasks that name models, divided by its part of the GPUs.
    """
    gpus = {model: index.by_gpu_count.total(device_groups) for model, device_groups in index.by_model.items()}
    pressure = dict.fromkeys(gpus, 0.0)
    asked = 0
    for ask, count in demand.asks():
        milli = count * milli_of(ask, gpu_mib)
        asked += milli
        accepted = [model for model in ask.models if model in gpus]
        for model in accepted:
            pressure[model] += milli / sum(gpus[model] for model in accepted)
    tiers: dict[float, DeviceGroupMask] = {}
    for model, device_groups in index.by_model.items():
        level = round(PRESSURE * pressure[model] * sum(gpus.values()) / max(asked, 1), 2)
        tiers[level] = tiers.get(level, 0) | device_groups
    return sorted(tiers.items())


def order(wanted: int, index: Index, demand: Demand, settings: Settings) -> FragmentationCosts:  # noqa: ARG001
    """Return the cost tables; they do not depend on the number of GPUs wanted."""
    return FragmentationCosts(index, demand)
