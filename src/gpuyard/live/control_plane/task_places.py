"""A page from anywhere in an ordered list of tasks, of which some are in memory and the others in the archive.

Both parts are ordered by the same key. A page that begins at place `offset` of the whole list begins at place `i` of the
open tasks and at place `offset - i` of the ended ones:

    open     a c f h | k m …         i = 4
    ended    b d e g | i n …         offset - i = 4

`i` is found by bisection: the archive tells the task at one place after another, which costs it a walk over an index.
Then only the tasks near the page are read. Nothing here holds the interpreter for long: lists are filtered with one
pass for each filter, sorted in pieces, and never merged as a whole. It runs in a thread, on copies of the views.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any

from gpuyard.core.domain.values import ENDED, TaskId
from gpuyard.live.control_plane.stores.archive import EndedList, Filters, Order, SortKey
from gpuyard.live.control_plane.views import TaskView

WINDOW = 1_000
"""Number of places that may be left when the bisection ends; they are read and sorted."""
SORTED_AT_ONCE = 10_000
"""Number of tasks that are sorted before other threads may run."""


@dataclass(frozen=True, slots=True)
class OpenTasks:
    """Copies of what the views have about tasks at one moment. The tasks themselves may change; each is read once."""

    tasks: Mapping[TaskId, TaskView]
    texts: Mapping[TaskId, str] = field(default_factory=dict)
    """What a search looks at; not needed without one."""
    over: Collection[TaskId] = ()
    """Tasks that have ended, which the archive may also have."""


@dataclass(frozen=True, slots=True)
class Places:
    """A page: the tasks, and how long the list is."""

    tasks: list[TaskId]
    total: int


def find_places(here: OpenTasks, ended: EndedList, filters: Filters, order: Order, offset: int, limit: int) -> Places:
    """Return the tasks at these places of the whole list."""
    found = matching(here, filters)
    double = ended.contained(task for task in found if task in here.over) if here.over else set[TaskId]()
    if double:
        found = [task for task in found if task not in double]
    return _page(_Merged(_in_order(here.tasks, found, order), here.tasks, ended, order), offset, limit)


def matching(here: OpenTasks, filters: Filters) -> list[TaskId]:
    """Return the tasks that pass the filters, in the order of the copies."""
    if filters == Filters(text=filters.text):
        text = filters.text
        return list(here.tasks) if text is None else [task for task, words in here.texts.items() if text in words]
    views = _candidates(here, filters)
    for name, value in (("tenant", filters.tenant), ("user", filters.user), ("project", filters.project)):
        if value is not None:
            views = [view for view in views if getattr(view.spec, name) == value]
    if filters.name is not None:
        views = [view for view in views if view.spec.name == filters.name]
    if filters.priority is not None:
        views = [view for view in views if view.priority == filters.priority]
    if filters.since is not None:
        views = [view for view in views if view.submitted_at >= filters.since]
    return [view.id for view in views]


def _candidates(here: OpenTasks, filters: Filters) -> Sequence[TaskView]:
    """Return the tasks that pass the search and have one of the statuses."""
    tasks, statuses = here.tasks, filters.statuses
    if statuses and all(status in ENDED for status in statuses):
        views = [view for task in here.over if (view := tasks.get(task)) is not None]
    else:
        views = list(tasks.values())
    if statuses:
        views = [view for view in views if view.status in statuses]
    if filters.text is not None:
        text, texts = filters.text, here.texts
        views = [view for view in views if text in texts[view.id]]
    return views


def _in_order(tasks: Mapping[TaskId, TaskView], found: list[TaskId], order: Order) -> list[TaskId]:
    found.sort()  # numbers are nearly in order: this is quick
    if order.by != "created_at":
        keys = dict(zip(found, map(_KEYS[order.by], map(tasks.__getitem__, found)), strict=True))
        with_key = [task for task, key in keys.items() if key is not None]
        without = [task for task, key in keys.items() if key is None] if len(with_key) < len(keys) else []
        found = without + sorted_in_pieces(with_key, keys.__getitem__)
    if order.descending:
        found.reverse()
    return found


def sorted_in_pieces(tasks: list[TaskId], key: Callable[[TaskId], Any]) -> list[TaskId]:
    """Sort piece by piece, then merge the pieces: the last step is many times shorter than sorting the whole list."""
    pieces: list[TaskId] = []
    for first in range(0, len(tasks), SORTED_AT_ONCE):
        pieces += sorted(tasks[first : first + SORTED_AT_ONCE], key=key)
        time.sleep(0)  # lets the event loop run
    return pieces if len(tasks) <= SORTED_AT_ONCE else sorted(pieces, key=key)


class _Merged:
    """The whole list: open tasks in order, and the list of the archive."""

    def __init__(self, here: list[TaskId], tasks: Mapping[TaskId, TaskView], ended: EndedList, order: Order) -> None:
        self.here = here
        self.ended = ended
        self._tasks = tasks
        self._key = _KEYS[order.by]
        self._comparable = itemgetter(1) if order.by == "created_at" else _comparable
        self._descending = order.descending

    def first_of_archive(self, here: int, ended: int) -> bool:
        """Whether the task at a place of the archive comes before the open task at another place."""
        rows, task = self.ended.rows(ended, 1), self.here[here]
        if not rows:
            return False
        mine = self._comparable((self._key(self._tasks[task]), task))
        return bool(self._comparable(rows[0]) < mine) != self._descending

    def between(self, here: tuple[int, int], ended: tuple[int, int]) -> list[TaskId]:
        """Return the tasks between these places of both parts, in order."""
        rows = self.ended.rows(ended[0], ended[1] - ended[0])
        if not rows:
            return self.here[here[0] : here[1]]
        mine = [(self._key(self._tasks[task]), task) for task in self.here[here[0] : here[1]]]
        return [task for _, task in sorted(mine + rows, key=self._comparable, reverse=self._descending)]


def _page(merged: _Merged, offset: int, limit: int) -> Places:
    low, high = 0, min(len(merged.here), offset)
    if merged.ended.jumps and high > WINDOW:
        low = min(high, max(0, offset - merged.ended.total))
        while high - low > WINDOW:
            middle = (low + high) // 2
            if merged.first_of_archive(middle, offset - middle - 1):
                high = middle
            else:
                low = middle + 1
    skipped = high - low
    near = merged.between((low, high + limit), (offset - high, offset - low + limit))
    return Places(near[skipped : skipped + limit], len(merged.here) + merged.ended.total)


_KEYS: dict[SortKey, Callable[[TaskView], Any]] = {
    "created_at": attrgetter("id"),
    "priority": attrgetter("priority"),
    "started_at": attrgetter("started_at"),
    "finished_at": attrgetter("finished_at"),
    "name": attrgetter("spec.name"),
    "status": attrgetter("status.value"),
}
"""The same values as in the columns by which the archive sorts."""


def _comparable(pair: tuple[Any, TaskId]) -> tuple[bool, Any, TaskId]:
    """Return a key that orders like SQLite: a missing value comes before every other one."""
    return (pair[0] is not None, pair[0] if pair[0] is not None else 0, pair[1])
