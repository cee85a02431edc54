"""Short ways through a pass, for the two things that happen all the time.

A task ends and its GPUs are free; a task comes and there is room. In both cases nothing else changed, so most of the
questions a pass asks are answered beforehand. A short way either does exactly what the pass would have done, or it
notices that something is not plain after all, stops, and leaves the rest to the pass, which finds everything in order.
"""

from typing import Any

from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.settings import Backfill
from gpuyard.core.domain.values import Link
from gpuyard.core.engine.backfill import gives_way, holds_before, need_of
from gpuyard.core.engine.deeds import CLASS_INDEXES, short_of
from gpuyard.core.engine.queue import TOTAL, Group, Head, Line
from gpuyard.core.engine.quota import BATCH, ONLINE
from gpuyard.core.engine.schedule import Pass
from gpuyard.core.engine.standing import is_plain
from gpuyard.core.engine.state import Hold
from gpuyard.core.engine.task import Task
from gpuyard.core.placement.choose import choose
from gpuyard.core.placement.index import Bay
from gpuyard.core.placement.model_cache_affinity import pick
from gpuyard.core.placement.shape import Shape

NO_LINES: dict[int, Line] = {}
NO_ANSWER: Any = object()


class Scheduler(Pass):
    """A pass that takes the short way where there is one."""

    def decide(self, at: float) -> None:
        """Place everything that can be placed, as shortly as possible."""
        state = self.state
        queue = state.queue
        if not (
            state.freed
            or state.begun
            or queue.stirred
            or state.vacancy
            or queue.loosened
            or True in queue.class_loosened
        ):
            return
        advised = self.advisor is not None and state.policy.advised
        if (
            not (advised or state.vacancy or state.begun or queue.loosened)
            and len(state.freed) + len(queue.stirred) == 1
        ):
            self.at = at
            self._plain = is_plain(state)
            if self._plain and (self._refill() if state.freed else True not in queue.class_loosened and self._admit()):
                return
        self.run(at)

    # --- a task ended ------------------------------------------------------------------------------------------------

    def _refill(self) -> bool:
        """The short way for the commonest case: one node gained room, and what waits sleeps for want of just that.

        Sleeping lines fit nowhere else, so the best task among those that fit this node is the one, and nothing has
        to be woken. Whatever is not plain (shares, gangs, CPUs, a class that has room for somebody elsewhere) is
        answered with no, and the long way begins: it finds everything as it would have been, only later.
        """
        state = self.state
        queue = state.queue
        bay = state.index.bays[next(iter(state.freed))]
        if bay is None or not bay.host.open or state.settings.backfill is Backfill.NONE:
            return False
        if any(hold.claim and not hold.victims for hold in state.holds.values()):
            return False  # the place that was cleared for somebody is clear
        if queue.choosy or any(not line.awake for line in queue.by_gpus.get(0, NO_LINES).values()):
            return False  # shares and tasks without GPUs do not ask for whole free ones
        stopped: list[tuple[Line, int]] = []
        while True:
            parked = self._first_with_quota() if True in queue.class_loosened else None
            best = self._best_for(bay, stopped) if bay.free else None
            if best is NO_ANSWER:
                return False
            if parked is not None and (best is None or parked < best):
                line = queue.unpark_from_class(parked[2].class_index)
                self._try(parked[1], line, parked[2])
                if self.ready or queue.stirred or state.vacancy:
                    return False
            elif best is None:
                break
            elif not self._refill_with(best, bay):
                return False
        for line, class_index in stopped:
            if line.shape.gpus <= bay.free:  # there is room, and only the quota is missing
                line.awake = True
                if not line.parked[class_index] and (head := line.head(class_index)) is not None:
                    self._park_with_class(line, class_index, head)
        state.freed = {}
        if state.may_preempt():
            self._wake_raiders(bay)
        queue.class_loosened[ONLINE] = queue.class_loosened[BATCH] = False
        return not (queue.stirred or state.vacancy or (state.holds and self._recall_promises()))

    def _first_with_quota(self) -> Head | None:
        """The best of those parked with a class whom the quota lets through now, if there is room for them somewhere."""
        queue = self.state.queue
        best: Head | None = None
        for class_index in CLASS_INDEXES:
            book = self.state.classes[class_index]
            while queue.class_loosened[class_index]:
                first = self._first_with_class(class_index)
                if first is None or book.used + first[2].shape.need_milli > book.limit:
                    queue.class_loosened[class_index] = False
                elif not first[2].awake:
                    queue.unpark_from_class(class_index)  # it has quota and no room: it sleeps like the others
                else:
                    head = first[2].head(class_index)
                    best = head if best is None or (head is not None and head < best) else best
                    break
        return best

    def _best_for(self, bay: Bay, stopped: list[tuple[Line, int]]) -> Any:
        """The best task of the sleeping lines that fit a node; those whose class is at its limit are noted."""
        state = self.state
        queue, books = state.queue, state.classes
        bit, free, version = bay.bit, bay.free, state.index.version
        held = [hold for hold in state.holds.values() if hold.bays & bit] if state.held_bays & bit else None
        room = [book.limit - book.used for book in books]
        parked = queue.with_class
        best: Head | None = None
        for gpus, lines in queue.by_gpus.items():
            if gpus > free:
                continue
            for line in lines.values():
                if line.awake:
                    continue
                shape = line.shape
                if shape.version != version or not shape.plain or shape.link is not Link.ANY:
                    return NO_ANSWER
                if not shape.eligible & bit:
                    continue
                need = shape.need_milli
                nobody = True
                for class_index in CLASS_INDEXES:
                    if not line.heads[class_index]:
                        continue
                    if need > room[class_index]:
                        stopped.append((line, class_index))
                        nobody = False
                        continue
                    head = line.head(class_index)
                    if head is None:
                        continue
                    nobody = False
                    if best is not None and best < head:
                        continue
                    if parked[class_index] and parked[class_index][0][:2] < head[:2]:
                        stopped.append((line, class_index))
                    elif held is None or (answer := self._may_use(head, shape, line, bay, held)) is True:
                        best = head
                    elif answer is None:
                        return NO_ANSWER
                if nobody:
                    line.awake = True  # whoever joins it next finds room here, perhaps
        return best

    def _may_use(self, head: Head, shape: Shape, line: Line, bay: Bay, held: list[Hold]) -> bool | None:
        """Whether a task may use a node that is promised to others: yes, no, or it takes a closer look."""
        for hold in held:
            if hold.task.id == head[1] or (not hold.claim and (head[0], head[1]) < (hold.task.key, hold.task.id)):
                continue
            if gives_way(self.state, self.state.tasks[head[1]], hold, self.at):
                return None
            spare = bay.usable.bit_count() - need_of(hold.shape, bay).gpus
            if spare >= shape.gpus or (hold.starts_at is not None and line.length >= 0) or hold.claim:
                return None
            line.behind = True
            return False
        return True

    def _refill_with(self, head: Head, bay: Bay) -> bool:
        """Place a task on a node that has room for it; or park its group, if its tenant has no room."""
        state = self.state
        _, task_id, group = head
        task, tenant, shape = state.tasks[task_id], group.tenant, group.line.shape
        need = shape.need_milli
        if tenant.used + need > tenant.limit >= need and not (tenant.model_limits or tenant.tenant.budget):
            state.queue.park_with_tenant(group, TOTAL)
            self._give_up_promise(task)
            return True
        if not self._quotas_allow(task, group, need):
            return False
        placement = Placement((Slice(bay.host.spec.id, pick(bay, shape.gpus, Link.ANY, task.model)),))
        self._place(task, placement)
        return True

    # --- a task came -------------------------------------------------------------------------------------------------

    def _admit(self) -> bool:
        """The short way for the next commonest case: a task joined a line that may have room, and nothing else happened."""
        state = self.state
        queue, index = state.queue, state.index
        line = next(iter(queue.stirred.values()))
        shape = line.shape
        if not line.awake or not shape.plain or shape.version != index.version or shape.link is not Link.ANY:
            return False
        if state.held_bays & shape.eligible or state.settings.backfill is Backfill.NONE or True in line.parked:
            return False
        order = state.order_for(shape.gpus)
        while (head := line.head(ONLINE) or line.head(BATCH)) is not None:
            group = head[2]
            if group.class_index == ONLINE and (other := line.head(BATCH)) is not None and other < head:
                head, group = other, other[2]
            if queue.with_class[group.class_index] or not self._quotas_allow(
                state.tasks[head[1]], group, shape.need_milli
            ):
                return False
            task = state.tasks[head[1]]
            placement = choose(shape, index, order, model=task.model) if task.avoid is None else None
            if placement is None:
                return False
            self._place(task, placement)
        queue.stirred = {}
        return not (state.vacancy or (state.holds and self._recall_promises()))

    def _quotas_allow(self, task: Task, group: Group, need: int) -> bool:
        """Whether nothing but room is missing; no where it takes a closer look."""
        state = self.state
        book, tenant = state.classes[group.class_index], group.tenant
        if book.used + need > book.limit or tenant.used + need > tenant.limit:
            return False
        if tenant.model_limits or tenant.tenant.budget is not None:
            return False
        if state.queue.with_tenant and self._first_at_tenant(task, TOTAL):
            return False
        return not (state.holds and short_of(task, need, book, tenant, holds_before(state, task, self.at)))
