"""Checks of all invariants. They recompute usage and index from the tasks, from scratch.

Safety: no GPU is held twice, no shares exceed a GPU, nothing is placed on a closed node, usage equals what is held,
gangs are complete, no array or sweep gets more running tasks than its limit, stored ranks are current, the new place of a task that makes room
for another one is given to no other task. Progress (after a pass): no task is stranded, that is, no waiting task could be placed now, unless a
reservation or a task before it at a quota, which can be named, holds it back; no place is reserved without need. No
wake-up is missed: entries that the queue keeps as blocked are still blocked when tried again, and none may preempt
others to start. The checks are slow on purpose: they visit every task and every GPU.
"""

from collections import Counter
from math import inf

from msgspec.structs import replace

from gpuyard.core.domain.causes import CauseKind
from gpuyard.core.domain.events import AttemptResuming, Event, ReservationMade, TaskPlaced
from gpuyard.core.domain.refusals import BookingNotBegun, HeldBack
from gpuyard.core.domain.settings import Backfill
from gpuyard.core.domain.task import Resources, RunLimit
from gpuyard.core.domain.tenant import QuotaMode
from gpuyard.core.domain.values import MILLI, GpuHealth, NodeId, Preemption, TaskId, TenantId
from gpuyard.core.engine.phases import ACTIVE, HOLDING, Resuming, Running, Stopping, Suspended, Suspending, Waiting
from gpuyard.core.engine.quota import BATCH, ONLINE, TenantUsage
from gpuyard.core.engine.scheduling.actions import Context
from gpuyard.core.engine.scheduling.backfill import is_unreachable
from gpuyard.core.engine.scheduling.bookings import closed_by_bookings, waits_for_booking
from gpuyard.core.engine.scheduling.defragment import makes_room
from gpuyard.core.engine.scheduling.preemption import find_preemption
from gpuyard.core.engine.scheduling.try_place import best_of, try_place
from gpuyard.core.engine.state import MOVING, State
from gpuyard.core.engine.task import OpenTask
from gpuyard.core.engine.waiting.queue import Group, Line
from gpuyard.core.engine.waiting.sort_key import sort_key
from gpuyard.core.engine.waiting.wakeups import Blocked, RoomOn
from gpuyard.core.placement.choose import choose
from gpuyard.core.placement.device_group_mask import DeviceGroupMask
from gpuyard.core.placement.index import DeviceGroup
from gpuyard.core.placement.model_cache_affinity import ModelKey
from gpuyard.core.placement.shape import Shape


def check(state: State) -> None:
    """Assert everything that must hold at any instant."""
    _check_gpus(state)
    _check_usage(state)
    _check_tasks(state)
    _check_run_limits(state)
    _check_heads(state)
    _check_orphaned_attempts(state)
    _check_reservations(state)
    _check_models(state)
    check_bookings(state)


def check_bookings(state: State) -> None:
    """Assert that GPUs of bookings that have begun are held by others only if these were there before, and recorded."""
    for record in state.bookings.values():
        if not record.begun or record.booking.maintenance:
            continue
        for number, booked in record.device_groups.items():
            device_group = state.index.device_group(number)
            inside = outside = 0
            late = False
            for task in state.on_node[device_group.host.spec.id].values():
                if not isinstance(task.phase, HOLDING) or (
                    isinstance(task.phase, Stopping) and not task.phase.holds_gpus
                ):
                    continue
                for part in task.phase.placement.slices:
                    gpus = [gpu for gpu in part.gpus if device_group.usable >> gpu & 1]
                    if part.node != device_group.host.spec.id or not gpus or part.milli < MILLI:
                        continue
                    if task.spec.resources.booking == record.booking.id:
                        inside += len(gpus)
                    else:
                        outside += len(gpus)
                        late |= task.id in record.late
            usable = device_group.usable.bit_count()
            whole = usable == device_group.all.bit_count() and not state.orphaned_attempts
            assert inside <= booked or not whole, (
                f"tasks of booking {record.booking.id} hold {inside} GPUs on {device_group.host.spec.id}, not {booked}"
            )
            same_node = [
                other for other in state.bookings.values() if other is not record and number in other.device_groups
            ]
            assert not outside or outside + booked <= usable or late or not whole or same_node, (
                f"{outside} of {usable} GPUs on {device_group.host.spec.id} are held by others, and {booked} are booked"
            )


