"""The waiting queue: tasks that wait for GPUs, and the index from wake-ups to the entries that wait for them.

Tasks of one shape all fit or all do not fit, so they form one *line*. Within a line, the tasks of one tenant and class
form a *group*, because quotas apply to tenants and classes.

    line (shape, length of run) ──► heads: best task of each group that is not blocked, one heap per class
      └── group (tenant, class) ──► heap of (key, task)

If a task cannot be placed, its wake-ups (`gpuyard.core.engine.waiting.wakeups`) determine which entry is blocked:

    RoomOn, ReservationEnded   the line: none of its tasks finds room
    ClassQuota, ClassLimit     the tasks of one class in the line
    TenantQuota                the group: the line continues without it

A blocked entry is not tried again until one of its wake-ups is published. Entries that wait for a quota form a queue of
their own: the first entry goes first, and those behind it wait while it does not fit, so that small tasks cannot starve
a large one. When the quota has room again, only that first entry is tried.

The length of run is part of the line (in steps of a factor of eight) because a short task may be backfilled before a
reservation where a long one may not. Heaps are cleaned lazily: an entry of a group is valid while its task is still
queued in that group under that key, and one of the heads while its group is `listed` with it.
"""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush, heapreplace

from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import Resources
from gpuyard.core.domain.values import Preemption, TaskId, TenantId
from gpuyard.core.engine.quota import BATCH, ONLINE, TenantUsage
from gpuyard.core.engine.task import UNKNOWN, OpenTask
from gpuyard.core.engine.waiting.wakeups import (
    RESERVATION_ENDED,
    TOTAL,
    Blocked,
    ClassLimit,
    ClassQuota,
    Published,
    RoomOn,
    TenantQuota,
)
from gpuyard.core.placement.device_group_mask import DeviceGroupMask
from gpuyard.core.placement.shape import Shape

SLACK = 64
"""Number of stale entries a heap may hold before it is cleaned."""

Entry = tuple[float, TaskId, OpenTask]
Head = tuple[float, TaskId, "Group"]
"""The best task of a group: key, task number, group."""
ClassEntry = tuple[float, TaskId, "Line"]
"""The best task of a class in a line that waits for the quota of the class: key, task number, line."""

LIMITS_CHANGED = Cause(CauseKind.LIMITS_CHANGED)


class Group:
    """Waiting tasks of one line, tenant and class."""

    __slots__ = ("blocked", "class_index", "heap", "limit", "line", "listed", "size", "tenant")

    def __init__(self, line: "Line", tenant: TenantUsage, class_index: int) -> None:
        self.line = line
        self.tenant = tenant
        self.class_index = class_index
        """ONLINE or BATCH."""
        self.heap: list[Entry] = []
        self.size = 0
        """Number of waiting tasks; the heap may also hold entries of tasks that left."""
        self.listed: Head | None = None
        """Its best task among the heads of its line; None: that task has left, or the group is blocked."""
        self.blocked: Blocked | None = None
        """Set while a limit of the tenant stops the group."""
        self.limit = TOTAL
        """The limit that stops the group, while it is blocked."""

    def __lt__(self, other: "Group") -> bool:
        return False  # entries for the same task are equal

    def tidy(self) -> None:
        """Remove the entries of tasks that left."""
        real = {entry[1]: entry for entry in self.heap if entry[2].group is self and entry[2].key == entry[0]}
        self.heap[:] = sorted(real.values())

    def top(self) -> Entry | None:
        """Return the entry of the best task; None: the group is empty."""
        heap = self.heap
        while heap:
            entry = heap[0]
            task = entry[2]
            if task.group is self and task.key == entry[0]:
                return entry
            heappop(heap)
        return None


