"""The table of a task's life: everything in it can be reached, and what is not in it is refused by the fold."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from gpuyard.core.domain import events as fact
from gpuyard.core.domain.causes import Cause, Why
from gpuyard.core.domain.errors import UnknownFact
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.task import Resources, TaskSpec
from gpuyard.core.domain.tenant import Split, Tenant
from gpuyard.core.domain.values import AttemptRef, GpuHealth, NodeId, Outcome, TaskId, TaskStatus, TenantId
from gpuyard.core.engine.folds import apply, fold
from gpuyard.core.engine.phases import STATUS, TRANSITIONS, Ended, Phase, Waiting, WithPlacement
from gpuyard.core.engine.state import State
from gpuyard.testing import node

TASK, NODE = TaskId(1), NodeId("n")
PHASES = sorted({phase for phase, _ in TRANSITIONS} | set(TRANSITIONS.values()), key=lambda phase: phase.__name__)
MOVES = sorted({event for _, event in TRANSITIONS}, key=lambda event: event.__name__)
SPEC = TaskSpec(TenantId("team"), Resources(gpus=1, memory_mib=10))
PLACEMENT = Placement((Slice(NODE, (0,), memory_mib=10),))

MAKE: dict[type[fact.Event], Callable[[TaskId, NodeId], fact.Event]] = {
    fact.TaskHeld: lambda task, _: fact.TaskHeld(task),
    fact.TaskReleased: lambda task, _: fact.TaskReleased(task),
    fact.PriorityChanged: lambda task, _: fact.PriorityChanged(task, 1),
    fact.EstimateRevised: lambda task, _: fact.EstimateRevised(task, None),
    fact.TaskExtended: lambda task, _: fact.TaskExtended(task, 60.0, None),
    fact.TaskRequeued: lambda task, _: fact.TaskRequeued(task, Cause(Why.EXIT_CODE), 0.0),
    fact.TaskEnded: lambda task, _: fact.TaskEnded(task, TaskStatus.FAILED, Cause(Why.EXIT_CODE)),
    fact.TaskPlaced: lambda task, where: fact.TaskPlaced(task, 1, Placement((Slice(where, (0,), memory_mib=10),))),
    fact.AttemptStarted: lambda task, _: fact.AttemptStarted(task, 1),
    fact.AttemptSuspending: lambda task, _: fact.AttemptSuspending(task, 1, Cause(Why.SUSPENDED_BY_USER), 1),
    fact.AttemptSuspended: lambda task, _: fact.AttemptSuspended(task, 1),
    fact.SuspensionFailed: lambda task, _: fact.SuspensionFailed(task, 1, 1),
    fact.AttemptResuming: lambda task, _: fact.AttemptResuming(task, 1, PLACEMENT, 1),
    fact.AttemptResumed: lambda task, _: fact.AttemptResumed(task, 1),
    fact.AttemptStopping: lambda task, _: fact.AttemptStopping(task, 1, Cause(Why.CANCELLED)),
    fact.MemberReady: lambda task, where: fact.MemberReady(task, 1, where),
    fact.MemberEnded: lambda task, where: fact.MemberEnded(task, 1, where, Outcome.FAILED),
    fact.AttemptEnded: lambda task, _: fact.AttemptEnded(task, 1, Outcome.FAILED, 1),
    fact.ReservationMade: lambda task, where: fact.ReservationMade(task, (where,), None),
    fact.NodeLost: lambda _, where: fact.NodeLost(where),
    fact.NodeReturned: lambda _, where: fact.NodeReturned(where),
    fact.NodeStopped: lambda _, where: fact.NodeStopped(where, 100.0),
    fact.RemainsFound: lambda task, where: fact.RemainsFound(where, task, 1, 7, Slice(where, (0,))),
    fact.RemainsEnded: lambda task, where: fact.RemainsEnded(where, task, 1),
    fact.AttemptRecovered: lambda task, where: fact.AttemptRecovered(task, 1, where),
    fact.NodeChanged: lambda _, where: fact.NodeChanged(node(where)),
    fact.NodeRemoved: lambda _, where: fact.NodeRemoved(where),
    fact.NodeCordoned: lambda _, where: fact.NodeCordoned(where),
    fact.NodeUncordoned: lambda _, where: fact.NodeUncordoned(where),
    fact.GpuHealthChanged: lambda _, where: fact.GpuHealthChanged(where, 0, GpuHealth.OFFLINE),
}
"""Every fact that speaks of a task or node that must be known."""


def _ways() -> dict[type[Phase], list[type[fact.Event]]]:
    """The shortest way from submission to each phase."""
    ways: dict[type[Phase], list[type[fact.Event]]] = {Waiting: []}
    to_visit = deque([Waiting])
    while to_visit:
        phase: Any = to_visit.popleft()
        for (begins, event), ends in TRANSITIONS.items():
            if begins is phase and ends not in ways and event is not fact.AttemptRecovered:
                ways[ends] = [*ways[phase], event]
                to_visit.append(ends)  # type: ignore[arg-type]
    return ways


WAYS = _ways()


def _state_in(phase: type[Phase]) -> State:
    state = State()
    apply(state, fact.NodeJoined(node(NODE, gpus=2, memory_mib=100)), 0.0)
    apply(state, fact.TaskSubmitted(TASK, SPEC), 1.0)
    for place, event in enumerate(WAYS[phase]):
        apply(state, MAKE[event](TASK, NODE), 2.0 + place)
    return state


def _lose_it(state: State) -> None:
    """Its node is lost while it runs, and comes back with it before it has started elsewhere."""
    for event in (fact.TaskPlaced, fact.AttemptStarted, fact.NodeLost):
        apply(state, MAKE[event](TASK, NODE), 50.0)
    apply(state, fact.AttemptEnded(TASK, 1, Outcome.LOST, remains=(NODE,)), 60.0)
    apply(state, MAKE[fact.TaskRequeued](TASK, NODE), 60.0)
    apply(state, fact.NodeReturned(NODE, (AttemptRef(TASK, 1),)), 70.0)


def test_every_phase_can_be_reached_and_every_task_can_end() -> None:
    phases = {*Phase.__subclasses__(), *WithPlacement.__subclasses__()} - {WithPlacement}
    assert set(WAYS) == phases == set(PHASES)
    leads = {begins for begins, _ in TRANSITIONS}
    assert leads == set(PHASES) - {Ended}


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase is not Ended], ids=lambda phase: phase.__name__)
def test_every_phase_is_what_the_fold_makes_of_the_shortest_way_to_it(phase: type[Phase]) -> None:
    task = _state_in(phase).tasks[TASK]
    assert type(task.phase) is phase
    assert task.status is STATUS[phase]


@pytest.mark.parametrize(("move", "ends"), list(TRANSITIONS.items()), ids=str)
def test_every_row_of_the_table_is_what_the_fold_does(
    move: tuple[type[Phase], type[fact.Event]], ends: type[Phase]
) -> None:
    state = _state_in(move[0])
    task = state.tasks[TASK]
    if move[1] is fact.AttemptRecovered:
        _lose_it(state)
    apply(state, MAKE[move[1]](TASK, NODE), 100.0)
    assert type(task.phase) is ends
    assert (TASK in state.tasks) == (ends is not Ended)


def test_every_fact_about_an_attempt_moves_its_task_but_those_of_one_member_and_of_what_a_node_has_left() -> None:
    about_attempts = {event for event in fact.EVENTS if "attempt" in event.__struct_fields__}
    assert about_attempts - set(MOVES) == {
        fact.MemberReady, fact.MemberEnded, fact.RemainsFound, fact.RemainsEnded,
    }  # fmt: skip


@pytest.mark.parametrize("event", MOVES, ids=lambda event: event.__name__)
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
def test_a_fact_that_does_not_fit_the_phase_is_refused_and_changes_nothing(
    phase: type[Phase], event: type[fact.Event]
) -> None:
    if (phase, event) in TRANSITIONS:
        return
    state = _state_in(phase)
    task = state.tasks.get(TASK)
    before = (task.phase, task.group, state.index.hosts[NODE].device_groups[0].free) if task else None
    with pytest.raises(UnknownFact, match=rf"{event.__name__} .*task 1\b"):
        fold(state, MAKE[event](TASK, NODE))
    assert before == ((task.phase, task.group, state.index.hosts[NODE].device_groups[0].free) if task else None)


@pytest.mark.parametrize("event", list(MAKE), ids=lambda event: event.__name__)
def test_a_fact_about_something_unknown_is_refused_by_name(event: type[fact.Event]) -> None:
    with pytest.raises(UnknownFact, match=event.__name__):
        fold(_state_in(Waiting), MAKE[event](TaskId(99), NodeId("nowhere")))


def test_a_placement_on_an_unknown_node_and_an_unknown_gpu_are_refused() -> None:
    with pytest.raises(UnknownFact, match="TaskPlaced speaks of 'nowhere'"):
        fold(_state_in(Waiting), MAKE[fact.TaskPlaced](TASK, NodeId("nowhere")))
    with pytest.raises(UnknownFact, match="GpuHealthChanged speaks of 7"):
        fold(_state_in(Waiting), fact.GpuHealthChanged(NODE, 7, GpuHealth.OFFLINE))


def test_all_other_facts_can_be_folded_into_an_empty_yard() -> None:
    free = {
        fact.YardFounded: fact.YardFounded("lab"),
        fact.EpochBegan: fact.EpochBegan(1, "0.1.0"),
        fact.EpochEnded: fact.EpochEnded(1, 60.0),
        fact.TaskNumbersSkipped: fact.TaskNumbersSkipped(TaskId(7)),
        fact.AccessChanged: fact.AccessChanged("user_added", "alice"),
        fact.TaskSubmitted: fact.TaskSubmitted(TASK, SPEC),
        fact.NodeJoined: fact.NodeJoined(node("n")),
        fact.TenantSet: fact.TenantSet(Tenant(TenantId("team"))),
        fact.SplitSet: fact.SplitSet(Split()),
        fact.SettingsChanged: fact.SettingsChanged(Settings()),
    }
    assert set(free) | set(MAKE) | {fact.ReservationDropped} == set(fact.EVENTS)
    for event in free.values():
        fold(State(), event)
