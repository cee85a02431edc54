"""The queue: tasks that wait for GPUs, kept so that what can not start costs nothing.

Tasks of one shape fit or do not fit together, so they stand in one *line*, and a line that finds no room falls asleep:
none of its tasks is looked at again until something that could change that happens on a node it could use. Within a
line, tasks of one tenant and class form a *group*, because quotas speak of tenants and classes: a group whose tenant
is at its limit is set aside, and comes back when the tenant gives something up.

    line (shape, length of run) ──► heads: best task of each group that is not set aside, one heap a class
      └── group (tenant, class) ──► heap of (key, task)

The length of run is part of the line (in steps of eight) because a short task may pass a reservation where a long one
may not. Heaps are cleaned lazily: an entry is real while its task is still queued in that group under that key.
"""

from collections.abc import Iterator
from heapq import heappop, heappush

from gpuyard.domain.task import Resources
from gpuyard.domain.values import NodeId, TaskClass, TaskId
from gpuyard.engine.quota import ClassBook, TenantBook
from gpuyard.engine.task import Task
from gpuyard.placement.shape import Shape

CLASSES = (TaskClass.ONLINE, TaskClass.BATCH)
ONLINE, BATCH = 0, 1
"""Their places in every pair that is kept by class."""


class Group:
    """Waiting tasks of one line, tenant and class."""

    __slots__ = ("aside", "heap", "line", "listed", "place", "tenant")

    def __init__(self, line: "Line", tenant: TenantBook, place: int) -> None:
        self.line = line
        self.tenant = tenant
        self.place = place
        """ONLINE or BATCH."""
        self.heap: list[tuple[float, TaskId, Task]] = []
        self.listed: TaskId | None = None
        """The task that stands for the group among the heads."""
        self.aside = False
        """The tenant is at a limit."""

    def top(self) -> tuple[float, TaskId, Task] | None:
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
    """Waiting tasks of one shape and about one length."""

    __slots__ = ("awake", "behind", "groups", "heads", "number", "shape")

    def __init__(self, number: int, shape: Shape) -> None:
        self.number = number
        self.shape = shape
        self.awake = True
        """It may find room; asleep: it surely does not until something changes."""
        self.behind = False
        """It sleeps because the room it would have is promised to others."""
        self.groups: dict[tuple[str, int], Group] = {}
        self.heads: tuple[list[tuple[float, TaskId, Group]], list[tuple[float, TaskId, Group]]] = ([], [])

    def head(self, place: int) -> tuple[float, TaskId, Group] | None:
        """The best task of a class whose tenant is not at a limit."""
        heads = self.heads[place]
        while heads:
            entry = heads[0]
            group = entry[2]
            top = group.top()
            if top is not None and top[1] == entry[1] and not group.aside:
                return entry
            heappop(heads)
            if group.listed == entry[1]:
                group.listed = None
                if top is not None and not group.aside:
                    self.list(group, top)
        return None

    def list(self, group: Group, top: tuple[float, TaskId, Task]) -> None:
        """Let a group's best task stand for it."""
        group.listed = top[1]
        heappush(self.heads[group.place], (top[0], top[1], group))

    def tops(self, place: int) -> Iterator[tuple[float, TaskId, Group]]:
        """The best task of every group of a class that is not set aside, in no order."""
        for group in self.groups.values():
            if group.place == place and not group.aside and (top := group.top()):
                yield (top[0], top[1], group)


