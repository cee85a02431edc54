"""The queue: tasks that wait for GPUs, kept so that what can not start costs nothing.

Tasks of one shape fit or do not fit together, so they stand in one *line*, and a line that finds no room falls asleep:
none of its tasks is looked at again until something that could change that happens on a node it could use. Within a
line, tasks of one tenant and class form a *group*, because quotas speak of tenants and classes.

    line (shape, length of run) ──► heads: best task of each group that is not parked, one heap a class
      └── group (tenant, class) ──► heap of (key, task)

What a quota stops is *parked* with the quota: groups with their tenant, lines with their class. A parking place is a
queue of its own: the first in it goes first, and nobody who stands behind it gets through while it does not fit, so
that small tasks can not keep a large one waiting for ever. When the quota has room again only that first one is asked.

The length of run is part of the line (in steps of eight) because a short task may pass a reservation where a long one
may not. Heaps are cleaned lazily: an entry is real while its task is still queued in that group under that key.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from math import inf

from gpuyard.core.domain.task import Resources
from gpuyard.core.domain.values import Preemption, TaskId
from gpuyard.core.engine.quota import BATCH, ONLINE, TenantBook
from gpuyard.core.engine.task import UNKNOWN, Task
from gpuyard.core.placement.device_group_mask import BaySet
from gpuyard.core.placement.shape import Shape

TOTAL, SOME = "", "*"
SLACK = 64
"""How many stale entries a heap may hold before it is tidied."""

Entry = tuple[float, TaskId, Task]
Head = tuple[float, TaskId, "Group"]
"""The best task of a group."""


class Group:
    """Waiting tasks of one line, tenant and class."""

    __slots__ = ("class_index", "heap", "line", "listed", "parked", "size", "tenant")

    def __init__(self, line: "Line", tenant: TenantBook, class_index: int) -> None:
        self.line = line
        self.tenant = tenant
        self.class_index = class_index
        """ONLINE or BATCH."""
        self.heap: list[Entry] = []
        self.size = 0
        """How many tasks wait in it; the heap may hold more entries, of tasks that left."""
        self.listed: Entry | None = None
        """The entry that stands for the group among the heads."""
        self.parked: str | None = None
        """The limit of its tenant that stops it: of all GPUs (TOTAL), of one model, or of several (SOME)."""

    def __lt__(self, other: "Group") -> bool:
        return False  # two entries for one task are equal, whichever comes first

    def tidy(self) -> None:
        """Throw away the entries of tasks that left."""
        real = {entry[1]: entry for entry in self.heap if entry[2].group is self and entry[2].key == entry[0]}
        self.heap[:] = sorted(real.values())

    def top(self) -> Entry | None:
        """The best task of the group."""
        heap = self.heap
        while heap:
            entry = heap[0]
            task = entry[2]
            if task.group is self and task.key == entry[0]:
                return entry
            heappop(heap)
        return None


class Line:
    """Waiting tasks of one shape and about one length, all of which may be stopped for others, or none."""

    __slots__ = ("advised", "again_at", "awake", "behind", "groups", "heads", "length", "number", "parked", "shape")

    def __init__(self, number: int, shape: Shape, length: int) -> None:
        self.number = number
        self.shape = shape
        self.length = length
        """About how long its tasks run, in steps of eight; below zero: nobody knows."""
        self.awake = True
        """It may find room; asleep: it surely does not until something changes."""
        self.behind = False
        """It sleeps because the room it would have is promised to others."""
        self.advised: BaySet = 0
        """It sleeps although it has room: its first task waits for these bays, which are better (gpuyard.core.engine.advice)."""
        self.again_at = -inf
        """When it is looked at again though nothing was freed; in the past: there is no such instant."""
        self.parked = [False, False]
        """The class is at its limit."""
        self.groups: dict[tuple[str, int], Group] = {}
        self.heads: tuple[list[Head], list[Head]] = ([], [])

    def __lt__(self, other: "Line") -> bool:
        return False

    def head(self, class_index: int) -> Head | None:
        """The best task of a class whose tenant is not at a limit."""
        heads = self.heads[class_index]
        while heads:
            entry = heads[0]
            group = entry[2]
            heap = group.heap
            if heap:
                first = heap[0]
                task = first[2]
                if (
                    first[1] == entry[1]
                    and first[0] == entry[0] == task.key
                    and task.group is group
                    and group.parked is None
                ):
                    return entry  # the usual case, without a call
            top = group.top()
            if top is not None and top[1] == entry[1] and top[0] == entry[0] and group.parked is None:
                return entry
            heappop(heads)
            if group.listed is not None and group.listed[:2] == entry[:2]:
                group.listed = None
            if top is not None and group.parked is None:
                self.list(group, top)
        return None

    def list(self, group: Group, top: Entry) -> None:
        """Let a group's best task stand for it."""
        if group.listed != top:
            group.listed = top
            heads = self.heads[group.class_index]
            heappush(heads, (top[0], top[1], group))
            if len(heads) > SLACK + 2 * len(self.groups):
                heads[:] = sorted(self.tops(group.class_index))

    def tops(self, class_index: int) -> Iterator[Head]:
        """The best task of every group of a class that is not parked, in no order."""
        for group in self.groups.values():
            if group.class_index == class_index and group.parked is None and (top := group.top()):
                yield (top[0], top[1], group)


