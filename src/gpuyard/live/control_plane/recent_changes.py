"""The newest events in the lives of tasks and nodes, for the overview, each with a sentence.

Kept in memory: some for the whole cluster, some for each tenant, some of nodes. The texts are made when they are asked
for, because events come by the thousand and are shown thirty at a time.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from gpuyard.core.domain import events
from gpuyard.core.domain.values import GpuHealth, NodeId, TaskId, TaskStatus, TenantId
from gpuyard.core.journal.records import Record
from gpuyard.live.control_plane.views import Views
from gpuyard.live.wire.limits import instant_of
from gpuyard.live.wire.live_answers import Change
from gpuyard.live.wire.tasks import format_task_id

MOST_CHANGES = 30
MOST_TENANTS = 1_000
"""Tenants whose changes are kept; the one that has been quiet longest is dropped."""


class _Noted(NamedTuple):
    seq: int
    at: float
    event: events.Event
    name: str
    """The name of the task; empty: it has none."""


class RecentChanges:
    """The newest events of the cluster, of each tenant, and of nodes."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._all: deque[_Noted] = deque(maxlen=MOST_CHANGES)
        self._nodes: deque[_Noted] = deque(maxlen=MOST_CHANGES)
        self._tenants: dict[TenantId, deque[_Noted]] = {}

    def hear(self, records: Sequence[Record]) -> None:
        """Note committed events that the views have applied."""
        for record in records:
            if type(record.event) in _TEXTS:
                self._note(record)

    def _note(self, record: Record) -> None:
        task: TaskId | None = getattr(record.event, "task", None)
        view = self._views.tasks.get(task) if task is not None else None
        noted = _Noted(record.seq, record.at, record.event, view.spec.name if view is not None else "")
        self._all.append(noted)
        if task is None:
            self._nodes.append(noted)
        elif view is not None:
            tenant = view.spec.tenant
            kept = self._tenants.pop(tenant, None) or deque(maxlen=MOST_CHANGES)
            kept.append(noted)
            self._tenants[tenant] = kept  # the quietest tenant stands first
            if len(self._tenants) > MOST_TENANTS:
                del self._tenants[next(iter(self._tenants))]

    def newest(self, tenant: TenantId | None) -> list[Change]:
        """Return the newest changes that a caller may see, the newest first: of all tasks, or of one tenant's."""
        if tenant is None:
            found: Iterable[_Noted] = reversed(self._all)
        else:
            found = sorted((*self._tenants.get(tenant, ()), *self._nodes), reverse=True, key=lambda noted: noted.seq)
        return [_change(noted) for noted in list(found)[:MOST_CHANGES]]


def _change(noted: _Noted) -> Change:
    event = noted.event
    task: TaskId | None = getattr(event, "task", None)
    node: Any = getattr(event, "node", None)
    if task is not None:
        shown = f"{noted.name} ({format_task_id(task)})" if noted.name else format_task_id(task)
    else:
        shown = f"Node {node if isinstance(node, str) else node.id}"
    return Change(
        at=instant_of(noted.at),
        event=events.name_of(event),
        task_id=None if task is None else format_task_id(task),
        node_id=_node_of(event),
        text=f"{shown} {_TEXTS[type(event)](event)}.",
    )


def _node_of(event: Any) -> NodeId | None:
    if isinstance(event, events.NodeJoined):
        return event.node.id
    if isinstance(event, events.TaskPlaced | events.AttemptResuming):
        return event.placement.nodes[0] if event.placement.nodes else None
    node: NodeId | None = getattr(event, "node", None)
    return node


def _placed(event: events.TaskPlaced) -> str:
    gpus, nodes = sum(len(part.gpus) for part in event.placement.slices), event.placement.nodes
    where = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"
    return f"got {gpus} GPU{'' if gpus == 1 else 's'} on {where}" if gpus else f"was placed on {where}"


def _cordoned(event: events.NodeCordoned) -> str:
    what = "is being drained" if event.draining else "was cordoned"
    return f"{what}: {event.reason}" if event.reason else what


def _ended(event: events.TaskEnded) -> str:
    words = {
        TaskStatus.SUCCESS: "succeeded",
        TaskStatus.FAILED: "failed",
        TaskStatus.CANCELLED: "was cancelled",
        TaskStatus.TIMEOUT: "reached its timeout",
    }
    said = words[event.status]
    return said if event.status is TaskStatus.SUCCESS else f"{said}. {_clause(event.cause.sentence())}"


def _clause(sentence: str) -> str:
    return sentence.rstrip(".")


def _health(event: events.GpuHealthChanged) -> str:
    words = {
        GpuHealth.OK: "is in service",
        GpuHealth.EXTERNAL: "is used by a program outside gpuyard",
        GpuHealth.OFFLINE: "is out of service",
    }
    return f"reports that GPU {event.gpu} {words[event.health]}"


_TEXTS: dict[type[events.Event], Callable[[Any], str]] = {
    events.TaskSubmitted: lambda _: "was submitted",
    events.TaskPlaced: _placed,
    events.AttemptStarted: lambda _: "started",
    events.AttemptSuspended: lambda _: "was suspended",
    events.AttemptResumed: lambda _: "was resumed",
    events.AttemptRecovered: lambda _: "was found again and continues",
    events.TaskRequeued: lambda event: f"waits again. {_clause(event.cause.sentence())}",
    events.TaskEnded: _ended,
    events.NodeJoined: lambda event: (
        f"joined with {len(event.node.gpus)} GPU{'' if len(event.node.gpus) == 1 else 's'}"
    ),
    events.NodeLost: lambda _: "was lost: its agent is silent",
    events.NodeReturned: lambda _: "returned",
    events.NodeStopped: lambda _: "is away: its agent was stopped",
    events.NodeRemoved: lambda _: "was removed",
    events.NodeCordoned: _cordoned,
    events.NodeUncordoned: lambda _: "accepts tasks again",
    events.GpuHealthChanged: _health,
}
"""The events that are shown, and what they say about their task or node."""
