"""The index: what is free where, kept up to date with every placement, so that no decision has to look at all nodes.

A bay that is closed (its node lost, cordoned or removed) is in none of the sets of free things, so a search can not
find it; what it holds is still counted, and it comes back with exactly that when the node opens again.
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
    """One card that tasks share: what is left of it."""

    __slots__ = ("memory_mib", "milli", "tasks")

    def __init__(self, memory_mib: int) -> None:
        self.milli = MILLI
        self.memory_mib = memory_mib
        self.tasks = 0


class DeviceGroup:
    """The GPUs of one model in one node."""

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
        """Cards by the machine-learning model of the last task on them, where it named one."""
        self.warm = 0
        """All of those cards."""
        self.all = mask_of(tuple(index for index, _ in gpus))
        self.usable = self.all
        self.taken = 0
        self.shared: dict[int, SharedGpu] = {}
        self.free_mask = self.all
        self.free = len(gpus)

    @property
    def lefts(self) -> set[int]:
        """What is left, in thousandths, of cards that are shared already and may be used."""
        return {card.milli for gpu, card in self.shared.items() if self.usable >> gpu & 1}


class NodeEntry:
    """A node: its bays, and the CPUs and memory they have in common."""

    __slots__ = ("away", "bay_of", "bays", "cordoned", "cpus_free", "draining", "health", "lost", "memory_free", "spec")

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec
        self.bays: list[DeviceGroup] = []
        self.bay_of: dict[int, DeviceGroup] = {}
        self.cpus_free = spec.cpus
        self.memory_free = spec.memory_mib
        self.lost = False
        self.away = False
        """It has not registered with this scheduler yet, or was stopped on purpose: what runs there goes on."""
        self.cordoned = False
        self.draining = False
        self.health: dict[int, GpuHealth] = {}

    @property
    def open(self) -> bool:
        """Whether it takes new work."""
        return not (self.lost or self.away or self.cordoned)

    @property
    def milli_free(self) -> int:
        """What is free of its usable cards, in thousandths of one, whole ones and rests of shared ones."""
        free = 0
        for bay in self.bays:
            free += bay.free * MILLI
            for gpu, card in bay.shared.items():
                if bay.usable >> gpu & 1:
                    free += card.milli
        return free


class Index:
    """Every bay of the yard, by everything a search asks for."""

    def __init__(self) -> None:
        self.hosts: dict[NodeId, NodeEntry] = {}
        self.bays: list[DeviceGroup | None] = []
        self.version = 0
        """Grows whenever what a node *is* changes; shapes look their bays up again then."""
        self.changes = 0
        """Grows as well when a node opens or closes: what could start if nothing ran may be something else then."""
        self.gpus_up = 0
        """Cards that count for the split between the classes: of nodes that are not lost, less the broken ones."""
        self._topologies: dict[tuple[tuple[int, int, int | None], ...], Topology] = {}
        self._vacant: list[int] = []
        self.model_cache = ModelCache()
        # what bays are
        self.everywhere: DeviceGroupMask = 0
        self.primary: DeviceGroupMask = 0
        """One bay of each node: the one that stands for its CPUs."""
        self.without_gpus: DeviceGroupMask = 0
        self.by_model: dict[str, DeviceGroupMask] = {}
        self.by_label: dict[tuple[str, str], DeviceGroupMask] = {}
        self.by_gpu_memory = GroupsByValue()
        self.by_gpu_count = GroupsByValue()
        self.by_cpus = GroupsByValue()
        self.by_memory = GroupsByValue()
        # what is there and free in open bays
        self.by_usable = GroupsByValue()
        """Open bays by the number of cards that may be used, free or not."""
        self.by_free: list[DeviceGroupMask] = [0]
        """Bays by the number of wholly free GPUs."""
        self.open: DeviceGroupMask = 0
        """Bays of nodes that take new work."""
        self.idle: DeviceGroupMask = 0
        """Bays with GPUs, all of them free."""
        self.by_left: dict[int, DeviceGroupMask] = {}
        """Bays by what is left of a shared card, in thousandths: one with several such cards is in several sets."""
        self.by_cpus_free = GroupsByLevel()
        self.by_memory_free = GroupsByLevel()

    # --- nodes ---------------------------------------------------------------------------------------------------

    def join(self, spec: NodeSpec, numbers: tuple[int, ...] = ()) -> NodeEntry:
        """A node comes. A snapshot says which bay numbers it had, because ties are broken by number."""
        host = self.hosts[spec.id] = NodeEntry(spec)
        kinds: dict[tuple[str, int], list[tuple[int, Gpu]]] = {}
        for index, gpu in enumerate(spec.gpus):
            kinds.setdefault((gpu.model, gpu.memory_mib), []).append((index, gpu))
        for place, gpus in enumerate(list(kinds.values()) or [[]]):
            bay = self._new_bay(host, tuple(gpus), numbers[place] if numbers else None)
            host.bays.append(bay)
            host.bay_of.update((index, bay) for index, _ in gpus)
        self._describe(host)
        self._open(host)
        self.gpus_up += len(spec.gpus)
        self._note_change()
        return host

    def change(self, spec: NodeSpec) -> None:
        """A node has the same cards as before, and other things about it are not as they were. What is taken stays so."""
        host = self.hosts[spec.id]
        was_open = host.open
        if was_open:
            self._close(host)
        self._describe(host)
        host.cpus_free += spec.cpus - host.spec.cpus
        host.memory_free += spec.memory_mib - host.spec.memory_mib
        host.spec = spec
        for bay in host.bays:
            bay.topology = self._topology(
                tuple((gpu, spec.gpus[gpu]) for gpu in sorted(host.bay_of) if bay.all >> gpu & 1)
            )
        self._describe(host)
        if was_open:
            self._open(host)
        self._note_change()

    def _note_change(self) -> None:
        self.version += 1
        self.changes += 1

    def remove(self, node: NodeId) -> None:
        """A node goes for good; nothing may be placed on it any more."""
        host = self.hosts[node]
        if host.open:
            self._close(host)
        if not host.lost:
            self.gpus_up -= self._healthy(host)
        self._describe(host)
        for bay in host.bays:
            self.model_cache.forget(bay)
            self.bays[bay.number] = None
            self._vacant.append(bay.number)
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
        """A node is lost, away, cordoned, drained, or the contrary."""
        host = self.hosts[node]
        was_open, was_lost = host.open, host.lost
        host.away = host.away if away is None else away
        host.lost = host.lost if lost is None else lost
        host.cordoned = host.cordoned if cordoned is None else cordoned
        host.draining = host.draining if draining is None else draining
        if host.lost != was_lost:
            self.gpus_up += -self._healthy(host) if host.lost else self._healthy(host)
            for bay in host.bays:
                self.model_cache.forget(bay)
        if was_open and not host.open:
            self._close(host)
        elif host.open and not was_open:
            self._open(host)
        self.changes += 1

    def set_health(self, node: NodeId, gpu: int, health: GpuHealth) -> None:
        """A card becomes usable or unusable. What runs on it goes on."""
        host = self.hosts[node]
        bay = host.bay_of[gpu]
        if not host.lost:
            self.gpus_up -= self._healthy(host)
        if health is GpuHealth.OK:
            host.health.pop(gpu, None)
            usable = bay.usable | 1 << gpu
        else:
            host.health[gpu] = health
            usable = bay.usable & ~(1 << gpu)
        if not host.lost:
            self.gpus_up += self._healthy(host)
        if host.open:
            self._withdraw(bay)
            self.by_usable.toggle(bay.usable.bit_count(), bay.bit)
            self.by_usable.toggle(usable.bit_count(), bay.bit)
        bay.usable = usable
        self._count_free(bay)
        if host.open:
            self._offer(bay)
        self._note_change()

    def _healthy(self, host: NodeEntry) -> int:
        return len(host.spec.gpus) - sum(1 for health in host.health.values() if health is GpuHealth.OFFLINE)

    def _new_bay(self, host: NodeEntry, gpus: tuple[tuple[int, Gpu], ...], number: int | None) -> DeviceGroup:
        if number is None:
            number = self._vacant.pop() if self._vacant else len(self.bays)
        while len(self.bays) <= number:
            self.bays.append(None)
            self._vacant.insert(0, len(self.bays) - 1)
        if number in self._vacant:
            self._vacant.remove(number)
        bay = self.bays[number] = DeviceGroup(number, host, gpus, self._topology(gpus))
        return bay

    def _topology(self, gpus: tuple[tuple[int, Gpu], ...]) -> Topology:
        layout = tuple((index, gpu.numa, gpu.nvlink) for index, gpu in gpus)
        return self._topologies.setdefault(layout, Topology(gpus))

    def _describe(self, host: NodeEntry) -> None:
        """Enter what a node's bays are into the sets that never change with placements, or take them out again."""
        for bay in host.bays:
            bit = bay.bit
            self.everywhere ^= bit
            if bay is host.bays[0]:
                self.primary ^= bit
            if bay.all:
                _toggle(self.by_model, bay.model, bit)
                self.by_gpu_memory.toggle(bay.gpu_memory_mib, bit)
            else:
                self.without_gpus ^= bit
            self.by_gpu_count.toggle(bay.all.bit_count(), bit)
            self.by_cpus.toggle(host.spec.cpus, bit)
            self.by_memory.toggle(host.spec.memory_mib, bit)
            for label in host.spec.labels:
                _toggle(self.by_label, label, bit)

    # --- free things ---------------------------------------------------------------------------------------------

    def _open(self, host: NodeEntry) -> None:
        for bay in host.bays:
            self._offer(bay)
            self.open |= bay.bit
            self.by_usable.toggle(bay.usable.bit_count(), bay.bit)
            self.by_cpus_free.add(host.cpus_free, bay.bit)
            self.by_memory_free.add(host.memory_free, bay.bit)

    def _close(self, host: NodeEntry) -> None:
        for bay in host.bays:
            self._withdraw(bay)
            self.open ^= bay.bit
            self.by_usable.toggle(bay.usable.bit_count(), bay.bit)
            self.by_cpus_free.drop(host.cpus_free, bay.bit)
            self.by_memory_free.drop(host.memory_free, bay.bit)

    def _offer(self, bay: DeviceGroup) -> None:
        while len(self.by_free) <= bay.free:
            self.by_free.append(0)
        self.by_free[bay.free] |= bay.bit
        if bay.free_mask == bay.usable and bay.free:
            self.idle |= bay.bit
        if bay.shared:
            self._toggle_lefts(bay)

    def _withdraw(self, bay: DeviceGroup) -> None:
        self.by_free[bay.free] ^= bay.bit
        if bay.free_mask == bay.usable and bay.free:
            self.idle ^= bay.bit
        if bay.shared:
            self._toggle_lefts(bay)

    def _toggle_lefts(self, bay: DeviceGroup) -> None:
        for left in bay.lefts:
            _toggle(self.by_left, left, bay.bit)

    def _count_free(self, bay: DeviceGroup) -> None:
        mask = bay.usable & ~bay.taken
        for gpu in bay.shared:
            mask &= ~(1 << gpu)
        bay.free_mask = mask
        bay.free = mask.bit_count()

    # --- placements ----------------------------------------------------------------------------------------------

    def take(self, placement: Placement) -> None:
        """A placement is made."""
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
        """A task about a model, or about none, is where this placement is."""
        for part in placement.slices:
            if part.gpus:
                self.model_cache.note(self.hosts[part.node].bay_of[part.gpus[0]], mask_of(part.gpus), model)

    def give(self, placement: Placement, *, keep_memory: bool = False) -> None:
        """A placement ends; a suspended attempt leaves its host memory where it is."""
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
        """What a suspended attempt had left behind is free too."""
        for part in placement.slices:
            if part.memory_mib:
                self._move_host(self.hosts[part.node], 0, part.memory_mib)

    def _take_whole(self, host: NodeEntry, gpus: tuple[int, ...]) -> None:
        bay = host.bay_of[gpus[0]]
        mask = mask_of(gpus)
        assert not bay.taken & mask, f"a GPU of {host.spec.id} is given twice"
        bay.taken |= mask
        self._recount(bay, bay.free_mask & ~mask)

    def _give_whole(self, host: NodeEntry, gpus: tuple[int, ...]) -> None:
        bay = host.bay_of[gpus[0]]
        mask = mask_of(gpus)
        assert bay.taken & mask == mask, f"a GPU of {host.spec.id} is given back twice"
        bay.taken ^= mask
        self._recount(bay, bay.free_mask | (mask & bay.usable))

    def _recount(self, bay: DeviceGroup, free_mask: int) -> None:
        """Other cards of a bay are free than before."""
        before, after, usable = bay.free, free_mask.bit_count(), bay.usable
        was_idle, is_idle = bay.free_mask == usable and before > 0, free_mask == usable and after > 0
        bay.free_mask, bay.free = free_mask, after
        host = bay.host
        if before != after and not (host.lost or host.away or host.cordoned):
            bit, by_free = bay.bit, self.by_free
            by_free[before] ^= bit
            by_free[after] ^= bit
            if was_idle != is_idle:
                self.idle ^= bit

    def _move_share(self, host: NodeEntry, part: Slice, *, taken: bool) -> None:
        (gpu,) = part.gpus
        bay = host.bay_of[gpu]
        if host.open:
            self._withdraw(bay)
        card = bay.shared.get(gpu)
        if taken:
            assert not bay.taken >> gpu & 1, f"GPU {gpu} of {host.spec.id} is whole and shared at once"
            if card is None:
                card = bay.shared[gpu] = SharedGpu(bay.gpu_memory_mib)
            card.milli -= part.milli
            card.memory_mib -= part.gpu_memory_mib
            card.tasks += 1
            assert card.milli >= 0, f"GPU {gpu} of {host.spec.id} is shared above its compute"
            assert card.memory_mib >= 0, f"GPU {gpu} of {host.spec.id} is shared above its memory"
        else:
            assert card is not None, f"GPU {gpu} of {host.spec.id} is not shared"
            card.milli += part.milli
            card.memory_mib += part.gpu_memory_mib
            card.tasks -= 1
            if not card.tasks:
                del bay.shared[gpu]
        self._count_free(bay)
        if host.open:
            self._offer(bay)

    def _move_host(self, host: NodeEntry, cpus: int, memory_mib: int) -> None:
        cpus_after, memory_after = host.cpus_free + cpus, host.memory_free + memory_mib
        assert cpus_after >= 0, f"the CPUs of {host.spec.id} are given twice"
        assert memory_after >= 0, f"the memory of {host.spec.id} is given twice"
        if host.open:
            for bay in host.bays:
                self.by_cpus_free.move(host.cpus_free, cpus_after, bay.bit)
                self.by_memory_free.move(host.memory_free, memory_after, bay.bit)
        host.cpus_free, host.memory_free = cpus_after, memory_after

    # --- looking -------------------------------------------------------------------------------------------------

    def free_of(self, part: Slice) -> Slice | None:
        """What of a slice is free on its node; none: nothing of it."""
        host = self.hosts[part.node]
        cpus, memory_mib = min(part.cpus, host.cpus_free), min(part.memory_mib, host.memory_free)
        known = [gpu for gpu in part.gpus if gpu in host.bay_of]
        bay = host.bay_of[known[0]] if known else None
        if bay is None:
            return Slice(part.node, cpus=cpus, memory_mib=memory_mib) if cpus or memory_mib else None
        if part.milli < MILLI:
            (gpu, *_), card = known, bay.shared.get(known[0])
            left_milli, left_mib = (card.milli, card.memory_mib) if card else (MILLI, bay.gpu_memory_mib)
            milli, gpu_memory_mib = min(part.milli, left_milli), min(part.gpu_memory_mib, left_mib)
            if bay.taken >> gpu & 1 or not milli:
                return None
            return Slice(part.node, (gpu,), milli, gpu_memory_mib, cpus, memory_mib)
        gpus = tuple(
            gpu
            for gpu in dict.fromkeys(known)
            if bay.all >> gpu & 1 and not bay.taken >> gpu & 1 and gpu not in bay.shared
        )
        return Slice(part.node, gpus, cpus=cpus, memory_mib=memory_mib) if gpus or cpus or memory_mib else None

    def bay(self, number: int) -> DeviceGroup:
        """The bay with this number."""
        bay = self.bays[number]
        assert bay is not None, f"bay {number} is vacant"
        return bay

    def bays_of(self, nodes: tuple[NodeId, ...]) -> DeviceGroupMask:
        """All bays of these nodes."""
        found = 0
        for node in nodes:
            if host := self.hosts.get(node):
                for bay in host.bays:
                    found |= bay.bit
        return found

    def hosts_of(self, bays: DeviceGroupMask) -> set[NodeId]:
        """The nodes these bays are in."""
        return {self.bay(number).host.spec.id for number in members(bays)}

    def all_bays(self) -> Iterator[DeviceGroup]:
        """Every bay, in order of number."""
        for bay in self.bays:
            if bay is not None:
                yield bay


def _toggle(sets: dict[Any, DeviceGroupMask], key: object, bay: DeviceGroupMask) -> None:
    """Put a bay into a set of many, or take it out; a set that is empty is forgotten."""
    if left := sets.get(key, 0) ^ bay:
        sets[key] = left
    else:
        del sets[key]