def check_before(state: State, event: Event) -> None:
    """Assert, before an event is applied, that it places nothing on a closed node or on a GPU that may not be used.

    Nor may it start a task, or stop others for it, if the limit of its array or sweep is reached.
    """
    if isinstance(event, TaskPlaced) or (isinstance(event, ReservationMade) and event.claim):
        _check_place_is_free(state, state.tasks[event.task])
    if isinstance(event, TaskPlaced | AttemptResuming):
        for part in event.placement.slices:
            host = state.index.hosts[part.node]
            assert host.open, f"task {event.task} is placed on {part.node}, which is closed"
            for gpu in part.gpus:
                assert host.device_group_of[gpu].usable >> gpu & 1, (
                    f"task {event.task} is given GPU {gpu}, unfit for use"
                )
            if part.gpus and state.reservations:
                device_group = host.device_group_of[part.gpus[0]]
                free = sum(device_group.free_mask >> gpu & 1 for gpu in part.gpus)  # a shared GPU is not free
                _check_new_places_are_kept(state, event.task, device_group, free)


def _check_place_is_free(state: State, task: OpenTask) -> None:
    """Assert that fewer of the other tasks of its array or sweep have a place than may run at the same time."""
    if task.run_limit is None or _has_place(state, task):
        return
    limit = task.run_limit.limit
    taken = [other.id for other in _of_limit(state, limit) if _has_place(state, other)]
    assert len(taken) < limit.most, (
        f"task {task.id} is started or others are stopped for it, and tasks {taken} have the {limit.most} places"
    )


def _of_limit(state: State, limit: RunLimit) -> list[OpenTask]:
    return [task for task in state.tasks.values() if limit.first <= task.id <= limit.last]


def _has_place(state: State, task: OpenTask) -> bool:
    """Whether a task has an attempt, or GPUs are being cleared for it."""
    reservation = state.reservations.get(task.id)
    return isinstance(task.phase, ACTIVE) or (reservation is not None and reservation.claim)


def _check_run_limits(state: State) -> None:
    """Assert that of the tasks that lack only a place those are admitted that go first, as many as places are free."""
    assert not state.coming_limits, "a limit is for tasks that do not come"
    assert not state.unsettled, "places were taken or returned, and no task was admitted or withdrawn"
    limited = set()
    for first, limits in state.run_limits.items():
        limit, tasks = limits.limit, _of_limit(state, limits.limit)
        assert first == limit.first, f"the limit for task {limit.first} and others is kept under {first}"
        assert len(tasks) == limits.open > 0, f"the open tasks of the limit for {first} do not add up"
        taken = [task.id for task in tasks if _has_place(state, task)]
        assert len(taken) == limits.taken, f"tasks {taken} have a place, and {limits.taken} are counted"
        by_shelf: dict[Resources, list[OpenTask]] = {}
        for task in tasks:
            assert task.id not in limited, f"task {task.id} has two limits"
            assert task.run_limit is limits, f"task {task.id} does not know its limit"
            assert task.has_place == (task.id in taken), f"task {task.id} is wrong about its place"
            limited.add(task.id)
            if task.shelf is not None:
                assert not task.has_place, f"task {task.id} has a place and waits for one"
                assert limits.shelves[task.spec.resources] is task.shelf, f"task {task.id} is on no shelf of its limit"
                by_shelf.setdefault(task.spec.resources, []).append(task)
        assert by_shelf.keys() == limits.shelves.keys(), f"the limit for {first} has an empty shelf"
        free = max(0, limit.most - len(taken))
        for resources, shelved in by_shelf.items():
            shelf = limits.shelves[resources]
            shelved.sort(key=lambda task: (task.key, task.id))
            admitted = [task.id for task in shelved if task.group is not None]
            expected = [task.id for task in shelved[:free]]
            assert sorted(admitted) == sorted(expected), (
                f"tasks {admitted} are admitted, and it is the turn of {expected}"
            )
            assert (shelf.count, shelf.size) == (len(admitted), len(shelved)), f"a shelf of {first} does not add up"
    for task in state.tasks.values():
        assert task.id in limited or (task.run_limit is None and task.shelf is None), f"task {task.id} has a lost limit"


