"""Apply events: for each type of event one function that changes the state. Nothing else changes the state.

Live operation and replay use the same functions, each event at the instant it was recorded, so the state after a restart
equals the state before it. These functions decide nothing: the consequences of an event are further events, emitted by
the engine.
"""

from collections.abc import Callable
from typing import Any

from gpuyard.core.domain import events
from gpuyard.core.domain.errors import UnknownEvent
from gpuyard.core.engine.apply import attempts, bookings, cluster, nodes, reservations, tasks
from gpuyard.core.engine.lifecycle.run_limits import settle
from gpuyard.core.engine.state import State


def apply_recorded(state: State, event: events.Event, at: float) -> None:
    """Apply an event of the journal at the instant it was recorded."""
    state.now = max(state.now, at)
    apply_event(state, event)


def apply_event(state: State, event: events.Event) -> None:
    """Apply an event at the present instant."""
    try:
        APPLY_BY_TYPE[type(event)](state, event)
        if state.unsettled:
            settle(state)
    except KeyError as error:
        raise UnknownEvent(f"{events.name_of(event)} refers to {error}, which is unknown.") from error


APPLY_BY_TYPE: dict[type[events.Event], Callable[[State, Any], None]] = {
    events.ClusterCreated: cluster.apply_cluster_created,
    events.TaskSubmitted: tasks.apply_task_submitted,
    events.TaskHeld: tasks.apply_task_held,
    events.TaskReleased: tasks.apply_task_released,
    events.PriorityChanged: tasks.apply_priority_changed,
    events.EstimateRevised: tasks.apply_estimate_revised,
    events.TaskExtended: tasks.apply_task_extended,
    events.TaskRequeued: tasks.apply_task_requeued,
    events.TaskEnded: tasks.apply_task_ended,
    events.RunLimitSet: tasks.apply_run_limit_set,
    events.NoticeSettled: tasks.apply_notice_settled,
    events.TaskPlaced: attempts.apply_task_placed,
    events.AttemptStarted: attempts.apply_attempt_started,
    events.AttemptSuspending: attempts.apply_attempt_suspending,
    events.AttemptSuspended: attempts.apply_attempt_suspended,
    events.SuspensionFailed: attempts.apply_suspension_failed,
    events.AttemptResuming: attempts.apply_attempt_resuming,
    events.AttemptResumed: attempts.apply_attempt_resumed,
    events.AttemptStopping: attempts.apply_attempt_stopping,
    events.MemberReady: attempts.apply_member_ready,
    events.MemberEnded: attempts.apply_member_ended,
    events.AttemptEnded: attempts.apply_attempt_ended,
    events.ReservationMade: reservations.apply_reservation_made,
    events.ReservationDropped: reservations.apply_reservation_dropped,
    events.BookingMade: bookings.apply_booking_made,
    events.BookingMoved: bookings.apply_booking_moved,
    events.BookingBegan: bookings.apply_booking_began,
    events.BookingEnded: bookings.apply_booking_ended,
    events.NodeJoined: nodes.apply_node_joined,
    events.NodeLost: nodes.apply_node_lost,
    events.NodeReturned: nodes.apply_node_returned,
    events.OrphanedAttemptEnded: nodes.apply_orphaned_attempt_ended,
    events.NodeStopped: nodes.apply_node_stopped,
    events.OrphanedAttemptFound: nodes.apply_orphaned_attempt_found,
    events.AttemptRecovered: attempts.apply_attempt_recovered,
    events.TaskNumbersSkipped: cluster.apply_task_numbers_skipped,
    events.NodeChanged: nodes.apply_node_changed,
    events.NodeRemoved: nodes.apply_node_removed,
    events.NodeCordoned: nodes.apply_node_cordoned,
    events.NodeUncordoned: nodes.apply_node_uncordoned,
    events.GpuHealthChanged: nodes.apply_gpu_health_changed,
    events.EpochBegan: cluster.apply_epoch_began,
    events.EpochEnded: cluster.apply_epoch_ended,
    events.AccessChanged: cluster.apply_access_changed,
    events.TenantSet: cluster.apply_tenant_set,
    events.SplitSet: cluster.apply_split_set,
    events.SettingsChanged: cluster.apply_settings_changed,
}
