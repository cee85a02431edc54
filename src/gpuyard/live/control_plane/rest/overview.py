"""The state of the cluster in one answer: what the first page of a dashboard shows.

Figures about tasks count the tasks that the caller may see; GPUs, nodes and the split are those of the cluster. An answer
is shared by all callers that see the same tasks, for half a second.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import TypeVar

from gpuyard.core.domain.tenant import QuotaMode
from gpuyard.core.domain.values import TaskClass, TaskId, TaskStatus, TenantId
from gpuyard.core.engine.state import State
from gpuyard.live.control_plane.access.principal import visible_tenant
from gpuyard.live.control_plane.live_feed import Sight, gpu_counts, node_counts, task_counts
from gpuyard.live.control_plane.readings import states_of
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.gpus import gpus_in, quota_of
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, encode
from gpuyard.live.control_plane.scheduler import Scheduler
from gpuyard.live.control_plane.time_slices import TimeSlicer
from gpuyard.live.control_plane.views import TaskView
from gpuyard.live.wire.answers import QuotaAnswer
from gpuyard.live.wire.limits import instant_of
from gpuyard.live.wire.live_answers import ClassCounts, OverviewAnswer, TenantCounts
from gpuyard.version import __version__

T = TypeVar("T")
SHOWN_SECONDS = 0.5
"""How long an answer is reused."""
WAIT_SECONDS = 30.0
"""How long an expected wait is reused: it takes the engine tenths of a second with a long queue."""
PATIENCE_SECONDS = 0.25
"""How long an answer waits for a new expected wait; after that it shows the one before."""
MOST_SIGHTS = 1_000


async def get_overview(context: AppContext, request: Request) -> Response:
    """Return the state of the cluster."""
    sight = visible_tenant(request.principal)
    making = _shared(context.overviews.answers, sight, SHOWN_SECONDS, lambda: _overview(context, sight))
    return Response(await asyncio.shield(making))


def _shared(
    kept: dict[Sight, tuple[float, "asyncio.Task[T]"]], sight: Sight, seconds: float, make: Callable[[], Awaitable[T]]
) -> "asyncio.Task[T]":
    """Return the kept value of a sight, or begin to make one. One that failed is not kept."""
    now = asyncio.get_running_loop().time()
    found = kept.get(sight)
    if found is not None and now < found[0] + seconds and not _failed(found[1]):
        return found[1]
    if len(kept) >= MOST_SIGHTS:
        kept.clear()
    making: asyncio.Task[T] = asyncio.ensure_future(make())
    kept[sight] = (now, making)
    return making


def _failed(task: "asyncio.Task[T]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


@dataclass(slots=True)
class _Tasks:
    """What one pass over the open tasks finds."""

    running: dict[TaskClass, int] = field(default_factory=lambda: dict.fromkeys(TaskClass, 0))
    pending: dict[TaskClass, int] = field(default_factory=lambda: dict.fromkeys(TaskClass, 0))
    milli: dict[TaskClass, int] = field(default_factory=lambda: dict.fromkeys(TaskClass, 0))
    tenant_milli: dict[TenantId, int] = field(default_factory=dict)
    waiting: list[tuple[TaskId, float]] = field(default_factory=list)
    """Tasks in the queue, and since when they wait."""

    def add(self, view: TaskView) -> None:
        """Count a task."""
        spec = view.spec
        if view.status is TaskStatus.PENDING:
            self.pending[spec.task_class] += 1
        elif view.status is TaskStatus.RUNNING:
            self.running[spec.task_class] += 1
        else:
            return
        if view.waits:
            if not view.held:
                since = view.submitted_at if view.waits_since is None else view.waits_since
                self.waiting.append((view.id, since))
        elif view.placement is not None:
            charge = view.placement.charge_milli
            self.milli[spec.task_class] += charge
            self.tenant_milli[spec.tenant] = self.tenant_milli.get(spec.tenant, 0) + charge


async def _overview(context: AppContext, sight: Sight) -> bytes:
    scheduler = context.scheduler
    views, now = scheduler.views, scheduler.clock()
    quota = await scheduler.queries.look(_quota)
    found, turns = _Tasks(), TimeSlicer()
    for view in list(views.tasks.values()):
        if sight is None or view.spec.tenant == sight:
            found.add(view)
        if turns.due():
            await turns.give()
    nodes = scheduler.readings.refresh()
    waiting = found.waiting
    oldest = await scheduler.queries.look(lambda state, _: _oldest_wait(state, waiting), len(waiting))
    return encode(
        OverviewAnswer(
            now=instant_of(now),
            version=__version__,
            started_at=instant_of(scheduler.started_at),
            gpus=gpu_counts(b"".join(map(states_of, nodes))),
            tasks=task_counts(views, sight),
            nodes=node_counts(nodes),
            classes=[
                ClassCounts(each, found.running[each], found.pending[each], gpus_in(found.milli[each]))
                for each in TaskClass
            ],
            tenants=_tenants(scheduler, found, sight),
            quota=quota,
            longest_wait_seconds=None if oldest is None else round(max(0.0, now - oldest), 3),
            expected_wait_seconds=await _expected_wait(context, sight, waiting),
            alerts=scheduler.alert_counts(sight),
            changes=scheduler.changes.newest(sight),
            can_plan=can_plan(),
        )
    )


@cache
def can_plan() -> bool:
    """Whether the packages that planning needs are installed; those of simulations always are."""
    return all(find_spec(name) is not None for name in ("numpy", "numba"))


def _oldest_wait(state: State, waiting: Sequence[tuple[TaskId, float]]) -> float | None:
    """Return since when the first task waits for GPUs; tasks that wait for other tasks do not count."""
    tasks = state.tasks
    return min(
        (since for number, since in waiting if (task := tasks.get(number)) is not None and not task.waits_for),
        default=None,
    )


def _quota(state: State, now: float) -> QuotaAnswer | None:
    return None if state.split.mode is QuotaMode.NONE else quota_of(state, now)


def _tenants(scheduler: Scheduler, found: _Tasks, sight: Sight) -> list[TenantCounts]:
    counts = scheduler.views.counts
    return [
        TenantCounts(
            name,
            of_tenant.get(TaskStatus.RUNNING, 0),
            of_tenant.get(TaskStatus.PENDING, 0),
            gpus_in(found.tenant_milli.get(name, 0)),
        )
        for name, of_tenant in sorted(counts.items())
        if (sight is None or name == sight) and any(of_tenant.values())
    ]


async def _expected_wait(context: AppContext, sight: Sight, waiting: Sequence[tuple[TaskId, float]]) -> float | None:
    """Return the expected wait of the task in the middle of the queue. A slow answer of the engine is not waited for.

    Tasks that are held or wait for other tasks are not in the queue.
    """
    overviews = context.overviews
    if not waiting:
        overviews.waits.pop(sight, None)
        overviews.known_waits.pop(sight, None)
        return None
    making = _shared(overviews.waits, sight, WAIT_SECONDS, lambda: _ask_wait(context.scheduler, waiting))
    await asyncio.wait((making,), timeout=PATIENCE_SECONDS)
    if making.done() and not _failed(making):
        overviews.known_waits[sight] = making.result()
    return overviews.known_waits.get(sight)


async def _ask_wait(scheduler: Scheduler, waiting: Sequence[tuple[TaskId, float]]) -> float | None:
    found = await scheduler.queries.explain_middle([task for task, _ in waiting])
    return None if found is None or found.starts_at is None else round(max(0.0, found.starts_at - scheduler.clock()), 3)