def _check_new_places_are_kept(state: State, task: TaskId, device_group: DeviceGroup, taken: int) -> None:
    """Assert that a placement leaves room for the tasks that are being moved there to make room for others."""
    coming = [
        reservation
        for reservation in state.reservations.values()
        if reservation.device_groups & reservation.shape.eligible & device_group.bit and makes_room(reservation.task)
    ]
    promised = sum(reservation.shape.gpus for reservation in coming if reservation.task.id != task)
    if all(reservation.device_groups.bit_count() == 1 for reservation in coming) and device_group.free >= promised:
        assert device_group.free - taken >= promised, (
            f"task {task} is placed on {device_group.host.spec.id}, where tasks "
            f"{[reservation.task.id for reservation in coming]} are being moved"
        )


def check_quota_in_force(state: State) -> None:
    """Assert that no class or tenant exceeds a limit; valid only if limits were not lowered below usage."""
    for usage in state.classes:
        assert usage.used <= usage.limit, f"{usage.task_class} uses {usage.used}, its limit is {usage.limit}"
    for tenant in state.tenants.values():
        assert tenant.used <= tenant.limit, f"tenant {tenant.id} uses {tenant.used}, its limit is {tenant.limit}"
        for model, limit in tenant.model_limits.items():
            assert tenant.used_by_model.get(model, 0) <= limit, f"tenant {tenant.id} is above its limit of {model}"


def _check_models(state: State) -> None:
    ran: dict[ModelKey, DeviceGroupMask] = {}
    for device_group in state.index.all_device_groups():
        seen = 0
        for model, gpus in device_group.models.items():
            assert gpus, f"{model} ran on no GPU of {device_group.host.spec.id}"
            assert not seen & gpus, f"two models ran last on a GPU of {device_group.host.spec.id}"
            seen |= gpus
            ran[model] = ran.get(model, 0) | device_group.bit
        assert seen == device_group.warm, f"the warm GPUs of {device_group.host.spec.id} are not those that had a model"
    assert state.index.model_cache.by_model == ran, "where models ran last is not what the GPUs say"