class Queue:
    """All lines."""

    def __init__(self) -> None:
        self.lines: dict[tuple[Resources, int, BaySet, bool], Line] = {}
        self.by_number: dict[int, Line] = {}
        self.by_gpus: dict[int, dict[int, Line]] = {}
        """Lines by the GPUs they want on one node, for the question who could use a freed node."""
        self.stirred: dict[int, Line] = {}
        """Lines to be looked at in the next pass, by number."""
        self.with_tenant: dict[str, dict[str, list[Head]]] = {}
        """Groups parked with their tenant, by the limit that stops them, the first of them on top."""
        self.choosy: set[tuple[str, str]] = set()
        """Which tenants have groups parked at limits on models or single nodes: those may fit where others left."""
        self.with_class: tuple[list[tuple[float, TaskId, Line]], list[tuple[float, TaskId, Line]]] = ([], [])
        """Lines parked with their class, likewise."""
        self.for_good: tuple[dict[int, Line], dict[int, Line]] = ({}, {})
        """Lines that want more than their class may ever have, until that changes. Nobody waits behind them."""
        self.loosened: dict[str, TenantBook] = {}
        """Tenants that gave something up, or may have more than before, and have groups parked."""
        self.class_loosened = [False, False]
        self.waiting = 0
        self._count = 0
        self._sweep_at = 256

    def push(self, task: Task, resources: Resources, pin: BaySet, seconds: float) -> Line:
        """Queue a task under the key it has."""
        length = -1 if seconds == UNKNOWN else int(seconds).bit_length() // 3
        line_key = (resources, length, pin, task.preemption is Preemption.NEVER)
        line = self.lines.get(line_key)
        if line is None:
            if len(self.lines) >= self._sweep_at:
                self.forget_empty()
                self._sweep_at = max(256, 2 * len(self.lines))
            self._count += 1
            line = self.lines[line_key] = Line(self._count, Shape(resources, pin), length)
            self.by_number[line.number] = line
            self.by_gpus.setdefault(line.shape.gpus, {})[line.number] = line
        class_index = task.class_index
        group_key = (task.spec.tenant, class_index)
        group = line.groups.get(group_key)
        if group is None:
            group = line.groups[group_key] = Group(line, task.book, class_index)
        elif group.tenant is not task.book:  # the tenant was forgotten and came again
            group.tenant, group.parked, group.listed = task.book, None, None
        task.group = group
        group.size += 1
        entry = (task.key, task.id, task)
        heappush(group.heap, entry)
        if len(group.heap) > SLACK + 2 * group.size:
            group.tidy()
        if group.heap[0][1] == task.id:
            self._line_up(group, entry)
        self.waiting += 1
        return line

    def _line_up(self, group: Group, top: Entry) -> None:
        """A group has a new best task: it takes its place among the heads, or where its group or line is parked.

        Whoever comes first at a parking place is asked at once: it may want less than the one it overtook.
        """
        line, class_index = group.line, group.class_index
        if group.parked is not None:
            parked = self.with_tenant[group.tenant.id][group.parked]
            heappush(parked, (top[0], top[1], group))
            if parked[0][1] == top[1]:
                self.loosened[group.tenant.id] = group.tenant
            return
        line.list(group, top)
        if line.parked[class_index] and line.number not in self.for_good[class_index]:
            lines = self.with_class[class_index]
            heappush(lines, (top[0], top[1], line))
            if lines[0][1] == top[1]:
                self.class_loosened[class_index] = True

    def remove(self, task: Task) -> None:
        """Take a task out; its entries are cleaned when they come up."""
        group, task.group = task.group, None
        if group is not None:
            self.waiting -= 1
            group.size -= 1
            if group.parked is not None:
                self.loosened[group.tenant.id] = group.tenant
            elif group.line.parked[group.class_index]:
                self.class_loosened[group.class_index] = True

    # --- room on nodes -------------------------------------------------------------------------------------------

    def sleep(self, line: Line, *, behind: bool, advised: BaySet = 0) -> None:
        """A line found no room; `behind`: only because the room is promised to others; `advised`: it waits for better."""
        line.awake = False
        line.behind = behind
        line.advised = advised

    def wake(self, line: Line) -> None:
        """A line may find room again."""
        line.awake = True
        line.behind = False
        self.stirred[line.number] = line

    def retry(self, line: Line) -> None:
        """Try a line again even where a quota stops it: it may have the right to stop others now."""
        line.parked = [False, False]
        for group in line.groups.values():
            group.parked = None
            if top := group.top():
                line.list(group, top)
        self.wake(line)

    def retry_all(self) -> None:
        """Somebody running may be stopped by others than before."""
        for line in self.lines.values():
            self.retry(line)

    def wake_all(self) -> None:
        """Anything may be otherwise now."""
        for line in self.lines.values():
            self.wake(line)
        self.loosen_all()

    def loosen_all(self, *, only_by_model: bool = False) -> None:
        """Whoever is parked may fit again; `only_by_model`: those that a limit on models keeps to nodes that were full."""
        if not only_by_model:
            self.class_loosened[ONLINE] = self.class_loosened[BATCH] = True
        for by_limit in self.with_tenant.values():
            for limit, parked in by_limit.items():
                if parked and not (only_by_model and limit == TOTAL):
                    self.loosened[parked[0][2].tenant.id] = parked[0][2].tenant

    # --- quotas --------------------------------------------------------------------------------------------------

    def park_with_tenant(self, group: Group, limit: str) -> None:
        """The group's tenant is at a limit."""
        group.parked = limit
        group.listed = None
        top = group.top()
        assert top is not None
        parked = self.with_tenant.setdefault(group.tenant.id, {}).setdefault(limit, [])
        if limit != TOTAL:
            self.choosy.add((group.tenant.id, limit))
        heappush(parked, (top[0], top[1], group))

    def park_with_class(self, line: Line, class_index: int) -> None:
        """The class is at its limit."""
        head = line.head(class_index)
        assert head is not None
        line.parked[class_index] = True
        heappush(self.with_class[class_index], (head[0], head[1], line))

    def park_for_good(self, line: Line, class_index: int) -> None:
        """The line wants more than its class may ever have."""
        line.parked[class_index] = True
        self.for_good[class_index][line.number] = line

    def unpark_all_for_good(self) -> None:
        """The classes' parts changed."""
        for class_index in (ONLINE, BATCH):
            for line in self.for_good[class_index].values():
                line.parked[class_index] = False
                self.stirred[line.number] = line
            self.for_good[class_index].clear()

    def first_with_tenant(self, tenant: str, limit: str) -> Head | None:
        """The first group parked at a limit of a tenant."""
        parked = self.with_tenant.get(tenant, {}).get(limit)
        while parked:
            group = parked[0][2]
            top = group.top()
            if group.parked == limit and top is not None and top[:2] == parked[0][:2]:
                return parked[0]
            entry = heappop(parked)
            if group.parked == limit:
                if top is None:
                    group.parked = None
                elif top[:2] > entry[:2]:
                    heappush(parked, (top[0], top[1], group))
        if parked is not None:
            del self.with_tenant[tenant][limit]
            self.choosy.discard((tenant, limit))
            if not self.with_tenant[tenant]:
                del self.with_tenant[tenant]
        return None

    def unpark_from_tenant(self, head: Head) -> Line:
        """The first group parked at a limit of a tenant counts again in its line."""
        group = head[2]
        assert group.parked is not None
        heappop(self.with_tenant[group.tenant.id][group.parked])
        group.parked = None
        top = group.top()
        assert top is not None
        line = group.line
        line.list(group, top)
        if line.parked[group.class_index] and line.number not in self.for_good[group.class_index]:
            heappush(self.with_class[group.class_index], (top[0], top[1], line))
        return line

    def first_with_class(self, class_index: int) -> tuple[float, TaskId, Line] | None:
        """The first line parked with a class."""
        parked = self.with_class[class_index]
        while parked:
            entry = parked[0]
            line = entry[2]
            head = line.head(class_index)
            if line.parked[class_index] and head is not None and head[1] == entry[1] and head[0] == entry[0]:
                return entry
            heappop(parked)
            if line.parked[class_index]:
                if head is None:
                    line.parked[class_index] = False
                elif head[:2] > entry[:2]:
                    heappush(parked, (head[0], head[1], line))
        return None

    def unpark_from_class(self, class_index: int) -> Line:
        """The first line parked with a class takes part again."""
        line = heappop(self.with_class[class_index])[2]
        line.parked[class_index] = False
        return line

    def forget_tenant(self, tenant: str) -> None:
        """A tenant with nothing in the queue is not known any more."""
        for limit in self.with_tenant.pop(tenant, ()):
            self.choosy.discard((tenant, limit))
        self.loosened.pop(tenant, None)

    def forget_empty(self) -> None:
        """Drop lines nobody stands in, so that a yard that saw a million shapes does not keep them all."""
        for line_key, line in list(self.lines.items()):
            if not any(group.top() for group in line.groups.values()):
                del self.lines[line_key]
                del self.by_number[line.number]
                del self.by_gpus[line.shape.gpus][line.number]
                self.stirred.pop(line.number, None)
                for parked in self.for_good:
                    parked.pop(line.number, None)
