"""The table of a task's life: everything in it can be reached, and what is not in it is refused when it is applied."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from gpuyard.core.domain import events
from gpuyard.core.domain.booking import Booking
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.errors import UnknownEvent
from gpuyard.core.domain.notice import Moment
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.task import Resources, RunLimit, TaskSpec
from gpuyard.core.domain.tenant import Split, Tenant
from gpuyard.core.domain.values import AttemptRef, GpuHealth, NodeId, Outcome, TaskId, TaskStatus, TenantId
from gpuyard.core.engine.apply import apply_event, apply_recorded
from gpuyard.core.engine.phases import STATUS, TRANSITIONS, Ended, Phase, Waiting, WithPlacement
from gpuyard.core.engine.state import State
from gpuyard.testing import node

TASK, NODE = TaskId(1), NodeId("n")
PHASES = sorted({phase for phase, _ in TRANSITIONS} | set(TRANSITIONS.values()), key=lambda phase: phase.__name__)
MOVES = sorted({event for _, event in TRANSITIONS}, key=lambda event: event.__name__)
SPEC = TaskSpec(TenantId("team"), Resources(gpus=1, memory_mib=10))
PLACEMENT = Placement((Slice(NODE, (0,), memory_mib=10),))

MAKE: dict[type[events.Event], Callable[[TaskId, NodeId], events.Event]] = {
    events.TaskHeld: lambda task, _: events.TaskHeld(task),
    events.TaskReleased: lambda task, _: events.TaskReleased(task),
    events.PriorityChanged: lambda task, _: events.PriorityChanged(task, 1),
    events.EstimateRevised: lambda task, _: events.EstimateRevised(task, None),
    events.TaskExtended: lambda task, _: events.TaskExtended(task, 60.0, None),
    events.TaskRequeued: lambda task, _: events.TaskRequeued(task, Cause(CauseKind.EXIT_CODE), 0.0),
    events.TaskEnded: lambda task, _: events.TaskEnded(task, TaskStatus.FAILED, Cause(CauseKind.EXIT_CODE)),
    events.TaskPlaced: lambda task, where: events.TaskPlaced(task, 1, Placement((Slice(where, (0,), memory_mib=10),))),
    events.AttemptStarted: lambda task, _: events.AttemptStarted(task, 1),
    events.AttemptSuspending: lambda task, _: events.AttemptSuspending(task, 1, Cause(CauseKind.SUSPENDED_BY_USER), 1),
    events.AttemptSuspended: lambda task, _: events.AttemptSuspended(task, 1),
    events.SuspensionFailed: lambda task, _: events.SuspensionFailed(task, 1, 1),
    events.AttemptResuming: lambda task, _: events.AttemptResuming(task, 1, PLACEMENT, 1),
    events.AttemptResumed: lambda task, _: events.AttemptResumed(task, 1),
    events.AttemptStopping: lambda task, _: events.AttemptStopping(task, 1, Cause(CauseKind.CANCELLED)),
    events.MemberReady: lambda task, where: events.MemberReady(task, 1, where),
    events.MemberEnded: lambda task, where: events.MemberEnded(task, 1, where, Outcome.FAILED),
    events.AttemptEnded: lambda task, _: events.AttemptEnded(task, 1, Outcome.FAILED, 1),
    events.ReservationMade: lambda task, where: events.ReservationMade(task, (where,), None),
    events.NodeLost: lambda _, where: events.NodeLost(where),
    events.NodeReturned: lambda _, where: events.NodeReturned(where),
    events.NodeStopped: lambda _, where: events.NodeStopped(where, 100.0),
    events.OrphanedAttemptFound: lambda task, where: events.OrphanedAttemptFound(where, task, 1, 7, Slice(where, (0,))),
    events.OrphanedAttemptEnded: lambda task, where: events.OrphanedAttemptEnded(where, task, 1),
    events.AttemptRecovered: lambda task, where: events.AttemptRecovered(task, 1, where),
    events.NodeChanged: lambda _, where: events.NodeChanged(node(where)),
    events.NodeRemoved: lambda _, where: events.NodeRemoved(where),
    events.NodeCordoned: lambda _, where: events.NodeCordoned(where),
    events.NodeUncordoned: lambda _, where: events.NodeUncordoned(where),
    events.GpuHealthChanged: lambda _, where: events.GpuHealthChanged(where, 0, GpuHealth.OFFLINE),
}
"""Every event that refers to a task or node that must be known."""


def _ways() -> dict[type[Phase], list[type[events.Event]]]:
    """The shortest way from submission to each phase."""
    ways: dict[type[Phase], list[type[events.Event]]] = {Waiting: []}
    to_visit = deque([Waiting])
    while to_visit:
        phase: Any = to_visit.popleft()
        for (begins, event), ends in TRANSITIONS.items():
            if begins is phase and ends not in ways and event is not events.AttemptRecovered:
                ways[ends] = [*ways[phase], event]
                to_visit.append(ends)  # type: ignore[arg-type]
    return ways


WAYS = _ways()


def _state_in(phase: type[Phase]) -> State:
    state = State()
    apply_recorded(state, events.NodeJoined(node(NODE, gpus=2, memory_mib=100)), 0.0)
    apply_recorded(state, events.TaskSubmitted(TASK, SPEC), 1.0)
    for place, event in enumerate(WAYS[phase]):
        apply_recorded(state, MAKE[event](TASK, NODE), 2.0 + place)
    return state


def _lose_it(state: State) -> None:
    """Its node is lost while it runs, and comes back with it before it has started elsewhere."""
    for event in (events.TaskPlaced, events.AttemptStarted, events.NodeLost):
        apply_recorded(state, MAKE[event](TASK, NODE), 50.0)
    apply_recorded(state, events.AttemptEnded(TASK, 1, Outcome.LOST, orphaned_on=(NODE,)), 60.0)
    apply_recorded(state, MAKE[events.TaskRequeued](TASK, NODE), 60.0)
    apply_recorded(state, events.NodeReturned(NODE, (AttemptRef(TASK, 1),)), 70.0)


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
    move: tuple[type[Phase], type[events.Event]], ends: type[Phase]
) -> None:
    state = _state_in(move[0])
    task = state.tasks[TASK]
    if move[1] is events.AttemptRecovered:
        _lose_it(state)
    apply_recorded(state, MAKE[move[1]](TASK, NODE), 100.0)
    assert type(task.phase) is ends
    assert (TASK in state.tasks) == (ends is not Ended)


def test_every_event_about_an_attempt_moves_its_task_but_those_of_one_member_and_of_what_a_node_has_left() -> None:
    about_attempts = {event for event in events.EVENTS if "attempt" in event.__struct_fields__}
    assert about_attempts - set(MOVES) == {
        events.MemberReady, events.MemberEnded, events.OrphanedAttemptFound, events.OrphanedAttemptEnded,
    }  # fmt: skip


@pytest.mark.parametrize("event", MOVES, ids=lambda event: event.__name__)
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
def test_an_event_that_does_not_fit_the_phase_is_refused_and_changes_nothing(
    phase: type[Phase], event: type[events.Event]
) -> None:
    if (phase, event) in TRANSITIONS:
        return
    state = _state_in(phase)
    task = state.tasks.get(TASK)
    before = (task.phase, task.group, state.index.hosts[NODE].device_groups[0].free) if task else None
    with pytest.raises(UnknownEvent, match=rf"{events.name_of(event)} .*task 1\b"):
        apply_event(state, MAKE[event](TASK, NODE))
    assert before == ((task.phase, task.group, state.index.hosts[NODE].device_groups[0].free) if task else None)


@pytest.mark.parametrize("event", list(MAKE), ids=lambda event: event.__name__)
def test_an_event_about_something_unknown_is_refused_by_name(event: type[events.Event]) -> None:
    with pytest.raises(UnknownEvent, match=events.name_of(event)):
        apply_event(_state_in(Waiting), MAKE[event](TaskId(99), NodeId("nowhere")))


def test_a_placement_on_an_unknown_node_and_an_unknown_gpu_are_refused() -> None:
    with pytest.raises(UnknownEvent, match="TaskPlaced refers to 'nowhere'"):
        apply_event(_state_in(Waiting), MAKE[events.TaskPlaced](TASK, NodeId("nowhere")))
    with pytest.raises(UnknownEvent, match="GpuHealthChanged refers to 7"):
        apply_event(_state_in(Waiting), events.GpuHealthChanged(NODE, 7, GpuHealth.OFFLINE))


def test_all_other_events_can_be_applied_to_an_empty_cluster() -> None:
    free = {
        events.ClusterCreated: events.ClusterCreated("lab"),
        events.EpochBegan: events.EpochBegan(1, "0.1.0"),
        events.EpochEnded: events.EpochEnded(1, 60.0),
        events.TaskNumbersSkipped: events.TaskNumbersSkipped(TaskId(7)),
        events.AccessChanged: events.AccessChanged("user_added", "alice"),
        events.TaskSubmitted: events.TaskSubmitted(TASK, SPEC),
        events.NodeJoined: events.NodeJoined(node("n")),
        events.RunLimitSet: events.RunLimitSet(RunLimit(TASK, TASK, 1)),
        events.TenantSet: events.TenantSet(Tenant(TenantId("team"))),
        events.SplitSet: events.SplitSet(Split()),
        events.SettingsChanged: events.SettingsChanged(Settings()),
        events.BookingMade: events.BookingMade(Booking(1, TenantId("team"), 60.0, 120.0, ())),
    }
    booked: dict[type[events.Event], events.Event] = {
        events.BookingMoved: events.BookingMoved(1, ()),
        events.BookingBegan: events.BookingBegan(1),
        events.BookingEnded: events.BookingEnded(1, Cause(CauseKind.TIME_CAME)),
    }
    assert set(free) | set(MAKE) | set(booked) | {events.ReservationDropped, events.NoticeSettled} == set(events.EVENTS)
    for event in free.values():
        apply_event(State(), event)
    state = State()
    apply_event(state, free[events.BookingMade])
    # A journal from before messages had a limit for each user may settle one that is dropped now.
    apply_event(State(), events.NoticeSettled(TASK, 0, Moment.END, delivered=True))
    for event in booked.values():
        with pytest.raises(UnknownEvent, match="booking 1, which is unknown"):
            apply_event(State(), event)
        apply_event(state, event)
    with pytest.raises(UnknownEvent, match="a number that was used before"):
        apply_event(state, free[events.BookingMade])