def _check_gpus(state: State) -> None:
    whole: dict[tuple[NodeId, int], TaskId] = {}
    milli: Counter[tuple[NodeId, int]] = Counter()
    memory: Counter[tuple[NodeId, int]] = Counter()
    cpus: Counter[NodeId] = Counter()
    host_memory: Counter[NodeId] = Counter()
    for task in state.tasks.values():
        if not isinstance(task.phase, ACTIVE):
            continue
        phase = task.phase
        frees_gpus = isinstance(phase, Suspended) or (isinstance(phase, Stopping) and not phase.holds_gpus)
        for part in phase.placement.slices:
            host_memory[part.node] += part.memory_mib
            if frees_gpus:
                continue
            cpus[part.node] += part.cpus
            for gpu in part.gpus:
                key = (part.node, gpu)
                if part.milli == MILLI:
                    assert key not in whole, f"GPU {key} is held by tasks {whole[key]} and {task.id}"
                    whole[key] = task.id
                milli[key] += part.milli
                memory[key] += part.gpu_memory_mib
    for node, left in state.orphaned_attempts.items():
        for (task_id, _, _), (part, *_) in left.items():
            host_memory[node] += part.memory_mib
            cpus[node] += part.cpus
            for gpu in part.gpus:
                key = (node, gpu)
                if part.milli == MILLI:
                    assert key not in whole, f"GPU {key} is held by task {whole[key]}, and {task_id} may run there"
                    whole[key] = task_id
                milli[key] += part.milli
                memory[key] += part.gpu_memory_mib
    for key, used in milli.items():
        assert used <= MILLI, f"GPU {key} is given out {used} thousandths"
        size = state.index.hosts[key[0]].spec.gpus[key[1]].memory_mib
        assert memory[key] <= size, f"GPU {key} is given out above its memory"
    for node, host in state.index.hosts.items():
        assert host.cpus_free == host.spec.cpus - cpus[node] >= 0, f"CPUs of {node} do not add up"
        assert host.memory_free == host.spec.memory_mib - host_memory[node] >= 0, f"memory of {node} does not add up"
        for device_group in host.device_groups:
            gpus = [gpu for gpu in range(device_group.all.bit_length()) if device_group.all >> gpu & 1]
            free = [gpu for gpu in gpus if not milli[node, gpu] and device_group.usable >> gpu & 1]
            assert device_group.free_mask == sum(1 << gpu for gpu in free), f"free GPUs of {node} do not add up"
            listed = [
                count for count, device_groups in enumerate(state.index.by_free) if device_groups & device_group.bit
            ]
            assert listed == ([len(free)] if host.open else []), f"{node} is listed under {listed} free GPUs"
            idle = bool(device_group.usable) and device_group.free_mask == device_group.usable and host.open
            assert bool(state.index.idle & device_group.bit) == idle, f"{node} is listed wrongly as idle"


def _check_usage(state: State) -> None:
    by_class, by_tenant = [0, 0], Counter[TenantId]()
    by_model: Counter[tuple[TenantId, str]] = Counter()
    open_tasks = Counter(task.spec.tenant for task in state.tasks.values())
    assert open_tasks.keys() <= state.tenants.keys(), "a tenant with tasks is not known"
    for task in state.tasks.values():
        phase = task.phase
        if not isinstance(phase, HOLDING) or (isinstance(phase, Stopping) and not phase.holds_gpus):
            continue
        by_class[task.class_index] += phase.placement.charge_milli
        by_tenant[task.spec.tenant] += phase.placement.charge_milli
        for part in phase.placement.slices:
            for gpu in part.gpus:
                by_model[task.spec.tenant, state.index.hosts[part.node].spec.gpus[gpu].model] += part.milli
    assert by_class == [usage.used for usage in state.classes], "the classes' books do not add up"
    up = 0
    for host in state.index.hosts.values():
        if not host.lost:
            up += sum(1 for gpu in range(len(host.spec.gpus)) if host.health.get(gpu) is not GpuHealth.OFFLINE)
    assert state.index.gpus_up == up, "the GPUs of the cluster do not add up"
    if state.split.mode is not QuotaMode.NONE:
        parts = state.classes[ONLINE].guarantee + state.classes[BATCH].guarantee
        assert parts == up * MILLI, "a GPU belongs to neither class"
    for tenant, usage in state.tenants.items():
        assert by_tenant[tenant] == usage.used, f"the book of tenant {tenant} does not add up"
        assert open_tasks[tenant] == usage.open_tasks, f"the open tasks of tenant {tenant} do not add up"
        if not usage.given:
            assert usage.tenant == replace(state.default_tenant, id=tenant), f"{tenant} does not follow the default"
        for model in usage.model_limits:
            assert by_model[tenant, model] == usage.used_by_model.get(model, 0), f"{model} of {tenant} does not add up"


def _check_barriers(state: State) -> None:
    """Assert that the barriers match the specifications of the open tasks."""
    assert not state.awaited, f"tasks {list(state.awaited)} are awaited after their batch"
    for key, barrier in state.barriers.items():
        members = [state.tasks[TaskId(task)] for task in range(key[0], key[1] + 1) if task in state.tasks]
        assert barrier.left == len(members), (
            f"barrier {key} counts {barrier.left} open tasks, and there are {len(members)}"
        )
        assert all(barrier in (task.barriers or ()) for task in members), (
            f"a task of {key} does not know of its barrier"
        )
        waiting = [state.tasks[task] for task in barrier.dependents]
        assert all(barrier in (task.waits_for or ()) for task in waiting), (
            f"a task does not know that it waits for {key}"
        )
    for task in state.tasks.values():
        for first, last, _ in task.spec.prerequisites():
            open_ones = any(number in state.tasks for number in range(first, last + 1))
            assert not open_ones or task.waits_for, f"task {task.id} does not wait for {first} to {last}"


