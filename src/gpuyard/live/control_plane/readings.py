"""The last readings of all GPUs and nodes, packed in columns, for the live stream and for the history.

A column holds one number for each GPU ("card" here), in the order of `cards`. The readings of a node are packed once for
each of its heartbeats, so that a sample of the whole cluster costs little more than joining bytes. What a node last
reported does not count while it is lost or away: its columns say "unknown" then.

    utilization   u8    half percent             temperature   u8    degrees Celsius, 0 for colder
    memory        u16   65534ths of its memory    power         u16   tenths of a watt

The largest number of each type means unknown.
"""

from array import array
from typing import NamedTuple

from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.values import GpuHealth, NodeId, TaskId
from gpuyard.live.control_plane.views import NodeView, Views
from gpuyard.live.wire import agents_pb2 as pb

UNKNOWN_BYTE, UNKNOWN_WORD = 0xFF, 0xFFFF
HALF_PERCENTS, MEMORY_PARTS, DECIWATTS = 2.0, 0xFFFE, 10.0
IDLE, BUSY, EXTERNAL, OFFLINE = range(4)
STATES = ("idle", "busy", "external", "offline")
"""The names of the states of a GPU, by number."""


class Card(NamedTuple):
    """One GPU of the cluster."""

    node: NodeId
    place: int
    """Its index on the node."""
    model: str
    memory_mib: int
    uuid: str


class CardColumns(NamedTuple):
    """The readings of a number of GPUs."""

    utilization: bytes
    memory: "array[int]"
    temperature: bytes
    power: "array[int]"


class _Packed:
    """The readings of one heartbeat."""

    __slots__ = ("_live", "beat", "columns", "cpu_percent", "memory_percent", "spec")

    def __init__(self, beat: pb.Heartbeat, spec: NodeSpec) -> None:
        self.beat = beat
        self.spec = spec
        self.columns = _columns(beat, spec)
        host = beat.host if beat.HasField("host") else None
        self.cpu_percent = None if host is None else host.cpu_percent
        """Of the host; None: unknown. So is the next one."""
        self.memory_percent = 100.0 * host.memory_used_mib / host.memory_mib if host and host.memory_mib else None
        self._live: tuple[bytes, bytes] | None = None

    @property
    def live(self) -> tuple[bytes, bytes]:
        """Return memory in percent (u8) and power in watts (u16, little-endian) as the live stream has them."""
        if self._live is None:
            columns = self.columns
            memory = bytes(
                UNKNOWN_BYTE if part == UNKNOWN_WORD else round(100 * part / MEMORY_PARTS) for part in columns.memory
            )
            watts = (power if power == UNKNOWN_WORD else round(power / DECIWATTS) for power in columns.power)
            self._live = memory, b"".join(each.to_bytes(2, "little") for each in watts)
        return self._live


class Readings:
    """The last heartbeats of all nodes, packed."""

    def __init__(self, views: Views, telemetry: dict[NodeId, pb.Heartbeat], latencies: dict[NodeId, float]) -> None:
        self._views = views
        self._telemetry = telemetry
        self._latencies = latencies
        self._packed: dict[NodeId, _Packed] = {}
        self._specs: list[NodeSpec] = []
        self.generation = 0
        """Changes with the list of GPUs."""
        self.cards: list[Card] = []

    def refresh(self) -> list[NodeView]:
        """Bring the list of GPUs up to date; return the nodes in its order."""
        nodes = [self._views.nodes[name] for name in sorted(self._views.nodes)]
        if len(nodes) != len(self._specs) or any(
            node.spec is not spec for node, spec in zip(nodes, self._specs, strict=True)
        ):
            self._specs = [node.spec for node in nodes]
            self.cards = [
                Card(spec.id, index, gpu.model, gpu.memory_mib, gpu.uuid)
                for spec in self._specs
                for index, gpu in enumerate(spec.gpus)
            ]
            self.generation += 1
            self._packed = {name: kept for name, kept in self._packed.items() if name in self._views.nodes}
        return nodes

    def packed(self, node: NodeView) -> _Packed:
        """Return the packed readings of a node; those of an empty heartbeat while it is lost or away."""
        name, spec = node.spec.id, node.spec
        beat = _NOTHING if node.is_silent else self._telemetry.get(name, _NOTHING)
        kept = self._packed.get(name)
        if kept is None or kept.beat is not beat or kept.spec is not spec:
            kept = self._packed[name] = _Packed(beat, spec)
        return kept

    def latency_seconds(self, node: NodeView) -> float | None:
        """Return the round trip of a heartbeat of a node; None: unknown."""
        return None if node.is_silent else self._latencies.get(node.spec.id)


_NOTHING = pb.Heartbeat()
_OUT_OF_SERVICE = pb.GpuUse.OFFLINE


def states_of(node: NodeView) -> bytes:
    """Return the states of the GPUs of a node, a byte for each."""
    if node.lost:
        return bytes((OFFLINE,)) * len(node.on_gpu)
    if not node.health:
        return bytes(map(bool, node.on_gpu))
    return bytes(_state(node.health.get(index), held) for index, held in enumerate(node.on_gpu))


def _state(health: GpuHealth | None, held: dict[TaskId, None]) -> int:
    if health is GpuHealth.OFFLINE:
        return OFFLINE
    if held:
        return BUSY
    return EXTERNAL if health is GpuHealth.EXTERNAL else IDLE


def _columns(beat: pb.Heartbeat, spec: NodeSpec) -> CardColumns:
    """Pack a heartbeat. GPUs that it does not mention, and GPUs out of service, have unknown readings.

    This runs for every GPU at every heartbeat. A number that is not 0 is present, which saves most calls of HasField.
    """
    count = len(spec.gpus)
    utilization, temperature = bytearray(b"\xff" * count), bytearray(b"\xff" * count)
    memory, power = array("H", [UNKNOWN_WORD]) * count, array("H", [UNKNOWN_WORD]) * count
    for use in beat.gpus:
        index = use.index
        if index >= count or use.health == _OUT_OF_SERVICE:
            continue
        percent, used, celsius, watts = (
            use.utilization_percent,
            use.memory_used_mib,
            use.temperature_c,
            use.power_watts,
        )
        if percent or use.HasField("utilization_percent"):
            utilization[index] = 0 if percent <= 0 else 200 if percent >= 100 else int(percent * HALF_PERCENTS + 0.5)
        if used or use.HasField("memory_used_mib"):
            total = spec.gpus[index].memory_mib
            memory[index] = MEMORY_PARTS if used >= total else int(used * MEMORY_PARTS / total + 0.5)
        if celsius or use.HasField("temperature_c"):
            temperature[index] = 0 if celsius <= 0 else 254 if celsius >= 254 else int(celsius + 0.5)
        if watts or use.HasField("power_watts"):
            power[index] = 0 if watts <= 0 else 0xFFFE if watts >= 6553.4 else int(watts * DECIWATTS + 0.5)
    return CardColumns(bytes(utilization), memory, bytes(temperature), power)
