"""Write the state as a plain document, and read it back.

The document is readable JSON, without derived data, and byte for byte the same for the same events.

Derived data (the queue, the sets of the index, timers) is left out and rebuilt. Device group numbers and the order of
everything are kept, so an engine that loads a snapshot continues from exactly the same state. It tries all waiting
tasks again, so it may make new reservations, or use a right to preempt that has arisen with time.
"""

from collections import Counter
from typing import Any

import msgspec

from gpuyard.core.domain.booking import Booking
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.errors import JournalDamaged, UnknownEvent
from gpuyard.core.domain.events import MemberEnded, ReservationMade
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.notice import ArrayProgress, PendingNotice
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.task import Estimate, RunLimit, TaskSpec
from gpuyard.core.domain.tenant import Split, Tenant
from gpuyard.core.domain.values import AttemptRef, GpuHealth, NodeId, Preemption, TaskId, TaskStatus
from gpuyard.core.engine.apply.checks import open_task
from gpuyard.core.engine.lifecycle.barriers import wait_for_prerequisites
from gpuyard.core.engine.lifecycle.run_limits import set_limit
from gpuyard.core.engine.phases import (
    ACTIVE,
    Placed,
    Resuming,
    Running,
    Stopping,
    Suspended,
    Suspending,
    Waiting,
)
from gpuyard.core.engine.quota import TenantUsage
from gpuyard.core.engine.state import BookingRecord, OrphanedAttempt, State, holds_gpus
from gpuyard.core.engine.task import OpenTask
from gpuyard.core.placement.model_cache_affinity import ModelKey
from gpuyard.core.placement.speeds import speed_of

FORMAT = 1


class OrphanedAttemptRow(msgspec.Struct, omit_defaults=True):
    """Resources that an ended attempt may still use on a node."""

    task: TaskId
    attempt: int
    part: Slice
    origin: int = 0
    ran: bool = False
    wanted: Slice | None = None
    found: bool = False


class NodeRow(msgspec.Struct, omit_defaults=True):
    """A node."""

    spec: NodeSpec
    device_groups: tuple[int, ...] = msgspec.field(name="bays")
    lost: bool = False
    cordoned: bool = False
    draining: bool = False
    health: dict[str, GpuHealth] = {}
    orphaned_attempts: tuple[OrphanedAttemptRow, ...] = msgspec.field(default=(), name="remains")
    models: tuple[tuple[ModelKey, int], ...] = ()
    """GPUs, as a bit mask, by model of the last task on them; a node with several GPU models may list one twice."""
    away: bool = False
    back_by: float | None = None
    agent: tuple[str, str] = ("", "")
    cordon_reason: str = ""


class TenantRow(msgspec.Struct, omit_defaults=True):
    """A tenant, with its past usage."""

    tenant: Tenant
    usage: float
    spent_gpu_seconds: float
    period_began: float
    since: float
    given: bool = False


class TaskRow(msgspec.Struct, omit_defaults=True):
    """An open task."""

    id: TaskId
    spec: TaskSpec
    submitted_at: float
    phase: Waiting | Placed | Running | Suspending | Suspended | Resuming | Stopping
    priority: int
    estimate: Estimate | None = None
    attempts: int = 0
    failures: int = 0
    preemptions: int = 0
    held: bool = False
    members: tuple[MemberEnded, ...] = ()
    served_seconds: float = 0.0
    gpu_seconds: float = 0.0
    attempt_seconds: float = 0.0
    placed_at: float = 0.0
    round: int = 0
    losses: int = 0
    avoid: NodeId | None = None
    stuck: str | None = None
    ready: tuple[NodeId, ...] = ()
    presumed: tuple[NodeId, ...] = ()
    origin: int = 0


class ReservationRow(msgspec.Struct, omit_defaults=True):
    """A reservation."""

    made: ReservationMade
    made_at: float
    victims: tuple[TaskId, ...] = ()


class BookingRow(msgspec.Struct, omit_defaults=True):
    """A booking that has not ended."""

    booking: Booking
    begun: bool = False
    cordoned: tuple[NodeId, ...] = ()
    late: tuple[TaskId, ...] = ()


class SnapshotDocument(msgspec.Struct):
    """The complete snapshot."""

    format: int
    cluster_id: str = msgspec.field(name="yard")
    now: float
    settings: Settings
    split: Split
    default_tenant: Tenant
    last_task: TaskId
    nodes: list[NodeRow]
    tenants: list[TenantRow]
    tasks: list[TaskRow]
    holds: list[ReservationRow]
    ended: list[tuple[TaskId, TaskStatus]]
    epoch: int
    scheduler_back_by: float = msgspec.field(name="patient_until")
    gaps: list[tuple[TaskId, TaskId]]
    origin: int
    origins: list[int]
    offline_after_seconds: float
    last_booking: int = 0
    bookings: list[BookingRow] = []
    notices: list[PendingNotice] = []
    arrays: list[ArrayProgress] = []
    run_limits: list[RunLimit] = []


