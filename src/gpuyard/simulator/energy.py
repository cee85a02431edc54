"""Energy and cost of nodes: a listener that adds up energy, provisioned GPU-hours and money from the events.

    busy      the board power of the GPU's data sheet, idle 12 % of it (`domain.board_power`); a held GPU counts as busy
    host      150 W for each GPU: CPUs, memory, fans, network. An assumption; the ratings leave 412 W (DGX A100: 6.5 kW
              with eight GPUs of 400 W) and 575 W (DGX H100: 10.2 kW with eight of 700 W) for the worst case
    asleep    20 W for each node, for its wake-up circuit: an assumption

A booting node draws as much as an idle one. A lost node is under repair: it draws nothing but is paid for; a spot node
that was taken away is not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpuyard.core.domain import events
from gpuyard.core.domain.board_power import IDLE_PART, busy_watts
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.values import MILLI, NodeId, TaskId
from gpuyard.simulator.samples import Samples

HOST_WATTS = 150.0
SUSPENDED_WATTS = 20.0
HOUR = 3600.0
WATT_SECONDS_A_KWH = 3.6e6


class NodePower(StrEnum):
    """Power state of a node that is provisioned."""

    UP = "up"
    BOOTING = "booting"
    ASLEEP = "asleep"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class PowerSample:
    """Values that hold from an instant on."""

    nodes_up: int
    watts: float
    cost: float
    """Total cost up to that instant."""


class PowerMeter:
    """Listens to the events of a world; booting and sleeping are reported by calls. Counts from the first task on."""

    def __init__(self, price: float = 0.0, prices: Mapping[str, float] | None = None) -> None:
        """`price` is the price of one GPU for an hour; `prices` those of pools, by the kind that begins a node's name."""
        self._price = price
        self._prices = prices or {}
        self._cost = 0.0
        self._cost_per_hour = 0.0
        self._nodes: dict[NodeId, tuple[NodeSpec, NodePower]] = {}
        self._taken: set[NodeId] = set()
        self._at_work: dict[TaskId, float] = {}
        """Watts that a task draws above the idle power of its GPUs."""
        self._count = dict.fromkeys(NodePower, 0)
        self._gpus = dict.fromkeys(NodePower, 0)
        self._watts = 0.0
        self._last = 0.0
        self._began: float | None = None
        self._watt_seconds = 0.0
        self._provisioned_gpu_seconds = 0.0
        self._up_gpu_seconds = 0.0
        self.line: Samples[PowerSample] = Samples()

    @property
    def energy_kwh(self) -> float:
        """Total energy up to now."""
        return self._watt_seconds / WATT_SECONDS_A_KWH

    @property
    def gpu_hours_provisioned(self) -> float:
        """GPU-hours of all nodes that are up, booting, asleep or under repair."""
        return self._provisioned_gpu_seconds / HOUR

    @property
    def gpu_hours_up(self) -> float:
        """GPU-hours of the nodes that are up."""
        return self._up_gpu_seconds / HOUR

    @property
    def average_gpus(self) -> float:
        """Average number of GPUs on nodes that are up."""
        seconds = self._last - (self._began or 0.0)
        return self._up_gpu_seconds / seconds if seconds else 0.0

    @property
    def cost(self) -> float:
        """Total cost up to now."""
        return self._cost

    def hear(self, at: float, new_events: Sequence[events.Event]) -> None:
        """Update the totals and the power from a batch of events."""
        self._pass(at)
        for event in new_events:
            match event:
                case events.TaskPlaced(task, _, placement) | events.AttemptResuming(task, _, placement):
                    self._work(task, self._extra_watts(placement))
                case events.AttemptEnded(task) | events.AttemptSuspended(task):
                    self._work(task, 0.0)
                case events.NodeJoined(node):
                    self._be(node, NodePower.UP)
                case events.NodeLost(name) if name in self._nodes:
                    taken = name in self._taken
                    self._taken.discard(name)
                    self._be(self._nodes[name][0], None if taken else NodePower.LOST)
                case events.NodeReturned(name):
                    self._be(self._nodes[name][0], NodePower.UP)
                case events.NodeRemoved(name) if self._count_in(name):
                    self._be(self._nodes[name][0], None)
                case events.TaskSubmitted() if self._began is None:
                    self._began = at
        self._sample()

    def boots(self, at: float, node: NodeSpec) -> None:
        """Record that a node starts to boot."""
        self._tell(at, node, NodePower.BOOTING)

    def sleeps(self, at: float, node: NodeSpec) -> None:
        """Record that a node goes to sleep."""
        self._tell(at, node, NodePower.ASLEEP)

    def is_taken(self, node: NodeSpec) -> None:
        """Record that the provider has taken a node away: when it is lost, it is not paid any more."""
        self._taken.add(node.id)

    def leaves(self, at: float, node: NodeSpec) -> None:
        """Record that a node is released."""
        self._tell(at, node, None)

    def _tell(self, at: float, node: NodeSpec, power: NodePower | None) -> None:
        self._pass(at)
        self._be(node, power)
        self._sample()

    def _sample(self) -> None:
        if self.line.wants(self._last):
            self.line.add(self._last, PowerSample(self._count[NodePower.UP], self._watts, self.cost))

    def _pass(self, at: float) -> None:
        seconds = at - self._last
        self._last = at
        if self._began is None:
            return
        self._watt_seconds += self._watts * seconds
        self._cost += self._cost_per_hour * seconds / HOUR
        self._provisioned_gpu_seconds += sum(self._gpus.values()) * seconds
        self._up_gpu_seconds += self._gpus[NodePower.UP] * seconds

    def _count_in(self, name: NodeId) -> bool:
        """Return whether a node is part of the cluster: sleeping and released nodes have left it already."""
        return name in self._nodes and self._nodes[name][1] in {NodePower.UP, NodePower.LOST}

    def _work(self, task: TaskId, watts: float) -> None:
        self._watts -= self._at_work.pop(task, 0.0)
        if watts:
            self._at_work[task] = watts
            self._watts += watts

    def _extra_watts(self, placement: Placement) -> float:
        extra = 0.0
        for part in placement.slices:
            gpus = self._nodes[part.node][0].gpus
            extra += sum(busy_watts(gpus[gpu].model) for gpu in part.gpus) * (1 - IDLE_PART) * part.milli / MILLI
        return extra

    def _be(self, node: NodeSpec, power: NodePower | None) -> None:
        _, before = self._nodes.pop(node.id, (node, None))
        if power is not None:
            self._nodes[node.id] = node, power
        for sign, state in ((-1, before), (1, power)):
            if state is not None:
                self._count[state] += sign
                self._gpus[state] += sign * len(node.gpus)
                self._watts += sign * _resting_watts(node, state)
                self._cost_per_hour += sign * len(node.gpus) * self._price_of(node)

    def _price_of(self, node: NodeSpec) -> float:
        return self._prices.get(node.id.rpartition("-")[0], self._price)


def _resting_watts(node: NodeSpec, power: NodePower) -> float:
    """Return the power a node draws while nothing runs on it."""
    if power is NodePower.LOST:
        return 0.0
    if power is NodePower.ASLEEP:
        return SUSPENDED_WATTS
    return sum(busy_watts(gpu.model) * IDLE_PART + HOST_WATTS for gpu in node.gpus)
