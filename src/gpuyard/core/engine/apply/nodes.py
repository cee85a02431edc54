"""Effects of events about nodes: joined, left, lost, closed, changed.

When room or GPUs are added, the lines that wait for them are woken; reservations are looked up again, and the GPUs that
are up now are divided between the classes.
"""

from gpuyard.core.domain import events
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.errors import UnknownEvent
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.values import AttemptRef, NodeId, TaskId
from gpuyard.core.engine.state import OrphanedAttempt, State


def apply_node_joined(state: State, event: events.NodeJoined) -> None:
    """Add a new node."""
    if event.node.id in state.index.hosts:
        raise UnknownEvent(f"NodeJoined refers to node {event.node.id}, which already exists.")
    state.index.join(event.node)
    state.on_node[event.node.id] = {}
    if event.instance:
        state.agents[event.node.id] = (event.instance, event.boot)
    _node_changed(state, event.node.id)


def apply_node_lost(state: State, event: events.NodeLost) -> None:
    """Mark a node as lost; its resources stay taken until their attempts are known to have ended."""
    for number in _tasks_of_found_orphans(state, event.node):
        state.remove_found_orphan(number)
    state.index.set_state(event.node, lost=True)
    state.back_by.pop(event.node, None)
    state.divide()


def apply_node_stopped(state: State, event: events.NodeStopped) -> None:
    """Mark a node as away on purpose: it gets no new tasks, and does not count as lost before `back_by`."""
    state.index.set_state(event.node, away=True)
    state.back_by[event.node] = event.back_by
    state.queue.quotas_changed(_changed(event.node))


def apply_node_returned(state: State, event: events.NodeReturned) -> None:
    """Open a node that has registered again; given-up attempts that it does not report have ended."""
    was_lost = state.index.hosts[event.node].lost
    state.index.set_state(event.node, lost=False, away=False)
    for number in _tasks_of_found_orphans(state, event.node) if was_lost else ():
        state.add_found_orphan(number)
    if event.instance:
        state.agents[event.node] = (event.instance, event.boot)
    state.back_by.pop(event.node, None)
    for what in state.presumed_on(event.node):
        if what not in event.orphaned_attempts:
            _remove_orphan(state, event.node, what)
    _node_changed(state, event.node)


def apply_orphaned_attempt_found(state: State, event: events.OrphanedAttemptFound) -> None:
    """Take the resources of an attempt that is unknown or known as ended, without charging them."""
    what = AttemptRef(event.task, event.attempt, event.origin)
    if what in state.orphaned_attempts.get(event.node, {}):
        raise UnknownEvent(f"RemainsFound refers to task {event.task}, which is already known on node {event.node}.")
    state.orphaned_attempts.setdefault(event.node, {})[what] = OrphanedAttempt(
        event.part, wanted=event.wanted, found=True
    )
    state.index.take(Placement((event.part,)))
    if not state.index.hosts[event.node].lost:
        state.add_found_orphan(event.task)


def apply_orphaned_attempt_ended(state: State, event: events.OrphanedAttemptEnded) -> None:
    """Free the resources of a given-up attempt that has ended."""
    what = AttemptRef(event.task, event.attempt, event.origin)
    if event.node not in state.index.hosts or what not in state.presumed_on(event.node):
        raise UnknownEvent(f"RemainsEnded refers to task {event.task}, which has no attempt on node {event.node}.")
    _remove_orphan(state, event.node, what)


def _remove_orphan(state: State, node: NodeId, what: AttemptRef) -> None:
    """Free the resources that an attempt, now known to have ended, may have used on a node."""
    task = state.tasks.get(what.task)
    if task is not None and (task.attempts, task.origin) == what[1:] and task.presumed:
        task.presumed.discard(node)
    if (left := state.orphaned_attempts.get(node, {}).pop(what, None)) is not None:
        state.index.give(Placement((left.part,)))
        state.free(Placement((left.part,)), Cause(CauseKind.GPUS_FREED, task=what.task))
        if not state.orphaned_attempts[node]:
            del state.orphaned_attempts[node]
        if left.found and not state.index.hosts[node].lost:
            state.remove_found_orphan(what.task)


def _tasks_of_found_orphans(state: State, node: NodeId) -> list[TaskId]:
    """Return the tasks whose unknown attempts a node runs; empty for a lost node, where this is not known."""
    if state.index.hosts[node].lost:
        return []
    return [what.task for what, left in state.orphaned_attempts.get(node, {}).items() if left.found]


def apply_node_changed(state: State, event: events.NodeChanged) -> None:
    """Update the specification of a node whose GPUs are the same as before."""
    state.index.change(event.node)
    _node_changed(state, event.node.id)


def apply_node_removed(state: State, event: events.NodeRemoved) -> None:
    """Remove a node for good."""
    tasks = _tasks_of_found_orphans(state, event.node)
    state.index.remove(event.node)
    del state.on_node[event.node]
    state.orphaned_attempts.pop(event.node, None)
    for number in tasks:
        state.remove_found_orphan(number)
    state.agents.pop(event.node, None)
    state.back_by.pop(event.node, None)
    state.place_reservations()
    state.divide()


def apply_node_cordoned(state: State, event: events.NodeCordoned) -> None:
    """Close a node to new tasks."""
    state.index.set_state(event.node, cordoned=True, draining=event.draining)
    state.index.hosts[event.node].cordon_reason = event.reason
    # a task that only this node could hold no longer blocks those behind it
    state.queue.quotas_changed(_changed(event.node))


def apply_node_uncordoned(state: State, event: events.NodeUncordoned) -> None:
    """Open a node to new tasks again."""
    state.index.set_state(event.node, cordoned=False, draining=False)
    state.index.hosts[event.node].cordon_reason = ""
    _node_changed(state, event.node)


def apply_gpu_health_changed(state: State, event: events.GpuHealthChanged) -> None:
    """Set whether a GPU is usable."""
    state.index.set_health(event.node, event.gpu, event.health)
    _node_changed(state, event.node)


def _node_changed(state: State, node: NodeId) -> None:
    for device_group in state.index.hosts[node].device_groups:
        state.queue.room_gained(device_group.number, _changed(node))
    state.orders.clear()
    state.place_reservations()
    state.divide()
    if state.may_preempt():
        _retry_on(state, node)


def _retry_on(state: State, node: NodeId) -> None:
    """Retry the lines that could use a node that was opened or has more GPUs: they may preempt tasks there."""
    here = state.index.device_groups_of((node,))
    lines = state.queue.lines.values()
    for line in lines:
        line.shape.refresh(state.index)
    state.queue.retry((line for line in lines if line.shape.eligible & here), _changed(node))


def _changed(node: NodeId) -> Cause:
    return Cause(CauseKind.NODES_CHANGED, node=node)
