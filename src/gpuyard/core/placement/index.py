"""The index of free resources, updated with every placement so that no decision has to scan all nodes.

A closed device group (its node is lost, away, cordoned or removed) is in none of the sets of free resources, so a
search cannot find it. Its allocations are still counted, and are unchanged when the node opens again.
"""

from collections.abc import Iterator
from typing import Any

from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.values import MILLI, GpuHealth, NodeId
from gpuyard.core.placement.device_group_mask import DeviceGroupMask, GroupsByLevel, GroupsByValue, members
from gpuyard.core.placement.model_cache_affinity import ModelCache, ModelKey
from gpuyard.core.placement.topology import Topology, mask_of


class SharedGpu:
    """A GPU that tasks share: the thousandths and the memory that are left, and the number of tasks on it."""

    __slots__ = ("memory_mib", "milli", "tasks")

    def __init__(self, memory_mib: int) -> None:
        self.milli = MILLI
        self.memory_mib = memory_mib
        self.tasks = 0


class DeviceGroup:
    """The GPUs of one model and memory size in one node; a node without GPUs has one empty group."""

    __slots__ = (
        "all",
        "bit",
        "free",
        "free_mask",
        "gpu_memory_mib",
        "host",
        "model",
        "models",
        "number",
        "shared",
        "taken",
        "topology",
        "usable",
        "warm",
    )

    def __init__(self, number: int, host: "NodeEntry", gpus: tuple[tuple[int, Gpu], ...], topology: Topology) -> None:
        self.number = number
        self.bit: DeviceGroupMask = 1 << number
        self.host = host
        self.model = gpus[0][1].model if gpus else ""
        self.gpu_memory_mib = gpus[0][1].memory_mib if gpus else 0
        self.topology = topology
        self.models: dict[ModelKey, int] = {}
        """Bit masks of GPUs by the machine-learning model of the last task on them, if that task named one."""
        self.warm = 0
        """The union of all masks in `models`."""
        # Masks have one bit for each GPU's index on the node.
        self.all = mask_of(tuple(index for index, _ in gpus))
        self.usable = self.all
        self.taken = 0
        self.shared: dict[int, SharedGpu] = {}
        self.free_mask = self.all
        self.free = len(gpus)

    @property
    def lefts(self) -> set[int]:
        """The amounts left, in thousandths, on usable GPUs that are already shared."""
        return {shared.milli for gpu, shared in self.shared.items() if self.usable >> gpu & 1}


class NodeEntry:
    """A node: its device groups, and the CPUs and host memory that they share."""

    __slots__ = (
        "away",
        "cordon_reason",
        "cordoned",
        "cpus_free",
        "device_group_of",
        "device_groups",
        "draining",
        "health",
        "lost",
        "memory_free",
        "open",
        "spec",
    )

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec
        self.device_groups: list[DeviceGroup] = []
        self.device_group_of: dict[int, DeviceGroup] = {}
        self.cpus_free = spec.cpus
        self.memory_free = spec.memory_mib
        self.lost = False
        self.away = False
        """The node has not registered with this scheduler yet, or was stopped on purpose; its tasks keep running."""
        self.cordoned = False
        self.open = True
        """The node accepts new tasks: it is neither lost nor away nor cordoned."""
        self.draining = False
        self.cordon_reason = ""
        """Why an operator has closed the node; kept for people."""
        self.health: dict[int, GpuHealth] = {}

    @property
    def milli_free(self) -> int:
        """The free part of the node's usable GPUs, whole and shared, in thousandths of a GPU."""
        free = 0
        for device_group in self.device_groups:
            free += device_group.free * MILLI
            for gpu, shared in device_group.shared.items():
                if device_group.usable >> gpu & 1:
                    free += shared.milli
        return free