def _check_tasks(state: State) -> None:
    waiting = 0
    for task_id in state.movable:
        assert isinstance(state.tasks[task_id].phase, Running), f"task {task_id} does not run and might be moved"
    for task in state.tasks.values():
        phase = task.phase
        assert isinstance(phase, (Waiting, *ACTIVE)), f"task {task.id} is left {type(phase).__name__}"
        waiting += task.group is not None
        if isinstance(phase, ACTIVE):
            nodes = phase.placement.nodes
            assert len(set(nodes)) == len(nodes) == task.spec.resources.nodes, f"task {task.id} is not placed whole"
            assert all(task.id in state.on_node[node] for node in nodes), f"task {task.id} is not known to its nodes"
        for barrier in task.waits_for or ():
            assert task.id in barrier.dependents, f"task {task.id} waits at {barrier.key}, which does not know of it"
            assert state.barriers.get(barrier.key) is barrier, f"task {task.id} waits at {barrier.key}, which is gone"
        queued = task.group is not None
        claims = task.id in state.reservations and state.reservations[task.id].claim
        ready = isinstance(phase, Waiting | Suspended) and not (task.held or task.waits_for or claims)
        if isinstance(phase, Waiting) and (phase.not_before > state.now or task.id in state.found_orphans):
            ready = False
        assert not task.is_parked or task.id not in state.reservations, f"task {task.id} has no turn and a reservation"
        if task.is_parked:  # see `_check_run_limits`
            assert ready, f"task {task.id} lacks more than a place"
            continue
        assert queued == ready, (
            f"task {task.id} is {'' if queued else 'not '}queued and should {'' if ready else 'not '}be"
        )
    assert waiting == state.queue.waiting, "the queue's length is not what is in it"
    active = sum(isinstance(task.phase, ACTIVE) for task in state.tasks.values())
    assert active == state.active, f"{active} tasks have an attempt, and {state.active} are counted"
    _check_barriers(state)
    for node, tasks in state.on_node.items():
        for task_id, task in tasks.items():
            assert isinstance(task.phase, ACTIVE), f"{node} is recorded as running task {task_id}"
            assert node in task.phase.placement.nodes, f"{node} is recorded as running task {task_id}"


def _check_heads(state: State) -> None:
    """Assert that the heads of every line lead to the best task of each group that is not blocked."""
    best: dict[Group, tuple[float, TaskId]] = {}
    for task in state.tasks.values():
        if task.group is not None:
            best[task.group] = min(best.get(task.group, (inf, task.id)), (task.key, task.id))
    for line in state.queue.lines.values():
        for group in line.groups.values():
            heads, listed, first = line.heads[group.class_index], group.listed, best.get(group)
            if listed is not None:
                assert group.blocked is None, f"task {listed[1]} is listed, and its group is blocked"
                assert listed[:2] == first, f"task {listed[1]} is listed as the best of its group, and {first} is"
                assert any(head is listed for head in heads), f"task {listed[1]} is not among the heads of its line"
            elif first is not None and group.blocked is None:
                assert any(head[2] is group and head[:2] <= first for head in heads), f"task {first[1]} is not found"