class Line:
    """Waiting tasks of one shape and similar run time, all of them preemptible or none."""

    __slots__ = (
        "again_at", "blocked", "cause", "class_blocked", "groups", "heads", "length", "number", "reserve_at", "shape", "sweep_at",
    )  # fmt: skip

    def __init__(self, number: int, shape: Shape, length: int) -> None:
        self.number = number
        self.shape = shape
        self.length = length
        """Approximate run time of its tasks, in steps of a factor of eight; negative: unknown."""
        self.blocked: Blocked | None = None
        """Set while none of its tasks finds room."""
        self.class_blocked: list[Blocked | None] = [None, None]
        """By class: set while the tasks of the class wait for its quota."""
        self.cause: Cause | None = None
        """Cause of the last mark or wake-up."""
        self.again_at = float("-inf")
        """Instant for which a timer is set to try the line again; in the past: no timer is set."""
        self.reserve_at = float("-inf")
        """Instant of the last timer for a task of the line that had not waited long enough for a reservation."""
        self.groups: dict[tuple[str, int], Group] = {}
        self.sweep_at = SLACK
        """Number of groups at which the empty ones are removed."""
        self.heads: tuple[list[Head], list[Head]] = ([], [])

    def __lt__(self, other: "Line") -> bool:
        return False

    def group_for(self, tenant: TenantUsage, class_index: int) -> Group:
        """Return the group of a tenant and class, which is made if there is none."""
        key = (tenant.id, class_index)
        group = self.groups.get(key)
        if group is None:
            if len(self.groups) >= self.sweep_at:  # most tenants of the past may never return
                self.groups = {key: group for key, group in self.groups.items() if group.size}
                self.sweep_at = max(SLACK, 2 * len(self.groups))
            group = self.groups[key] = Group(self, tenant, class_index)
        elif group.tenant is not tenant:  # the tenant was removed and has returned
            group.tenant, group.blocked, group.listed = tenant, None, None
        return group

    def head(self, class_index: int) -> Head | None:
        """Return the best task of a class whose group is not blocked by a tenant limit."""
        heads = self.heads[class_index]
        while heads:
            head = heads[0]
            group = head[2]
            if group.listed is head:
                return head
            top = group.top()
            if top is not None and group.listed is None and group.blocked is None:
                group.listed = (top[0], top[1], group)
                heapreplace(heads, group.listed)
            else:
                heappop(heads)
        return None

    def list(self, group: Group, top: Entry) -> None:
        """Add the best task of a group to the heads."""
        if group.listed is None or group.listed[1] != top[1]:
            group.listed = (top[0], top[1], group)
            heads = self.heads[group.class_index]
            heappush(heads, group.listed)
            if len(heads) > SLACK + 2 * len(self.groups):
                heads[:] = sorted(self.tops(group.class_index))
                for head in heads:
                    head[2].listed = head

    def tops(self, class_index: int) -> Iterator[Head]:
        """Yield the best task of every group of a class that is not blocked, in no particular order."""
        for group in self.groups.values():
            if group.class_index == class_index and group.blocked is None and (top := group.top()):
                yield (top[0], top[1], group)


