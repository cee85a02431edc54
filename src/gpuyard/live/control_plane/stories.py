"""The stories of tasks that the archive does not hold yet: their events, and when they held which GPUs.

The journal has every event, but it is ordered by time and does not keep events forever. Stories are kept beside the
views: in memory while a task is open, in snapshots, and in the archive with the ended task. Most stories are never read,
so their sentences are made by the reader: memory keeps the records, and the archive keeps them as the journal encodes them.

A story of more than `MOST_EVENTS` events keeps the first and the last ones.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from gpuyard.core.domain import events
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.values import MILLI, TaskId
from gpuyard.core.journal.codec import CODEC
from gpuyard.core.journal.records import JournalEntry, Record
from gpuyard.live.wire.story_answers import OF_TASKS, story_event, submission

MOST_EVENTS = 600
FIRST_EVENTS = 100
"""Number of events at the beginning that are always kept."""

RESUMED = "The task was resumed; it continues when there are GPUs for it."
"""What is said of a release that ends a suspension on request."""

_encode = msgspec.json.Encoder().encode


class _Named(msgspec.Struct):
    event: str


_read_name = msgspec.json.Decoder(_Named).decode
_PACKED = b'{"packed":'
"""How a packed story begins. Archives of earlier versions have stories as the API answers them."""


class _PackedStory(msgspec.Struct):
    """A story as the archive keeps it."""

    packed: list[msgspec.Raw]
    """Events of the journal as [number, payload], or events that were encoded for the API before."""
    submitted: tuple[float, str]
    """When the task was submitted, and by whom."""
    left_out: int


_read_packed = msgspec.json.Decoder(_PackedStory).decode
_read_event = msgspec.json.Decoder(tuple[int, msgspec.Raw]).decode


def unpacked(story: bytes) -> bytes:
    """Return the answer of the API for a story of the archive."""
    if not story.startswith(_PACKED):
        return story
    kept = _read_packed(story)
    told = [one if one.startswith(b"{") else _told(*_read_event(one)) for one in map(bytes, kept.packed)]
    return answered(*kept.submitted, told, kept.left_out)


def _told(seq: int, payload: msgspec.Raw) -> bytes:
    record = CODEC.decode(seq, bytes(payload))
    return _encode(story_event(record.event, record.at, record.by, seq))


def answered(submitted_at: float, by: str, told: list[bytes], left_out: int) -> bytes:
    """Return the answer of the API for the events of a task; its submission comes first."""
    first = _encode(submission(submitted_at, by))
    return b'{"events":[%s],"next_cursor":null,"left_out":%d}' % (b",".join([first, *told]), left_out)


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

    def packed(self, task: TaskId, submitted_at: float, by: str) -> bytes:
        """Return the story of a task for the archive; see `unpacked`."""
        story = self._stories.get(task)
        told, left_out = ([], 0) if story is None else (story.told, story.left_out)
        packed = b",".join([_packed(one) if isinstance(one, Record) else one for one in told])
        return b'%s[%s],"submitted":%s,"left_out":%d}' % (_PACKED, packed, _encode((submitted_at, by)), left_out)

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


def _packed(record: Record) -> bytes:
    payload = CODEC.encode(JournalEntry(record.at, record.event, record.by, record.request_id))
    return b"[%d,%s]" % (record.seq, payload)


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