def _check_orphaned_attempts(state: State) -> None:
    """Assert that orphaned attempts on nodes do not belong to active attempts, and that parts presumed over are recorded so."""
    for node, left in state.orphaned_attempts.items():
        assert left, f"{node} is remembered for nothing it may still run"
        for task_id, number, origin in left:
            task = state.tasks.get(task_id)
            present = (
                task is not None and isinstance(task.phase, ACTIVE) and (task.attempts, task.origin) == (number, origin)
            )
            assert not present, f"{node} has an orphaned attempt {number} of task {task_id}, which is not over"
    found = Counter(
        what.task
        for node, left in state.orphaned_attempts.items()
        for what, it in left.items()
        if it.found and not state.index.hosts[node].lost
    )
    assert found == state.found_orphans, f"unknown attempts run of tasks {found}, and {state.found_orphans} are counted"
    for task in state.tasks.values():
        assert set(task.presumed or ()) <= set(task.members or ()), f"a part of task {task.id} is and is not over"
        if isinstance(task.phase, Suspending | Suspended | Resuming):
            assert task.round > 0, f"task {task.id} is suspended without a request"


def _check_reservations(state: State) -> None:
    for task_id, reservation in state.reservations.items():
        task = state.tasks.get(task_id)
        assert task is not None, f"a reservation is held for task {task_id}, which has ended"
        moves = isinstance(task.phase, Stopping) and task.phase.cause.why in MOVING
        assert moves or isinstance(task.phase, Waiting | Suspended), f"task {task_id} runs and holds a reservation"
        for victim in reservation.victims:
            assert isinstance(state.tasks[victim].phase, HOLDING), f"task {victim} is waited for in vain"


def check_nothing_stranded(state: State) -> None:
    """Assert that after a pass no waiting task could be placed, unless a task before it keeps it back."""
    for reservation in state.reservations.values():
        assert reservation.victims or not reservation.claim, (
            f"a place is cleared for task {reservation.task.id}, which does not take it"
        )
        moving = any(
            isinstance(task.phase, Suspending) for node in reservation.nodes for task in state.on_node[node].values()
        )
        assert moving or not is_unreachable(state, reservation), (
            f"task {reservation.task.id} is promised memory of suspended tasks"
        )
    for task in list(state.tasks.values()):
        if task.group is not None and (reason := _could_start(state, task)):
            group = task.group
            kept = (
                f"line {group.line.blocked}, class {group.line.class_blocked[group.class_index]}, group {group.blocked}"
            )
            raise AssertionError(f"task {task.id} of tenant {task.spec.tenant} waits although {reason} ({kept})")
    check_guarantees(state)
    _check_ranks(state)


def _check_ranks(state: State) -> None:
    """Assert that running tasks that may be preempted have the rank of now, where ranks are stored."""
    policy = state.policy
    if policy.rank is None or policy.changes_at is None:
        return
    for task in state.tasks.values():
        if isinstance(task.phase, Running) and task.preemption is not Preemption.NEVER:
            rank = policy.rank(task, state.now, state.settings)
            assert task.rank == rank, f"task {task.id} has rank {rank}, and {task.rank} is stored"


def check_no_wakeup_missed(state: State) -> None:
    """Assert that after a pass every blocked entry is still blocked when its best task is tried again.

    The best task of a line represents the line, as in the pass. It must not be able to preempt others either, unless it
    waits for its turn at a quota, or ranks change all the time (`Policy.drifts`).
    """
    context = Context(state, _emit_nothing)
    for line in list(state.queue.lines.values()):
        if line.blocked is not None and line.blocked.refusal is HeldBack:
            continue
        blocked_groups = [group for group in line.groups.values() if group.blocked is not None]
        tops = [top[2] for group in blocked_groups if (top := group.top()) is not None]
        for task in [*tops, *_first_of_line(context, line)]:
            assert task.group is not None
            found = try_place(context, task, line, task.group)
            kept = f"line {line.blocked}, class {line.class_blocked[task.class_index]}, group {task.group.blocked}"
            assert isinstance(found, Blocked), f"task {task.id} could be placed on {found.nodes}, and waits ({kept})"
            waits_its_turn = found.ahead is not None and not isinstance(found.wakeups[0], RoomOn)
            if line.shape.need_milli and task.tenant_usage.budget_left(state.now) <= 0:
                continue
            if found.preemption_helps and not waits_its_turn and state.may_preempt() and not state.policy.drifts:
                plan, _ = find_preemption(state, task, line.shape, state.now)
                assert plan is None, (
                    f"task {task.id} waits and may stop {[victim.id for victim in plan.victims]} ({kept})"
                )


