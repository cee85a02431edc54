"""The events of one task, from its submission to its end."""

import msgspec

from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.lookup import SAME, find_answer, read_answer
from gpuyard.live.control_plane.rest.query import Parameter, counted, number
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.wire.story_answers import StoryAnswer, StoryEvent, known_event
from gpuyard.live.wire.task_answers import TaskAnswer

USUAL_LIMIT = 1000
"""More than a story has, so that one page is enough unless the client asks for less."""


class _RawStory(msgspec.Struct, frozen=True):
    events: list[msgspec.Raw]
    next_cursor: str | None
    left_out: int


_read_story = msgspec.json.Decoder(_RawStory).decode


def _read_cursor(value: str) -> int:
    try:
        return number(1, 2**31)(value)
    except ValueError:
        raise ValueError("it must be the next_cursor of the page before, unchanged") from None


PARAMETERS = (
    *SAME,
    counted("limit", f"Number of events on a page (default: {USUAL_LIMIT}).", 1, USUAL_LIMIT),
    Parameter("cursor", "The next_cursor of the previous page.", _read_cursor),
)


async def get_story(context: AppContext, request: Request) -> Response:
    """Return the events of a task, oldest first."""
    task, answer = await find_answer(context, request)
    story = await context.scheduler.queries.story(task)
    if story is None:
        return json_response(StoryAnswer(_known(read_answer(answer)), None))
    first, limit = request.query.get("cursor", 0), request.query.get("limit", USUAL_LIMIT)
    if not first and limit == USUAL_LIMIT:
        return Response(story)
    told = _read_story(story)
    cursor = str(first + limit) if first + limit < len(told.events) else None
    return json_response(_RawStory(told.events[first : first + limit], cursor, told.left_out))


def _known(told: TaskAnswer) -> list[StoryEvent]:
    """Return what the result of a task tells; an older version has archived the task without its events."""
    found = [known_event("TaskSubmitted", told.created_at, "The task was submitted.", by=told.created_by)]
    if told.started_at is not None:
        text = f"Attempt {told.attempts} started."
        found.append(known_event("AttemptStarted", told.started_at, text, attempt=told.attempts, node_id=told.node_id))
    if told.finished_at is not None:
        text = f"The task ended: {told.status}."
        found.append(known_event("TaskEnded", told.finished_at, text, cause=told.reason, cause_code=told.reason_code))
    return found