def dump(state: State) -> dict[str, Any]:
    """Return the state as a document of plain values."""
    document = SnapshotDocument(
        FORMAT, state.cluster_id, state.now, state.settings, state.split, state.default_tenant, state.last_task,
        nodes=[
            NodeRow(
                host.spec, tuple(device_group.number for device_group in host.device_groups), host.lost, host.cordoned, host.draining,
                {str(gpu): health for gpu, health in sorted(host.health.items())},
                tuple(
                    OrphanedAttemptRow(what.task, what.attempt, left.part, what.origin, left.ran, left.wanted, left.found)
                    for what, left in state.orphaned_attempts.get(host.spec.id, {}).items()
                ),
                tuple((model, device_group.models[model]) for device_group in host.device_groups for model in sorted(device_group.models)),
                host.away, state.back_by.get(host.spec.id), state.agents.get(host.spec.id, ("", "")),
                host.cordon_reason,
            )
            for host in state.index.hosts.values()
        ],
        tenants=[
            TenantRow(usage.tenant, usage.decayed_gpu_seconds, usage.spent_gpu_seconds, usage.period_began, usage.since, usage.given)
            for usage in state.tenants.values()
        ],
        tasks=[_row(task) for task in state.tasks.values()],
        holds=[
            ReservationRow(
                ReservationMade(reservation.task.id, reservation.nodes, reservation.starts_at, reservation.claim, reservation.borrowed, reservation.tenant_key),
                reservation.made_at,
                tuple(sorted(reservation.victims)),
            )
            for reservation in state.reservations.values()
        ],
        ended=[(task, state.ended[task]) for task in state.ended_order],
        epoch=state.epoch,
        scheduler_back_by=state.scheduler_back_by,
        gaps=list(state.gaps),
        origin=state.origin,
        origins=list(state.origins),
        offline_after_seconds=state.offline_after_seconds,
        last_booking=state.last_booking,
        notices=list(state.notices.values()),
        arrays=list(state.arrays.values()),
        run_limits=[limited.limit for limited in state.run_limits.values()],
        bookings=[
            BookingRow(record.booking, record.begun, record.cordoned, record.late) for record in state.bookings.values()
        ],
    )  # fmt: skip
    plain: dict[str, Any] = msgspec.to_builtins(document)
    return plain


def _row(task: OpenTask) -> TaskRow:
    assert isinstance(task.phase, (Waiting, *ACTIVE))
    return TaskRow(
        task.id, task.spec, task.submitted_at, task.phase, task.priority, task.estimate, task.attempts, task.failures,
        task.preemptions, task.held, tuple((task.members or {}).values()), task.served_seconds, task.gpu_seconds,
        task.attempt_seconds, task.placed_at, task.round, task.losses, task.avoid, task.stuck, tuple(sorted(task.ready or ())),
        tuple(sorted(task.presumed or ())), task.origin,
    )  # fmt: skip


def load(plain: dict[str, Any]) -> State:
    """Return the state that a document describes; raise JournalDamaged if it is invalid or inconsistent."""
    try:
        document = msgspec.convert(plain, SnapshotDocument, str_keys=True)
    except msgspec.ValidationError as error:
        raise JournalDamaged(f"The snapshot is not one of this version: {error}.") from error
    if document.format != FORMAT:
        raise JournalDamaged(f"The snapshot has format {document.format}; this version reads format {FORMAT}.")
    try:
        return _build(document)
    except (KeyError, ValueError, AssertionError, UnknownEvent) as error:
        raise JournalDamaged(f"The snapshot contradicts itself: {error}.") from error


