"""What is booked when a node comes, goes, is lost, is closed, or has other cards.

Where room or cards are new, whoever waits for some is asked again; promises are looked up anew, and the classes' parts
are those of the GPUs that are there now.
"""

from gpuyard.core.domain import events as fact
from gpuyard.core.domain.causes import Cause, Why
from gpuyard.core.domain.errors import UnknownFact
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.values import AttemptRef, NodeId, TaskId
from gpuyard.core.engine.state import Left, State


def joined(state: State, event: fact.NodeJoined) -> None:
    """A node nobody knew is there."""
    if event.node.id in state.index.hosts:
        raise UnknownFact(f"NodeJoined speaks of node {event.node.id}, which is there already.")
    state.index.join(event.node)
    state.on_node[event.node.id] = {}
    if event.instance:
        state.agents[event.node.id] = (event.instance, event.boot)
    _node_changed(state, event.node.id)


def lost(state: State, event: fact.NodeLost) -> None:
    """Nobody hears of it; what it holds stays taken until it is known to be gone."""
    for number in _strays_on(state, event.node):
        state.stray_ended(number)
    state.index.set_state(event.node, lost=True)
    state.back_by.pop(event.node, None)
    state.divide()


def stopped(state: State, event: fact.NodeStopped) -> None:
    """Its agent is away for a while, on purpose: nothing new comes to it, and nobody counts it as lost before then."""
    state.index.set_state(event.node, away=True)
    state.back_by[event.node] = event.back_by
    state.queue.quotas_changed(_changed(event.node))


def returned(state: State, event: fact.NodeReturned) -> None:
    """It has registered again, and says what it still runs of what was given up."""
    was_lost = state.index.hosts[event.node].lost
    state.index.set_state(event.node, lost=False, away=False)
    for number in _strays_on(state, event.node) if was_lost else ():
        state.stray_began(number)
    if event.instance:
        state.agents[event.node] = (event.instance, event.boot)
    state.back_by.pop(event.node, None)
    for what in state.presumed_on(event.node):
        if what not in event.remains:
            _remains_gone(state, event.node, what)
    _node_changed(state, event.node)


def remains_found(state: State, event: fact.RemainsFound) -> None:
    """It has something that is of nobody's here: taken there, and charged to nobody."""
    what = AttemptRef(event.task, event.attempt, event.origin)
    if what in state.remains.get(event.node, {}):
        raise UnknownFact(f"RemainsFound speaks of task {event.task}, which node {event.node} is known to have.")
    state.remains.setdefault(event.node, {})[what] = Left(event.part, wanted=event.wanted, found=True)
    state.index.take(Placement((event.part,)))
    if not state.index.hosts[event.node].lost:
        state.stray_began(event.task)


def remains_ended(state: State, event: fact.RemainsEnded) -> None:
    """It runs one thing less of what was given up."""
    what = AttemptRef(event.task, event.attempt, event.origin)
    if event.node not in state.index.hosts or what not in state.presumed_on(event.node):
        raise UnknownFact(f"RemainsEnded speaks of task {event.task}, of which node {event.node} has nothing.")
    _remains_gone(state, event.node, what)


def _remains_gone(state: State, node: NodeId, what: AttemptRef) -> None:
    """What a node may still have run of an attempt is known to be gone."""
    task = state.tasks.get(what.task)
    if task is not None and (task.attempts, task.origin) == what[1:] and task.presumed:
        task.presumed.discard(node)
    if (left := state.remains.get(node, {}).pop(what, None)) is not None:
        state.index.give(Placement((left.part,)))
        state.free(Placement((left.part,)), Cause(Why.GPUS_FREED, task=what.task))
        if not state.remains[node]:
            del state.remains[node]
        if left.found and not state.index.hosts[node].lost:
            state.stray_ended(what.task)


def _strays_on(state: State, node: NodeId) -> list[TaskId]:
    """The tasks whose unknown attempts a node runs; of a lost one nobody knows."""
    if state.index.hosts[node].lost:
        return []
    return [what.task for what, left in state.remains.get(node, {}).items() if left.found]


def changed(state: State, event: fact.NodeChanged) -> None:
    """It has the same cards as before and is otherwise another one."""
    state.index.change(event.node)
    _node_changed(state, event.node.id)


def removed(state: State, event: fact.NodeRemoved) -> None:
    """It is gone for good."""
    strays = _strays_on(state, event.node)
    state.index.remove(event.node)
    del state.on_node[event.node]
    state.remains.pop(event.node, None)
    for number in strays:
        state.stray_ended(number)
    state.agents.pop(event.node, None)
    state.back_by.pop(event.node, None)
    state.place_reservations()
    state.divide()


def cordoned(state: State, event: fact.NodeCordoned) -> None:
    """Nothing new comes to it."""
    state.index.set_state(event.node, cordoned=True, draining=event.draining)
    state.queue.quotas_changed(_changed(event.node))  # a task that only this node could hold stops nothing behind it


def uncordoned(state: State, event: fact.NodeUncordoned) -> None:
    """It takes new tasks again."""
    state.index.set_state(event.node, cordoned=False, draining=False)
    _node_changed(state, event.node)


def health_changed(state: State, event: fact.GpuHealthChanged) -> None:
    """One of its GPUs is usable again, or is not any more."""
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
    """A node is open, or has cards, that was not or had not: whoever could use it may stop others there."""
    here = state.index.device_groups_of((node,))
    lines = state.queue.lines.values()
    for line in lines:
        line.shape.refresh(state.index)
    state.queue.retry((line for line in lines if line.shape.eligible & here), _changed(node))


def _changed(node: NodeId) -> Cause:
    return Cause(Why.NODES_CHANGED, node=node)
