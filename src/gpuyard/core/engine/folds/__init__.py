"""Folds: for each kind of fact a function that applies it to the state. Nothing else changes the state.

Live operation and replay use the same folds, each fact at the instant it was recorded, so the state after a restart
equals the state before it. A fold never decides: consequences of a fact are further facts, emitted by the engine.
"""

from collections.abc import Callable
from typing import Any

from gpuyard.core.domain import events as fact
from gpuyard.core.domain.errors import UnknownFact
from gpuyard.core.engine.folds import attempts, nodes, reservations, tasks, yard
from gpuyard.core.engine.state import State


def apply(state: State, event: fact.Event, at: float) -> None:
    """Apply a fact of the journal at the instant it was recorded."""
    state.now = max(state.now, at)
    fold(state, event)


def fold(state: State, event: fact.Event) -> None:
    """Apply a fact at the present instant."""
    try:
        FOLDS[type(event)](state, event)
    except KeyError as error:
        raise UnknownFact(f"{type(event).__name__} speaks of {error}, which is not known here.") from error


FOLDS: dict[type[fact.Event], Callable[[State, Any], None]] = {
    fact.YardFounded: yard.founded,
    fact.TaskSubmitted: tasks.submitted,
    fact.TaskHeld: tasks.held,
    fact.TaskReleased: tasks.released,
    fact.PriorityChanged: tasks.priority_changed,
    fact.EstimateRevised: tasks.estimate_revised,
    fact.TaskExtended: tasks.extended,
    fact.TaskRequeued: tasks.requeued,
    fact.TaskEnded: tasks.ended,
    fact.TaskPlaced: attempts.placed,
    fact.AttemptStarted: attempts.started,
    fact.AttemptSuspending: attempts.suspending,
    fact.AttemptSuspended: attempts.suspended,
    fact.SuspensionFailed: attempts.suspension_failed,
    fact.AttemptResuming: attempts.resuming,
    fact.AttemptResumed: attempts.resumed,
    fact.AttemptStopping: attempts.stopping,
    fact.MemberReady: attempts.member_ready,
    fact.MemberEnded: attempts.member_ended,
    fact.AttemptEnded: attempts.ended,
    fact.ReservationMade: reservations.made,
    fact.ReservationDropped: reservations.dropped,
    fact.NodeJoined: nodes.joined,
    fact.NodeLost: nodes.lost,
    fact.NodeReturned: nodes.returned,
    fact.RemainsEnded: nodes.remains_ended,
    fact.NodeStopped: nodes.stopped,
    fact.RemainsFound: nodes.remains_found,
    fact.AttemptRecovered: attempts.recovered,
    fact.TaskNumbersSkipped: yard.numbers_skipped,
    fact.NodeChanged: nodes.changed,
    fact.NodeRemoved: nodes.removed,
    fact.NodeCordoned: nodes.cordoned,
    fact.NodeUncordoned: nodes.uncordoned,
    fact.GpuHealthChanged: nodes.health_changed,
    fact.EpochBegan: yard.epoch_began,
    fact.EpochEnded: yard.epoch_ended,
    fact.AccessChanged: yard.access_changed,
    fact.TenantSet: yard.tenant_set,
    fact.SplitSet: yard.split_set,
    fact.SettingsChanged: yard.settings_changed,
}