class Queue:
    """All lines, and the index from wake-ups to the entries that wait for them."""

    def __init__(self) -> None:
        self.lines: dict[tuple[Resources, int, DeviceGroupMask, bool], Line] = {}
        self.by_number: dict[int, Line] = {}
        self.waiting = 0
        self.dirty: dict[int, Line] = {}
        """Lines to try in the next pass, by number."""
        self.published = Published()
        # the index: entries by the wake-up they wait for; lines blocked for room are found by their device groups
        self.by_gpus: dict[int, dict[int, Line]] = {}
        """All lines by the GPUs they need on one node, to find those that could use a device group that gained room."""
        self.for_reservation: dict[int, Line] = {}
        """ReservationEnded: lines by number."""
        self.for_class: tuple[list[ClassEntry], list[ClassEntry]] = ([], [])
        """ClassQuota: heap of lines, first in order on top."""
        self.for_class_limit: tuple[dict[int, Line], dict[int, Line]] = ({}, {})
        """ClassLimit: lines that need more than their class may ever use. They do not block entries behind them."""
        self.for_tenant: dict[TenantId, dict[str, list[Head]]] = {}
        """TenantQuota: heap of groups by tenant and limit, first in order on top."""
        self._count = 0
        self._sweep_at = 256

    # --- tasks come and go ---------------------------------------------------------------------------------------

    def push(self, task: OpenTask, resources: Resources, pin: DeviceGroupMask, seconds: float) -> Line:
        """Add a task to the queue under its current key; return its line."""
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
        group = line.group_for(task.tenant_usage, task.class_index)
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
        """Enter the new best task of a group among the heads, or where its group or class is blocked.

        A new first entry at a quota is tried at once: it may need less than the entry it overtook.
        """
        line, class_index = group.line, group.class_index
        if group.blocked is not None:
            waiting = self.for_tenant[group.tenant.id][group.limit]
            heappush(waiting, (top[0], top[1], group))
            if len(waiting) > SLACK + 4 * len(self.lines):
                self._tidy_for_tenant(waiting, group.limit)
            if waiting[0][1] == top[1]:
                self.published.tenant_quota[group.tenant.id] = Cause(CauseKind.QUEUED, task=top[1])
            return
        if group.heap[0] is top:  # not an older entry of the same task, which `Line.head` will clean
            line.list(group, top)
        if line.class_blocked[class_index] is not None and line.number not in self.for_class_limit[class_index]:
            lines = self.for_class[class_index]
            heappush(lines, (top[0], top[1], line))
            if len(lines) > SLACK + 2 * len(self.lines):
                self._tidy_for_class(class_index)
            if lines[0][1] == top[1]:
                self.published.class_quota[class_index] = Cause(CauseKind.QUEUED, task=top[1])

    def _tidy_for_tenant(self, waiting: list[Head], limit: str) -> None:
        """Remove the stale entries of a heap of groups; groups without tasks wait for nothing."""
        groups = dict.fromkeys(group for _, _, group in waiting if group.blocked is not None and group.limit == limit)
        waiting.clear()
        for group in groups:
            top = group.top()
            if top is None:
                group.blocked = None
            else:
                waiting.append((top[0], top[1], group))
        waiting.sort()

    def _tidy_for_class(self, class_index: int) -> None:
        """Remove the stale entries of a heap of lines; lines without tasks of the class wait for nothing."""
        waiting, elsewhere = self.for_class[class_index], self.for_class_limit[class_index]
        lines = dict.fromkeys(line for _, _, line in waiting if line.class_blocked[class_index] is not None)
        waiting.clear()
        for line in lines:
            if line.number not in elsewhere:
                head = line.head(class_index)
                if head is None:
                    line.class_blocked[class_index] = None
                else:
                    waiting.append((head[0], head[1], line))
        waiting.sort()

    def remove(self, task: OpenTask) -> None:
        """Remove a queued task; its heap entries are cleaned when they reach the top."""
        group, task.group = task.group, None
        assert group is not None, f"task {task.id} is not queued"
        self.waiting -= 1
        group.size -= 1
        if group.listed is not None and group.listed[1] == task.id:
            group.listed = None
        if group.blocked is not None:
            self.published.tenant_quota[group.tenant.id] = Cause(CauseKind.QUEUE_CHANGED, task=task.id)
        elif group.line.class_blocked[group.class_index] is not None:
            self.published.class_quota[group.class_index] = Cause(CauseKind.QUEUE_CHANGED, task=task.id)

    # --- publishing ------------------------------------------------------------------------------------------------

    def is_quiet(self) -> bool:
        """Return whether nothing was published since the last pass, and no line is to be tried."""
        published = self.published
        return not (
            published.room
            or self.dirty
            or published.class_quota
            or published.tenant_quota
            or published.preemptible
            or published.reservations
        )

    def room_gained(self, group: int, cause: Cause) -> None:
        """Publish RoomOn for a device group."""
        self.published.room[group] = cause

    def preemptible_started(self, group: int, cause: Cause) -> None:
        """Publish that a preemptible task began to run in a device group."""
        self.published.preemptible[group] = cause

    def class_quota_freed(self, class_index: int, cause: Cause) -> None:
        """Publish ClassQuota."""
        self.published.class_quota[class_index] = cause

    def tenant_quota_freed(self, tenant: TenantId, cause: Cause) -> None:
        """Publish TenantQuota for all limits of a tenant."""
        self.published.tenant_quota[tenant] = cause

    def guarantee_crossed(self, *, all_lines: bool) -> None:
        """Publish that a tenant or class uses less than it is guaranteed, or more, which others may reclaim.

        `all_lines`: usage crossed the guarantee, so that it protects tasks no longer, or the class borrows no longer.
        """
        self.published.guarantees = True
        self.published.protection |= all_lines

    def order_changed(self, cause: Cause) -> None:
        """Publish that another task may be the next one to get a reservation."""
        self.published.reservations = cause

    def reservation_ended(self, cause: Cause) -> None:
        """Publish ReservationEnded: the room and the quota that are no longer reserved may admit other tasks."""
        self.order_changed(cause)
        self.quotas_changed(cause)
        self.wake_for_reservation(cause)

    def reservation_moved(self, cause: Cause) -> None:
        """Publish that there may be more time or room next to a reservation than before."""
        self.quotas_changed(cause, except_total=True)
        self.wake_for_reservation(cause)

    def quotas_changed(self, cause: Cause, *, except_total: bool = False) -> None:
        """Publish every quota; `except_total`: only tenant limits other than TOTAL, which depend on nodes."""
        if not except_total:
            self.published.class_quota.update({ONLINE: cause, BATCH: cause})
        for tenant, by_limit in self.for_tenant.items():
            for limit, waiting in by_limit.items():
                if waiting and not (except_total and limit == TOTAL):
                    self.published.tenant_quota[tenant] = cause

    def class_limits_changed(self, cause: Cause) -> None:
        """Publish ClassLimit for both classes."""
        for class_index in (ONLINE, BATCH):
            for line in self.for_class_limit[class_index].values():
                line.class_blocked[class_index] = None
                self.mark(line, cause)
            self.for_class_limit[class_index].clear()

    def everything_changed(self, cause: Cause) -> None:
        """Publish all wake-ups."""
        for line in self.lines.values():
            self.wake(line, cause)
        self.quotas_changed(cause)

    def retry(self, lines: Iterable[Line], cause: Cause) -> None:
        """Unblock lines including their quota blocks: their tasks may have the right to preempt others now."""
        for line in lines:
            line.class_blocked = [None, None]
            for group in line.groups.values():
                group.blocked = None
                if top := group.top():
                    line.list(group, top)
            self.wake(line, cause)

    def retry_at_quota_behind(self, task: TaskId, cause: Cause) -> None:
        """Retry the lines of tasks that left the rest of a quota to this task: they may preempt others now."""
        lines: dict[int, Line] = {}
        for class_index, waiting in enumerate(self.for_class):
            for _, _, line in waiting:
                if (blocked := line.class_blocked[class_index]) is not None and blocked.ahead == task:
                    lines[line.number] = line
        for by_limit in self.for_tenant.values():
            for heads in by_limit.values():
                for _, _, group in heads:
                    if group.blocked is not None and group.blocked.ahead == task:
                        lines[group.line.number] = group.line
        self.retry(lines.values(), cause)

    # --- blocking and waking -----------------------------------------------------------------------------------------

    def mark(self, line: Line, cause: Cause) -> None:
        """Mark a line to be tried in the next pass."""
        line.cause = cause
        self.dirty[line.number] = line

    def block(self, line: Line, group: Group, blocked: Blocked) -> None:
        """Block a line, class or group, as the first wake-up determines, and enter it into the index."""
        wakeup = blocked.wakeups[0]
        if isinstance(wakeup, RoomOn):
            self.block_line(line, blocked)
        elif isinstance(wakeup, ClassQuota):
            self._block_class(line, group.class_index, blocked)
        elif isinstance(wakeup, TenantQuota):
            self._block_group(group, blocked, wakeup.limit)
        else:
            assert isinstance(wakeup, ClassLimit), f"nothing is kept under {wakeup}"
            self._block_for_class_limit(line, group.class_index, blocked)

    def block_line(self, line: Line, blocked: Blocked) -> None:
        """Block a line: none of its tasks finds room."""
        line.blocked = blocked
        if RESERVATION_ENDED in blocked.wakeups:
            self.for_reservation[line.number] = line
        elif self.for_reservation:
            self.for_reservation.pop(line.number, None)

    def _block_class(self, line: Line, class_index: int, blocked: Blocked) -> None:
        head = line.head(class_index)
        assert head is not None
        line.class_blocked[class_index] = blocked
        heappush(self.for_class[class_index], (head[0], head[1], line))

    def _block_for_class_limit(self, line: Line, class_index: int, blocked: Blocked) -> None:
        line.class_blocked[class_index] = blocked
        self.for_class_limit[class_index][line.number] = line

    def _block_group(self, group: Group, blocked: Blocked, limit: str) -> None:
        group.blocked = blocked
        group.limit = limit
        group.listed = None
        top = group.top()
        assert top is not None
        waiting = self.for_tenant.setdefault(group.tenant.id, {}).setdefault(limit, [])
        heappush(waiting, (top[0], top[1], group))

    def wake(self, line: Line, cause: Cause) -> None:
        """Unblock a line that may find room again, and mark it to be tried."""
        line.blocked = None
        if self.for_reservation:
            self.for_reservation.pop(line.number, None)
        line.cause = cause
        self.dirty[line.number] = line

    def wake_for_reservation(self, cause: Cause) -> None:
        """Wake the lines that a reservation keeps from room."""
        for number in sorted(self.for_reservation):
            self.wake(self.for_reservation[number], cause)

    def wake_behind(self, task: TaskId, cause: Cause) -> None:
        """Wake the lines that this task keeps from room."""
        for line in [line for line in self.for_reservation.values() if line.blocked and line.blocked.ahead == task]:
            self.wake(line, cause)

    def first_for_tenant(self, tenant: TenantId, limit: str) -> Head | None:
        """Return the first group that waits for a limit of a tenant; None: there is none."""
        waiting = self.for_tenant.get(tenant, {}).get(limit)
        while waiting:
            group = waiting[0][2]
            is_here = group.blocked is not None and group.limit == limit
            top = group.top()
            if is_here and top is not None and top[:2] == waiting[0][:2]:
                return waiting[0]
            entry = heappop(waiting)
            if is_here:
                if top is None:
                    group.blocked = None
                elif top[:2] > entry[:2]:  # re-enter under the later key; an earlier one was entered by `_line_up`
                    heappush(waiting, (top[0], top[1], group))
        if waiting is not None:
            del self.for_tenant[tenant][limit]
            if not self.for_tenant[tenant]:
                del self.for_tenant[tenant]
        return None

    def unblock_group(self, head: Head) -> Line:
        """Unblock the first group that waits for a limit of its tenant; return its line."""
        group = head[2]
        heappop(self.for_tenant[group.tenant.id][group.limit])
        group.blocked = None
        top = group.top()
        assert top is not None
        line = group.line
        line.list(group, top)
        if (
            line.class_blocked[group.class_index] is not None
            and line.number not in self.for_class_limit[group.class_index]
        ):
            heappush(self.for_class[group.class_index], (top[0], top[1], line))
        return line

    def first_for_class(self, class_index: int) -> ClassEntry | None:
        """Return the first line that waits for the quota of a class; None: there is none."""
        waiting = self.for_class[class_index]
        while waiting:
            entry = waiting[0]
            line = entry[2]
            head = line.head(class_index)
            blocked = line.class_blocked[class_index] is not None
            if blocked and head is not None and head[1] == entry[1] and head[0] == entry[0]:
                return entry
            heappop(waiting)
            if blocked:
                if head is None:
                    line.class_blocked[class_index] = None
                elif head[:2] > entry[:2]:  # as in `first_for_tenant`
                    heappush(waiting, (head[0], head[1], line))
        return None

    def unblock_class(self, class_index: int) -> Line:
        """Unblock the first line that waits for the quota of a class, and return it."""
        line = heappop(self.for_class[class_index])[2]
        line.class_blocked[class_index] = None
        return line

    # --- looking: nothing is cleaned -----------------------------------------------------------------------------------

    def refusals_at_tenant(self, tenant: TenantId) -> set[type[Refusal]]:
        """Return why tasks wait for limits of a tenant; empty: none does."""
        return {
            group.blocked.refusal
            for waiting in self.for_tenant.get(tenant, {}).values()
            for _, _, group in waiting
            if group.blocked is not None and group.size
        }

    def waits_for_class(self, class_index: int) -> bool:
        """Whether a task waits for the quota of a class."""
        return any(
            line.class_blocked[class_index] is not None
            and any(group.size and group.class_index == class_index for group in line.groups.values())
            for _, _, line in self.for_class[class_index]
        )

    # --- forgetting --------------------------------------------------------------------------------------------------

    def forget_tenant(self, tenant: TenantId) -> None:
        """Remove a tenant that has nothing in the queue."""
        self.for_tenant.pop(tenant, None)
        self.published.tenant_quota.pop(tenant, None)

    def forget_empty(self) -> None:
        """Remove lines without tasks, so that memory stays bounded in a cluster that has seen a million shapes."""
        for line_key, line in list(self.lines.items()):
            if not any(group.top() for group in line.groups.values()):
                del self.lines[line_key]
                del self.by_number[line.number]
                del self.by_gpus[line.shape.gpus][line.number]
                self.dirty.pop(line.number, None)
                self.for_reservation.pop(line.number, None)
                for waiting in self.for_class_limit:
                    waiting.pop(line.number, None)