def _first_of_line(context: Context, line: Line) -> list[OpenTask]:
    """Return the task of a line that is tried first, with the rank of its reservation if it has one."""
    state = context.state
    bests = [best_of(context, line, class_index) for class_index in (ONLINE, BATCH)]
    ranked = [((*best[0], best[1]), state.tasks[best[1]]) for best in bests if best is not None]
    for reservation in state.reservations.values():
        group = reservation.task.group
        if group is not None and group.line is line and group.blocked is None:
            ranked.append((reservation.sort_key, reservation.task))
    return [min(ranked, key=lambda pair: pair[0])[1]] if ranked else []


def _emit_nothing(event: Event) -> None:
    raise AssertionError(f"{event} was made by a look")


def check_guarantees(state: State) -> None:
    """Assert that after a pass no task waits that its tenant's guarantee covers and that may preempt enough others."""
    if not (state.guarantees and state.may_preempt()):
        return
    for line in state.queue.lines.values():
        line.shape.refresh(state.index)
        for class_index in (ONLINE, BATCH):
            tops = [state.tasks[task] for _, task, group in line.tops(class_index)]
            task = min(tops, key=lambda top: sort_key(state, top, state.now), default=None)
            if task is None or not task.tenant_usage.claims(line.shape.need_milli) or not _may_claim(state, task):
                continue
            plan, _ = find_preemption(state, task, line.shape, state.now)
            if state.policy.drifts and plan is not None and plan.why is CauseKind.PREEMPTED:
                continue
            assert plan is None, (
                f"task {task.id} waits, tenant {task.spec.tenant} is guaranteed room for it, "
                f"and {[victim.id for victim in plan.victims]} may be stopped"
            )


def _may_claim(state: State, task: OpenTask) -> bool:
    """Whether a task lacks only room."""
    assert task.group is not None
    shape, usage, tenant = task.group.line.shape, state.classes[task.class_index], task.tenant_usage
    if tenant.model_limits or tenant.budget_left(state.now) <= 0 or not shape.can_start(state.index):
        return False
    in_class, in_tenant = _promised_before(state, task)
    need = shape.need_milli
    return usage.used + in_class + need <= usage.limit and tenant.used + in_tenant + need <= tenant.limit


def _could_start(state: State, task: OpenTask) -> str:
    """Return why a waiting task could start now; empty: it could not, or is held back for a valid reason."""
    assert task.group is not None
    line = task.group.line
    if line.blocked is not None and line.blocked.refusal is HeldBack:
        return ""
    shape = Shape(line.shape.resources, line.shape.pin)
    shape.refresh(state.index)
    need = shape.need_milli
    usage, tenant = state.classes[task.class_index], task.tenant_usage
    if need and (
        usage.used + need > usage.limit or tenant.used + need > tenant.limit or tenant.budget_left(state.now) <= 0
    ):
        return ""
    mine = sort_key(state, task, state.now)
    held = 0
    for reservation in state.reservations.values():
        if reservation.task is not task and (reservation.claim or reservation.sort_key < mine):
            held |= reservation.device_groups
    in_class, in_tenant = _promised_before(state, task)
    if need and (usage.used + in_class + need > usage.limit or tenant.used + in_tenant + need > tenant.limit):
        return ""  # the rest of the quota is reserved for another task
    if need and _kept_back_at_quota(state, task, mine):
        return ""
    closed = shape.above_quota(min(usage.limit - usage.used - in_class, tenant.limit - tenant.used - in_tenant))
    for model, limit in tenant.model_limits.items():
        left = limit - tenant.used_by_model.get(model, 0)
        if need:
            dear = shape.above_quota(left) if need <= left else state.index.everywhere
            closed |= state.index.by_model.get(model, 0) & dear
    if waits_for_booking(state, shape) is not None:
        return ""
    if state.bookings:
        closed |= closed_by_bookings(state, task, shape, state.now)
    placement = choose(shape, state.index, state.order_for(shape.gpus), held | closed)
    if placement is None or (state.settings.backfill is Backfill.NONE and _somebody_first(state, task, shape, mine)):
        return ""
    return f"{placement.nodes} have room for it"