def _build(document: SnapshotDocument) -> State:
    state = State()
    state.cluster_id, state.now = document.cluster_id, document.now
    state.epoch, state.scheduler_back_by, state.gaps = document.epoch, document.scheduler_back_by, list(document.gaps)
    state.origin, state.offline_after_seconds = document.origin, document.offline_after_seconds
    state.origins = dict.fromkeys(document.origins)
    state.split = document.split
    state.use_settings(document.settings)
    state.default_tenant, state.last_task = document.default_tenant, document.last_task
    _load_nodes(state, document.nodes)
    _load_bookings(state, document)
    state.notices = {(one.task, one.number, one.moment): one for one in document.notices}
    state.waiting_notices = dict(Counter(one.sender for one in document.notices))
    state.arrays = {one.first: one for one in document.arrays}
    for row in document.tenants:
        usage = state.tenants[row.tenant.id] = TenantUsage(row.tenant, document.now)
        usage.given, usage.decayed_gpu_seconds, usage.spent_gpu_seconds = row.given, row.usage, row.spent_gpu_seconds
        usage.period_began, usage.since = row.period_began, row.since
    for task_id, status in document.ended:
        state.ended[task_id] = status
        state.ended_order.append(task_id)
    for task_row in document.tasks:
        _load_task(state, task_row)
    for task in state.tasks.values():
        if task.spec.has_prerequisites:
            wait_for_prerequisites(state, task)
    for reservation_row in document.holds:
        made = reservation_row.made
        state.reserve(open_task(state, made.task, made), made, reservation_row.made_at)
        state.reservations[made.task].victims = set(reservation_row.victims)
    for limit in document.run_limits:
        set_limit(state, limit)
    for task_row in document.tasks:
        state.enqueue(state.tasks[task_row.id], state.now)
    state.note_guarantees()
    state.divide()
    state.queue.everything_changed(Cause(CauseKind.NODES_CHANGED))
    state.queue.order_changed(Cause(CauseKind.NODES_CHANGED))
    return state


def _load_nodes(state: State, rows: list[NodeRow]) -> None:
    for row in rows:
        state.index.join(row.spec, row.device_groups)
        state.on_node[row.spec.id] = {}
        for gpu, health in row.health.items():
            state.index.set_health(row.spec.id, int(gpu), health)
        state.index.set_state(row.spec.id, lost=row.lost, away=row.away, cordoned=row.cordoned, draining=row.draining)
        state.index.hosts[row.spec.id].cordon_reason = row.cordon_reason
        if row.back_by is not None:
            state.back_by[row.spec.id] = row.back_by
        if row.agent[0]:
            state.agents[row.spec.id] = row.agent
        for model, gpus in row.models:
            state.index.model_cache.note(
                state.index.hosts[row.spec.id].device_group_of[gpus.bit_length() - 1], gpus, model
            )
        for left in row.orphaned_attempts:
            ref = AttemptRef(left.task, left.attempt, left.origin)
            state.orphaned_attempts.setdefault(row.spec.id, {})[ref] = OrphanedAttempt(
                left.part, left.ran, left.wanted, left.found
            )
            state.index.take(Placement((left.part,)))
            if left.found and not row.lost:
                state.add_found_orphan(left.task)


def _load_bookings(state: State, document: SnapshotDocument) -> None:
    state.last_booking = document.last_booking
    for row in document.bookings:
        record = BookingRecord(row.booking, begun=row.begun, cordoned=row.cordoned)
        record.late = row.late
        state.add_booking(record)


def _load_task(state: State, row: TaskRow) -> None:
    task = state.tasks[row.id] = OpenTask(row.id, row.spec, state.tenants[row.spec.tenant], row.submitted_at)
    task.tenant_usage.open_tasks += 1
    state.count_demand(row.spec.resources, 1)
    task.phase, task.priority, task.estimate = row.phase, row.priority, row.estimate
    task.attempts, task.failures, task.preemptions = row.attempts, row.failures, row.preemptions
    task.held, task.served_seconds, task.gpu_seconds = row.held, row.served_seconds, row.gpu_seconds
    task.attempt_seconds, task.placed_at = row.attempt_seconds, row.placed_at
    task.members = {end.node: end for end in row.members} or None
    task.ready, task.presumed = set(row.ready) or None, set(row.presumed) or None
    task.round, task.losses, task.avoid, task.origin = row.round, row.losses, row.avoid, row.origin
    if row.stuck is not None:
        task.stuck, task.preemption = row.stuck, Preemption.NEVER
    phase = row.phase
    if isinstance(phase, ACTIVE):
        state.active += 1
        task.speed = speed_of(row.spec.resources.speeds, phase.placement, state.index)
        for node in phase.placement.nodes:
            state.on_node[node][task.id] = task
        if task.preemption is not Preemption.NEVER:
            state.count_preemptible(phase.placement, 1)
        if holds_gpus(phase):
            state.index.take(phase.placement)
            state.charge(task, phase.placement, phase.placement.charge_milli, task.tenant_usage.since)
        else:
            left = (Slice(part.node, memory_mib=part.memory_mib) for part in phase.placement.slices)
            state.index.take(Placement(tuple(left)))
    if isinstance(phase, Running):
        state.watch(task, phase.since)
    if row.spec.deadline is not None:
        state.timers.add_task(row.spec.deadline, task.id)
