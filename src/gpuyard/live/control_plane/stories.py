"""The stories of tasks that the archive does not hold yet: their events, and when they held which GPUs.

The journal has every event, but it is ordered by time and does not keep events forever. Stories are kept beside the
views: in memory while a task is open, in snapshots, and in the archive with the ended task. An event is encoded when it
is first needed, which for most is when their task is archived; until then the record is kept as it is.

A story of more than `MOST_EVENTS` events keeps the first and the last ones.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from gpuyard.core.domain import events
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.values import MILLI, TaskId
from gpuyard.core.journal.records import Record
from gpuyard.live.wire.story_answers import OF_TASKS, story_event

MOST_EVENTS = 600
FIRST_EVENTS = 100
"""Number of events at the beginning that are always kept."""

RESUMED = "The task was resumed; it continues when there are GPUs for it."
"""What is said of a release that ends a suspension on request."""

_encode = msgspec.json.Encoder().encode


class _Named(msgspec.Struct):
    event: str


_read_name = msgspec.json.Decoder(_Named).decode


class HeldSpan(msgspec.Struct, array_like=True, gc=False):
    """A time in which a task held GPUs."""

    attempt: int
    gpus: list[str]
    """As `NODE/INDEX`."""
    share: float
    """The part of each GPU that it held: 1 for whole GPUs."""
    started_at: float
    ended_at: float | None = None


class _Story:
    """One task."""

    __slots__ = ("left_out", "runs", "told")

    def __init__(self) -> None:
        self.told: list[Record | bytes] = []
        self.runs: list[HeldSpan] = []
        self.left_out = 0


class Stories:
    """The stories of all tasks in the views."""

    def __init__(self) -> None:
        self._stories: dict[TaskId, _Story] = {}

    def hear(self, record: Record) -> None:
        """Add a committed event. The submission is left out: the task itself says it."""
        event = record.event
        if type(event) not in OF_TASKS:
            return
        task: TaskId = event.task  # type: ignore[attr-defined]
        if isinstance(event, events.TaskSubmitted):
            return
        story = self._stories.get(task)
        if story is None:
            story = self._stories[task] = _Story()
        if isinstance(event, events.TaskReleased) and _is_suspended(story.told):
            resumed = replace(story_event(event, record.at, record.by, record.seq), text=RESUMED)
            story.told.append(_encode(resumed))
        else:
            story.told.append(record)
        if len(story.told) > MOST_EVENTS:
            gone = MOST_EVENTS // 6
            del story.told[FIRST_EVENTS : FIRST_EVENTS + gone]
            story.left_out += gone
        if type(event) in _OF_RUNS:
            _keep_run(story.runs, event, record.at)

    def events_of(self, task: TaskId) -> tuple[list[bytes], int]:
        """Return the events of a task after its submission as JSON, and how many were left out."""
        story = self._stories.get(task)
        if story is None:
            return [], 0
        told = story.told
        for place, one in enumerate(told):
            if isinstance(one, Record):
                told[place] = _encode(story_event(one.event, one.at, one.by, one.seq))
        return [one for one in told if isinstance(one, bytes)], story.left_out

    def runs_of(self, task: TaskId) -> list[HeldSpan]:
        """Return when a task held GPUs, oldest first; the last one may not have ended."""
        story = self._stories.get(task)
        return [] if story is None else story.runs

    def forget(self, tasks: Iterable[TaskId]) -> None:
        """Forget tasks that the archive now holds."""
        for task in tasks:
            self._stories.pop(task, None)

    def dump(self, task: TaskId) -> dict[str, Any]:
        """Return the story of a task for a snapshot; empty if nothing has happened since its submission."""
        story = self._stories.get(task)
        if story is None:
            return {}
        told, left_out = self.events_of(task)
        return {
            "story": [one.decode() for one in told],
            "left_out": left_out,
            "runs": msgspec.to_builtins(story.runs),
        }

    def load(self, task: TaskId, row: dict[str, Any]) -> None:
        """Load what `dump` returned; an older snapshot has no stories."""
        if not row.get("story"):
            return
        story = self._stories[task] = _Story()
        story.told = [one.encode() for one in row["story"]]
        story.left_out = row["left_out"]
        story.runs = msgspec.convert(row["runs"], list[HeldSpan])


def _is_suspended(told: list[Record | bytes]) -> bool:
    """Whether the last attempt is suspended by now."""
    names = (events.name_of(one.event) if isinstance(one, Record) else _read_name(one).event for one in reversed(told))
    return next((name for name in names if name in _STEPS), "") == events.name_of(events.AttemptSuspended)


def _keep_run(runs: list[HeldSpan], event: events.Event, at: float) -> None:
    if isinstance(event, events.TaskPlaced | events.AttemptResuming):
        runs.append(HeldSpan(event.attempt, *_gpus(event.placement), at))
        if len(runs) > MOST_EVENTS:
            del runs[FIRST_EVENTS]
    elif isinstance(event, events.AttemptRecovered):
        if runs:
            runs[-1].ended_at = None
    elif runs and runs[-1].ended_at is None:
        runs[-1].ended_at = at


def _gpus(placement: Placement) -> tuple[list[str], float]:
    gpus = [f"{part.node}/{gpu}" for part in placement.slices for gpu in part.gpus]
    return gpus, max((part.milli for part in placement.slices), default=0) / MILLI


_OF_RUNS: frozenset[type[events.Event]] = frozenset(
    {
        events.TaskPlaced,
        events.AttemptResuming,
        events.AttemptRecovered,
        events.AttemptSuspended,
        events.AttemptEnded,
    }
)
_STEPS = frozenset(events.name_of(kind) for kind in _OF_RUNS)
"""Names of the events that tell whether a task holds GPUs."""