def _promised_before(state: State, task: OpenTask) -> tuple[int, int]:
    """Return how much of a task's class and tenant quota is reserved for tasks that go before it."""
    assert task.group is not None
    mine = sort_key(state, task, state.now)
    in_class = in_tenant = 0
    for reservation in state.reservations.values():
        if reservation.task is not task and (reservation.claim or reservation.sort_key < mine):
            in_class += reservation.need_milli if reservation.task.class_index == task.class_index else 0
            in_tenant += reservation.need_milli if reservation.task.tenant_usage is task.tenant_usage else 0
    return in_class, in_tenant


def _kept_back_at_quota(state: State, task: OpenTask, mine: tuple[int, float, float, TaskId]) -> bool:
    """Whether a task that goes before is itself stopped by the same class or tenant quota."""
    for other in state.tasks.values():
        if other.group is None or other is task:
            continue
        shape = other.group.line.shape
        if not shape.need_milli or sort_key(state, other, state.now) >= mine:
            continue
        usage, tenant = state.classes[other.class_index], other.tenant_usage
        in_class, in_tenant = _promised_before(state, other)
        if shape.need_milli > min(usage.limit, tenant.limit) or not _enough_nodes(state, shape):
            continue  # it can never start at present, so it blocks no other task
        over_class = usage.used + in_class + shape.need_milli > usage.limit
        over_tenant = tenant.used + in_tenant + shape.need_milli > tenant.limit or tenant.budget_left(state.now) <= 0
        if (over_class and other.class_index == task.class_index) or (over_tenant and tenant is task.tenant_usage):
            return True
        if tenant is task.tenant_usage and _both_want_limited_model(tenant, other, task):
            return True
    return False


def _enough_nodes(state: State, shape: Shape) -> bool:
    """Whether a task could start on an empty cluster: counted node by node, without the index."""
    least = max(shape.gpus, 1 if shape.share else 0)
    fitting = {
        device_group.host.spec.id
        for device_group in state.index.all_device_groups()
        if device_group.bit & shape.eligible and device_group.host.open and device_group.usable.bit_count() >= least
    }
    return len(fitting) >= shape.nodes


def _both_want_limited_model(tenant: TenantUsage, other: OpenTask, task: OpenTask) -> bool:
    """Whether the task before is stopped by the tenant's limit on the only model that both want."""
    models = other.spec.resources.models
    if len(models) != 1 or models != task.spec.resources.models or models[0] not in tenant.model_limits:
        return False
    assert other.group is not None
    used, limit = tenant.used_by_model.get(models[0], 0), tenant.model_limits[models[0]]
    return used + other.group.line.shape.need_milli > limit


def _somebody_first(state: State, task: OpenTask, shape: Shape, mine: tuple[int, float, float, TaskId]) -> bool:
    """Without backfill: whether a task that goes before waits for room or open nodes, and wants one of the same nodes."""
    return any(
        _waits_for_nodes(state, other) and other.group.line.shape.eligible & shape.eligible
        for other in state.tasks.values()
        if other.group is not None and other is not task and sort_key(state, other, state.now) < mine
    )


def _waits_for_nodes(state: State, task: OpenTask) -> bool:
    """Whether no quota stops a waiting task, and it is not held back on advice."""
    assert task.group is not None
    line = task.group.line
    line.shape.refresh(state.index)
    if line.blocked is not None and line.blocked.refusal in {HeldBack, BookingNotBegun}:
        return False
    need, usage, tenant = line.shape.need_milli, state.classes[task.class_index], task.tenant_usage
    return not need or (
        usage.used + need <= usage.limit and tenant.used + need <= tenant.limit and tenant.budget_left(state.now) > 0
    )