class Index:
    """All device groups of the cluster, indexed by every property that a search uses."""

    def __init__(self) -> None:
        self.hosts: dict[NodeId, NodeEntry] = {}
        self.device_groups: list[DeviceGroup | None] = []
        self.version = 0
        """Incremented when a node's description or GPU health changes; shapes then look up device groups again."""
        self.changes = 0
        """Incremented with `version`, and when a node opens or closes; `Shape.can_start` is then computed again."""
        self.gpus_up = 0
        """GPUs that count for the split between the classes: GPUs of nodes that are not lost, minus offline ones."""
        self._topologies: dict[tuple[tuple[int, int, int | None], ...], Topology] = {}
        self._vacant: list[int] = []
        self.model_cache = ModelCache()
        self.booked: dict[int, DeviceGroupMask] = {}
        """Device groups of each booking that has not ended."""
        # Static properties of device groups; placements do not change them.
        self.everywhere: DeviceGroupMask = 0
        self.primary: DeviceGroupMask = 0
        """The first device group of each node; tasks without GPUs are placed there."""
        self.without_gpus: DeviceGroupMask = 0
        self.by_model: dict[str, DeviceGroupMask] = {}
        self.by_label: dict[tuple[str, str], DeviceGroupMask] = {}
        self.by_gpu_memory = GroupsByValue()
        self.by_gpu_count = GroupsByValue()
        self.by_cpus = GroupsByValue()
        self.by_memory = GroupsByValue()
        # Usable and free resources of open device groups.
        self.by_usable = GroupsByValue()
        """Open device groups by the number of usable GPUs, free or not."""
        self.by_free: list[DeviceGroupMask] = [0]
        """Open device groups by the number of completely free GPUs; the list index is that number."""
        self.open: DeviceGroupMask = 0
        """Device groups of nodes that accept new tasks."""
        self.idle: DeviceGroupMask = 0
        """Open device groups that have usable GPUs, all of them free."""
        self.by_left: dict[int, DeviceGroupMask] = {}
        """Open device groups by the thousandths left on a shared GPU; with several, a group can be in several sets."""
        self.by_cpus_free = GroupsByLevel()
        self.by_memory_free = GroupsByLevel()

    # --- nodes ---------------------------------------------------------------------------------------------------

    def join(self, spec: NodeSpec, numbers: tuple[int, ...] = ()) -> NodeEntry:
        """Add a node. A snapshot passes the `numbers` its device groups had, because ties are broken by number."""
        host = self.hosts[spec.id] = NodeEntry(spec)
        kinds: dict[tuple[str, int], list[tuple[int, Gpu]]] = {}
        for index, gpu in enumerate(spec.gpus):
            kinds.setdefault((gpu.model, gpu.memory_mib), []).append((index, gpu))
        for place, gpus in enumerate(list(kinds.values()) or [[]]):
            device_group = self._new_device_group(host, tuple(gpus), numbers[place] if numbers else None)
            host.device_groups.append(device_group)
            host.device_group_of.update((index, device_group) for index, _ in gpus)
        self._describe(host)
        self._open(host)
        self.gpus_up += len(spec.gpus)
        self._note_change()
        return host

    def change(self, spec: NodeSpec) -> None:
        """Replace the description of a node that still has the same GPUs. Its allocations are kept."""
        host = self.hosts[spec.id]
        was_open = host.open
        if was_open:
            self._close(host)
        self._describe(host)
        host.cpus_free += spec.cpus - host.spec.cpus
        host.memory_free += spec.memory_mib - host.spec.memory_mib
        host.spec = spec
        for device_group in host.device_groups:
            device_group.topology = self._topology(
                tuple((gpu, spec.gpus[gpu]) for gpu in sorted(host.device_group_of) if device_group.all >> gpu & 1)
            )
        self._describe(host)
        if was_open:
            self._open(host)
        self._note_change()

    def _note_change(self) -> None:
        self.version += 1
        self.changes += 1

    def set_booked(self, booked: dict[int, DeviceGroupMask]) -> None:
        """Set the device groups of all bookings."""
        if booked != self.booked:
            self.booked = booked
            self._note_change()

    def remove(self, node: NodeId) -> None:
        """Remove a node permanently. No placement on it may be taken or freed afterwards."""
        host = self.hosts[node]
        if host.open:
            self._close(host)
        if not host.lost:
            self.gpus_up -= self._healthy(host)
        self._describe(host)
        for device_group in host.device_groups:
            self.model_cache.forget(device_group)
            self.device_groups[device_group.number] = None
            self._vacant.append(device_group.number)
        self._vacant.sort(reverse=True)
        del self.hosts[node]
        self._note_change()

    def set_state(
        self,
        node: NodeId,
        *,
        lost: bool | None = None,
        away: bool | None = None,
        cordoned: bool | None = None,
        draining: bool | None = None,
    ) -> None:
        """Set or clear states of a node; None leaves a state unchanged."""
        host = self.hosts[node]
        was_open, was_lost = host.open, host.lost
        host.away = host.away if away is None else away
        host.lost = host.lost if lost is None else lost
        host.cordoned = host.cordoned if cordoned is None else cordoned
        host.open = not (host.lost or host.away or host.cordoned)
        host.draining = host.draining if draining is None else draining
        if host.lost != was_lost:
            self.gpus_up += -self._healthy(host) if host.lost else self._healthy(host)
            for device_group in host.device_groups:
                self.model_cache.forget(device_group)
        if was_open and not host.open:
            self._close(host)
        elif host.open and not was_open:
            self._open(host)
        self.changes += 1

    def set_health(self, node: NodeId, gpu: int, health: GpuHealth) -> None:
        """Mark a GPU usable or unusable. Tasks on it keep running."""
        host = self.hosts[node]
        device_group = host.device_group_of[gpu]
        if not host.lost:
            self.gpus_up -= self._healthy(host)
        if health is GpuHealth.OK:
            host.health.pop(gpu, None)
            usable = device_group.usable | 1 << gpu
        else:
            host.health[gpu] = health
            usable = device_group.usable & ~(1 << gpu)
        if not host.lost:
            self.gpus_up += self._healthy(host)
        if host.open:
            self._withdraw(device_group)
            self.by_usable.toggle(device_group.usable.bit_count(), device_group.bit)
            self.by_usable.toggle(usable.bit_count(), device_group.bit)
        device_group.usable = usable
        self._count_free(device_group)
        if host.open:
            self._offer(device_group)
        self._note_change()

    def _healthy(self, host: NodeEntry) -> int:
        return len(host.spec.gpus) - sum(1 for health in host.health.values() if health is GpuHealth.OFFLINE)

    def _new_device_group(self, host: NodeEntry, gpus: tuple[tuple[int, Gpu], ...], number: int | None) -> DeviceGroup:
        if number is None:
            number = self._vacant.pop() if self._vacant else len(self.device_groups)
        while len(self.device_groups) <= number:
            self.device_groups.append(None)
            self._vacant.insert(0, len(self.device_groups) - 1)
        if number in self._vacant:
            self._vacant.remove(number)
        device_group = self.device_groups[number] = DeviceGroup(number, host, gpus, self._topology(gpus))
        return device_group

    def _topology(self, gpus: tuple[tuple[int, Gpu], ...]) -> Topology:
        layout = tuple((index, gpu.numa, gpu.nvlink) for index, gpu in gpus)
        return self._topologies.setdefault(layout, Topology(gpus))

    def _describe(self, host: NodeEntry) -> None:
        """Add a node's device groups to the sets that placements do not change, or remove them if they are there."""
        for device_group in host.device_groups:
            bit = device_group.bit
            self.everywhere ^= bit
            if device_group is host.device_groups[0]:
                self.primary ^= bit
            if device_group.all:
                _toggle(self.by_model, device_group.model, bit)
                self.by_gpu_memory.toggle(device_group.gpu_memory_mib, bit)
            else:
                self.without_gpus ^= bit
            self.by_gpu_count.toggle(device_group.all.bit_count(), bit)
            self.by_cpus.toggle(host.spec.cpus, bit)
            self.by_memory.toggle(host.spec.memory_mib, bit)
            for label in host.spec.labels:
                _toggle(self.by_label, label, bit)

    # --- free resources ---------------------------------------------------------------------------------------------

    def _open(self, host: NodeEntry) -> None:
        for device_group in host.device_groups:
            self._offer(device_group)
            self.open |= device_group.bit
            self.by_usable.toggle(device_group.usable.bit_count(), device_group.bit)
            self.by_cpus_free.add(host.cpus_free, device_group.bit)
            self.by_memory_free.add(host.memory_free, device_group.bit)

    def _close(self, host: NodeEntry) -> None:
        for device_group in host.device_groups:
            self._withdraw(device_group)
            self.open ^= device_group.bit
            self.by_usable.toggle(device_group.usable.bit_count(), device_group.bit)
            self.by_cpus_free.drop(host.cpus_free, device_group.bit)
            self.by_memory_free.drop(host.memory_free, device_group.bit)

    def _offer(self, device_group: DeviceGroup) -> None:
        while len(self.by_free) <= device_group.free:
            self.by_free.append(0)
        # A group leaves the sets before its free GPUs change (`_withdraw`) and returns afterwards (`_offer`).
        self.by_free[device_group.free] |= device_group.bit
        if device_group.free_mask == device_group.usable and device_group.free:
            self.idle |= device_group.bit
        if device_group.shared:
            self._toggle_lefts(device_group)

    def _withdraw(self, device_group: DeviceGroup) -> None:
        self.by_free[device_group.free] ^= device_group.bit
        if device_group.free_mask == device_group.usable and device_group.free:
            self.idle ^= device_group.bit
        if device_group.shared:
            self._toggle_lefts(device_group)

    def _toggle_lefts(self, device_group: DeviceGroup) -> None:
        for left in device_group.lefts:
            _toggle(self.by_left, left, device_group.bit)

    def _count_free(self, device_group: DeviceGroup) -> None:
        mask = device_group.usable & ~device_group.taken
        for gpu in device_group.shared:
            mask &= ~(1 << gpu)
        device_group.free_mask = mask
        device_group.free = mask.bit_count()

    # --- placements ----------------------------------------------------------------------------------------------

    def take(self, placement: Placement) -> None:
        """Allocate the resources of a placement."""
        for part in placement.slices:
            host = self.hosts[part.node]
            if part.gpus:
                if part.milli == MILLI:
                    self._take_whole(host, part.gpus)
                else:
                    self._move_share(host, part, taken=True)
            if part.cpus or part.memory_mib:
                self._move_host(host, -part.cpus, -part.memory_mib)

    def note_model(self, placement: Placement, model: ModelKey | None) -> None:
        """Record the machine-learning model that the task of this placement names; None: it names no model."""
        for part in placement.slices:
            if part.gpus:
                self.model_cache.note(self.hosts[part.node].device_group_of[part.gpus[0]], mask_of(part.gpus), model)

    def give(self, placement: Placement, *, keep_memory: bool = False) -> None:
        """Free the resources of a placement. `keep_memory`: a suspended attempt keeps its host memory."""
        for part in placement.slices:
            host = self.hosts[part.node]
            if part.gpus:
                if part.milli == MILLI:
                    self._give_whole(host, part.gpus)
                else:
                    self._move_share(host, part, taken=False)
            memory_mib = 0 if keep_memory else part.memory_mib
            if part.cpus or memory_mib:
                self._move_host(host, part.cpus, memory_mib)

    def give_memory(self, placement: Placement) -> None:
        """Free the host memory that a suspended attempt kept."""
        for part in placement.slices:
            if part.memory_mib:
                self._move_host(self.hosts[part.node], 0, part.memory_mib)

    def _take_whole(self, host: NodeEntry, gpus: tuple[int, ...]) -> None:
        device_group = host.device_group_of[gpus[0]]
        mask = mask_of(gpus)
        assert not device_group.taken & mask, f"a GPU of {host.spec.id} is given twice"
        device_group.taken |= mask
        self._recount(device_group, device_group.free_mask & ~mask)

    def _give_whole(self, host: NodeEntry, gpus: tuple[int, ...]) -> None:
        device_group = host.device_group_of[gpus[0]]
        mask = mask_of(gpus)
        assert device_group.taken & mask == mask, f"a GPU of {host.spec.id} is given back twice"
        device_group.taken ^= mask
        self._recount(device_group, device_group.free_mask | (mask & device_group.usable))

    def _recount(self, device_group: DeviceGroup, free_mask: int) -> None:
        """Set the free GPUs of a device group, and update the sets if its node is open."""
        before, after, mask_before = device_group.free, free_mask.bit_count(), device_group.free_mask
        device_group.free_mask, device_group.free = free_mask, after
        if before != after and device_group.host.open:
            bit, by_free = device_group.bit, self.by_free
            by_free[before] ^= bit
            by_free[after] ^= bit
            if device_group.usable in (mask_before, free_mask) and device_group.usable:
                self.idle ^= bit  # all its usable GPUs were free, or are free now

    def _move_share(self, host: NodeEntry, part: Slice, *, taken: bool) -> None:
        (gpu,) = part.gpus
        device_group = host.device_group_of[gpu]
        if host.open:
            self._withdraw(device_group)
        shared = device_group.shared.get(gpu)
        if taken:
            assert not device_group.taken >> gpu & 1, f"GPU {gpu} of {host.spec.id} is whole and shared at once"
            if shared is None:
                shared = device_group.shared[gpu] = SharedGpu(device_group.gpu_memory_mib)
            shared.milli -= part.milli
            shared.memory_mib -= part.gpu_memory_mib
            shared.tasks += 1
            assert shared.milli >= 0, f"GPU {gpu} of {host.spec.id} is shared above its compute"
            assert shared.memory_mib >= 0, f"GPU {gpu} of {host.spec.id} is shared above its memory"
        else:
            assert shared is not None, f"GPU {gpu} of {host.spec.id} is not shared"
            shared.milli += part.milli
            shared.memory_mib += part.gpu_memory_mib
            shared.tasks -= 1
            if not shared.tasks:
                del device_group.shared[gpu]
        self._count_free(device_group)
        if host.open:
            self._offer(device_group)

    def _move_host(self, host: NodeEntry, cpus: int, memory_mib: int) -> None:
        cpus_after, memory_after = host.cpus_free + cpus, host.memory_free + memory_mib
        assert cpus_after >= 0, f"the CPUs of {host.spec.id} are given twice"
        assert memory_after >= 0, f"the memory of {host.spec.id} is given twice"
        if host.open:
            for device_group in host.device_groups:
                self.by_cpus_free.move(host.cpus_free, cpus_after, device_group.bit)
                self.by_memory_free.move(host.memory_free, memory_after, device_group.bit)
        host.cpus_free, host.memory_free = cpus_after, memory_after

    # --- queries -------------------------------------------------------------------------------------------------

    def free_of(self, part: Slice) -> Slice | None:
        """Return the part of a slice that is free on its node, or None if no part is."""
        host = self.hosts[part.node]
        cpus, memory_mib = min(part.cpus, host.cpus_free), min(part.memory_mib, host.memory_free)
        known = [gpu for gpu in part.gpus if gpu in host.device_group_of]
        device_group = host.device_group_of[known[0]] if known else None
        if device_group is None:
            return Slice(part.node, cpus=cpus, memory_mib=memory_mib) if cpus or memory_mib else None
        if part.milli < MILLI:
            (gpu, *_), shared = known, device_group.shared.get(known[0])
            left_milli, left_mib = (shared.milli, shared.memory_mib) if shared else (MILLI, device_group.gpu_memory_mib)
            milli, gpu_memory_mib = min(part.milli, left_milli), min(part.gpu_memory_mib, left_mib)
            if device_group.taken >> gpu & 1 or not milli:
                return None
            return Slice(part.node, (gpu,), milli, gpu_memory_mib, cpus, memory_mib)
        gpus = tuple(
            gpu
            for gpu in dict.fromkeys(known)
            if device_group.all >> gpu & 1 and not device_group.taken >> gpu & 1 and gpu not in device_group.shared
        )
        return Slice(part.node, gpus, cpus=cpus, memory_mib=memory_mib) if gpus or cpus or memory_mib else None

    def device_group(self, number: int) -> DeviceGroup:
        """Return the device group with this number, which must be in use."""
        device_group = self.device_groups[number]
        assert device_group is not None, f"device group {number} is vacant"
        return device_group

    def device_groups_of(self, nodes: tuple[NodeId, ...]) -> DeviceGroupMask:
        """Return all device groups of these nodes; unknown nodes are skipped."""
        found = 0
        for node in nodes:
            if host := self.hosts.get(node):
                for device_group in host.device_groups:
                    found |= device_group.bit
        return found

    def hosts_of(self, device_groups: DeviceGroupMask) -> set[NodeId]:
        """Return the nodes that contain these device groups."""
        return {self.device_group(number).host.spec.id for number in members(device_groups)}

    def all_device_groups(self) -> Iterator[DeviceGroup]:
        """Iterate over all device groups in the order of their numbers."""
        for device_group in self.device_groups:
            if device_group is not None:
                yield device_group


def _toggle(sets: dict[Any, DeviceGroupMask], key: object, device_group: DeviceGroupMask) -> None:
    """Add a device group to the set of a key, or remove it; delete a set that becomes empty."""
    if left := sets.get(key, 0) ^ device_group:
        sets[key] = left
    else:
        del sets[key]
