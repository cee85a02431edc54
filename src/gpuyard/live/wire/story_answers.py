"""The events of one task as its story: when, what happened in one sentence, why, and where."""

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from gpuyard.core.domain import events
from gpuyard.core.domain.causes import Cause
from gpuyard.core.domain.values import Outcome, TaskStatus
from gpuyard.live.wire.event_answers import event_answer
from gpuyard.live.wire.limits import Instant, instant_of

_LEFT_OUT = frozenset({"type", "task_id", "reason", "reason_code", "attempt", "node_id", "task"})
"""Fields of the event stream that a story has under other names."""


class StoryEvent(Struct, frozen=True, kw_only=True):
    """One event of a task."""

    at: Instant
    event: str
    """The name of the event, as in the event stream."""
    text: str
    """What happened, in one sentence."""
    cause: str | None
    """Why, in one sentence; null: the event says it itself."""
    cause_code: str | None
    attempt: int | None
    node_id: str | None
    """The node, or the first node of a gang."""
    by: str
    """Who caused it; empty: the scheduler."""
    seq: int | None
    """The number of the event in the journal; null: it is known from the result of the task only."""
    data: dict[str, Any]
    """The other fields of the event."""


class StoryAnswer(Struct, frozen=True):
    """The events of a task, oldest first."""

    events: list[StoryEvent]
    next_cursor: str | None
    """Null: these are all."""
    left_out: int = 0
    """Number of events of a very long story that are not kept, between the first and the last ones."""


def story_event(event: events.Event, at: float, by: str, seq: int | None) -> StoryEvent:
    """Return an event of a task as part of its story."""
    told = event_answer(event, at, by)
    cause: Cause | None = getattr(event, "cause", None) or getattr(event, "because", None)
    nodes = told.get("node_ids") or [told.get("node_id")]
    return StoryEvent(
        at=instant_of(at),
        event=events.name_of(event),
        text=_SENTENCES[type(event)](event),
        cause=cause.sentence() if cause else None,
        cause_code=cause.why if cause else None,
        attempt=getattr(event, "attempt", None),
        node_id=nodes[0],
        by=by,
        seq=seq,
        data={name: value for name, value in told.items() if name not in _LEFT_OUT},
    )


def submission(at: float, by: str) -> StoryEvent:
    """Return the first event of a story. The task as it was submitted is left out: it is longer than all of its events."""
    return StoryEvent(
        at=instant_of(at),
        event=events.name_of(events.TaskSubmitted),
        text="The task was submitted.",
        cause=None,
        cause_code=None,
        attempt=None,
        node_id=None,
        by=by,
        seq=None,
        data={"status": TaskStatus.PENDING},
    )


def known_event(name: str, at: Instant, text: str, **more: Any) -> StoryEvent:
    """Return an event that is known from the result of a task only."""
    given: dict[str, Any] = {"cause": None, "cause_code": None, "attempt": None, "node_id": None, "by": "", **more}
    return StoryEvent(at=at, event=name, text=text, seq=None, data={}, **given)


_OUTCOMES = {
    Outcome.SUCCEEDED: "ended with exit code 0",
    Outcome.FAILED: "failed",
    Outcome.STOPPED: "was stopped",
    Outcome.LOST: "was lost with its node",
}


def _placed(event: events.TaskPlaced) -> str:
    return f"GPUs were assigned on {_names(event.placement.nodes)} for attempt {event.attempt}."


def _ended(event: events.AttemptEnded | events.MemberEnded) -> str:
    how = _OUTCOMES.get(event.outcome, str(event.outcome).replace("_", " "))
    if event.outcome is not Outcome.SUCCEEDED and event.signal is not None:
        how = f"{how} by signal {event.signal}"
    elif event.outcome is not Outcome.SUCCEEDED and event.exit_code is not None:
        how = f"{how} with exit code {event.exit_code}"
    what = f"The part on node {event.node}" if isinstance(event, events.MemberEnded) else f"Attempt {event.attempt}"
    return f"{what} {how}. {event.message}".strip()


def _extended(event: events.TaskExtended) -> str:
    if event.timeout_seconds is None:
        return "The deadline was raised."
    return f"The timeout was raised to {event.timeout_seconds:g} s."


def _requeued(event: events.TaskRequeued) -> str:
    more = f" The next attempt requests {event.gpu_memory_mib} MiB on each GPU." if event.gpu_memory_mib else ""
    return f"The task waits again.{more}"


def _reserved(event: events.ReservationMade) -> str:
    return f"{_names(event.nodes)} {'is' if len(event.nodes) == 1 else 'are'} reserved for it."


def _names(nodes: tuple[str, ...]) -> str:
    if len(nodes) == 1:
        return f"node {nodes[0]}"
    return f"nodes {', '.join(nodes[:4])}{f' and {len(nodes) - 4} more' if len(nodes) > 4 else ''}"


def _always(sentence: str) -> Callable[[Any], str]:
    return lambda _: sentence


_SENTENCES: dict[type[events.Event], Callable[[Any], str]] = {
    events.TaskSubmitted: _always("The task was submitted."),
    events.TaskHeld: _always("The task was put on hold."),
    events.TaskReleased: _always("The task was released."),
    events.PriorityChanged: lambda event: f"The priority was changed to {event.priority}.",
    events.EstimateRevised: _always("The estimated run time was replaced."),
    events.TaskExtended: _extended,
    events.TaskRequeued: _requeued,
    events.TaskEnded: lambda event: f"The task ended: {event.status}.",
    events.TaskPlaced: _placed,
    events.AttemptStarted: lambda event: f"Attempt {event.attempt} started.",
    events.AttemptRecovered: lambda event: f"Node {event.node} returned; attempt {event.attempt} continues.",
    events.AttemptSuspending: _always("The task is being suspended."),
    events.SuspensionFailed: lambda event: f"The task could not be suspended. {event.message}".strip(),
    events.AttemptSuspended: _always("The task was suspended; its GPUs are free."),
    events.AttemptResuming: lambda event: f"GPUs were assigned again on {_names(event.placement.nodes)}.",
    events.AttemptResumed: _always("The task runs again."),
    events.AttemptStopping: lambda event: f"Attempt {event.attempt} is being stopped.",
    events.MemberReady: lambda event: f"The part on node {event.node} is ready.",
    events.MemberEnded: _ended,
    events.AttemptEnded: _ended,
    events.ReservationMade: lambda event: _reserved(event)[0].upper() + _reserved(event)[1:],
    events.ReservationDropped: _always("The reservation was removed."),
    events.OrphanedAttemptFound: lambda event: f"Node {event.node} runs an attempt that the scheduler does not know.",
    events.OrphanedAttemptEnded: lambda event: f"Attempt {event.attempt} is gone from node {event.node}.",
}

OF_TASKS = frozenset(_SENTENCES)
"""The events that belong to the story of a task."""