class Queue:
    """All lines."""

    def __init__(self) -> None:
        self.lines: dict[tuple[Resources, int, tuple[NodeId, ...]], Line] = {}
        self.by_number: dict[int, Line] = {}
        self.by_gpus: dict[int, dict[int, Line]] = {}
        """Lines by the GPUs they want on one node, for the question who could use a freed node."""
        self.stirred: dict[int, Line] = {}
        """Lines to be looked at in the next pass, by number."""
        self.aside: dict[str, dict[int, list[Group]]] = {}
        """Groups set aside, by tenant and line number."""
        self.loosened: dict[str, TenantBook] = {}
        """Tenants with groups aside that may have room again."""
        self.class_freed = [False, False]
        self.over: tuple[dict[int, Line], dict[int, Line]] = ({}, {})
        """Lines that wait for their class to give something up, by class."""
        self.waiting = 0
        self._count = 0

    def push(
        self, task: Task, tenant: TenantBook, resources: Resources, pin: tuple[NodeId, ...], seconds: float
    ) -> Line:
        """Queue a task under the key it has."""
        length = -1 if seconds == float("inf") else int(seconds).bit_length() // 3
        line_key = (resources, length, pin)
        line = self.lines.get(line_key)
        if line is None:
            self._count += 1
            line = self.lines[line_key] = Line(self._count, Shape(resources, pin))
            self.by_number[line.number] = line
            self.by_gpus.setdefault(line.shape.gpus, {})[line.number] = line
        place = ONLINE if task.spec.task_class is TaskClass.ONLINE else BATCH
        group_key = (tenant.tenant.id, place)
        group = line.groups.get(group_key)
        if group is None:
            group = line.groups[group_key] = Group(line, tenant, place)
        task.group = group
        entry = (task.key, task.id, task)
        heappush(group.heap, entry)
        if group.heap[0] is entry and not group.aside:
            line.list(group, entry)
        self.waiting += 1
        return line

    def remove(self, task: Task) -> Line | None:
        """Take a task out; its entries are cleaned when they come up."""
        group, task.group = task.group, None
        if group is None:
            return None
        self.waiting -= 1
        return group.line

    def set_aside(self, group: Group) -> None:
        """The group's tenant is at a limit."""
        group.aside = True
        group.listed = None
        tenant = group.tenant
        self.aside.setdefault(tenant.id, {}).setdefault(group.line.number, []).append(group)
        if tenant.used >= tenant.limit:
            self.loosened.pop(tenant.id, None)

    def loosen(self, tenant: TenantBook) -> None:
        """A tenant gave something up, or may have more than before."""
        if tenant.id in self.aside:
            self.loosened[tenant.id] = tenant

    def sleep(self, line: Line, *, behind: bool) -> None:
        """A line found no room; `behind`: only because the room is promised to others."""
        line.awake = False
        line.behind = behind

    def wake(self, line: Line) -> None:
        """A line may find room again."""
        line.awake = True
        line.behind = False
        self.stirred[line.number] = line
        for tenant in tuple(self.loosened):
            self._take_back(tenant, line.number)

    def wake_all(self) -> None:
        """Anything may be otherwise now."""
        for line in self.lines.values():
            self.wake(line)

    def stir(self, books: tuple[ClassBook, ClassBook]) -> dict[int, Line]:
        """The lines a pass has to look at: those that were stirred, and those a tenant or class made way for."""
        for tenant in tuple(self.loosened):
            for number, groups in tuple(self.aside.get(tenant, {}).items()):
                if groups[0].line.awake:
                    self._take_back(tenant, number)
        for place in (ONLINE, BATCH):
            if self.class_freed[place] and self.over[place]:
                room = books[place].limit - books[place].used
                fitting = [line for line in self.over[place].values() if line.shape.need_milli <= room]
                for line in fitting:
                    del self.over[place][line.number]
                    self.stirred[line.number] = line
            self.class_freed[place] = False
        stirred, self.stirred = self.stirred, {}
        return stirred

    def _take_back(self, tenant: str, number: int) -> None:
        by_line = self.aside.get(tenant, {})
        groups = by_line.pop(number, None)
        if groups is None:
            return
        for group in groups:
            group.aside = False
            if top := group.top():
                group.line.list(group, top)
        self.stirred[number] = groups[0].line
        if not by_line:
            del self.aside[tenant]
            self.loosened.pop(tenant, None)

    def forget_empty(self) -> None:
        """Drop lines nobody stands in, so that a yard that saw a million shapes does not keep them all."""
        for line_key, line in list(self.lines.items()):
            if not any(group.top() for group in line.groups.values()):
                del self.lines[line_key]
                del self.by_number[line.number]
                del self.by_gpus[line.shape.gpus][line.number]
                self.stirred.pop(line.number, None)
                for by_line in self.aside.values():
                    by_line.pop(line.number, None)
                for over in self.over:
                    over.pop(line.number, None)
