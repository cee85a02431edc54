"""The codec: events of any age are read, and what cannot be read says why."""

import math
from typing import Any

import msgspec
import pytest

from gpuyard.core.domain.errors import JournalDamaged, JournalError, JournalFromFuture
from gpuyard.core.domain.events import (
    EVENTS,
    ClusterCreated,
    Event,
    OrphanedAttemptEnded,
    OrphanedAttemptFound,
    ReservationMade,
    TaskHeld,
    TaskReleased,
    name_of,
)
from gpuyard.core.domain.values import NodeId, TaskId
from gpuyard.core.journal.codec import CODEC, UPGRADES, Codec
from gpuyard.core.journal.records import JournalEntry, Record

HELD = JournalEntry(12.5, TaskHeld(TaskId(7)), "alice")


def test_an_event_is_written_as_json_that_describes_itself() -> None:
    assert CODEC.encode(HELD) == b'{"v":1,"at":12.5,"fact":{"type":"TaskHeld","task":7},"by":"alice"}'
    assert CODEC.decode(3, CODEC.encode(HELD)) == Record(3, 12.5, TaskHeld(TaskId(7)), "alice")


def test_fields_at_their_default_are_left_out() -> None:
    assert (
        CODEC.encode(JournalEntry(1.0, ClusterCreated("lab")))
        == b'{"v":1,"at":1.0,"fact":{"type":"YardFounded","yard":"lab"}}'
    )


def test_an_old_event_is_upgraded_step_by_step_and_a_new_one_is_not() -> None:
    def ids_became_numbers(raw: dict[str, Any]) -> dict[str, Any]:
        return raw | {"task": int(raw["task"].removeprefix("task-"))}

    def job_was_renamed_task(raw: dict[str, Any]) -> dict[str, Any]:
        return {"type": raw["type"], "task": raw["job"]}

    codec = Codec({("TaskHeld", 1): job_was_renamed_task, ("TaskHeld", 2): ids_became_numbers})

    for old in (
        b'{"v":1,"at":12.5,"fact":{"type":"TaskHeld","job":"task-7"},"by":"alice"}',
        b'{"v":2,"at":12.5,"fact":{"type":"TaskHeld","task":"task-7"},"by":"alice"}',
        b'{"v":3,"at":12.5,"fact":{"type":"TaskHeld","task":7},"by":"alice"}',
    ):
        assert codec.decode(3, old) == Record(3, 12.5, TaskHeld(TaskId(7)), "alice")
    assert codec.encode(HELD).startswith(b'{"v":3,')
    assert codec.encode(JournalEntry(1.0, TaskReleased(TaskId(7)))).startswith(b'{"v":1,')


def test_an_upgrade_applies_even_where_the_old_event_would_fit_the_new_type() -> None:
    codec = Codec({("TaskHeld", 1): lambda raw: raw | {"task": raw["task"] + 1000}})

    assert codec.decode(1, CODEC.encode(HELD)).event == TaskHeld(TaskId(1007))


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (b'{"v":1,"at":1.0,"fact":{"type":"MoonLanded","on":"moon"}}', ["MoonLanded", "version 1", "Event 9"]),
        (
            b'{"v":4,"at":1.0,"fact":{"type":"TaskHeld","task":7}}',
            ["TaskHeld", "version 4", "up to version 1", "Event 9"],
        ),
        (b'{"v":1,"at":1.0,"fact":{"type":"TaskHeld","task":7,"until":5.0}}', ["TaskHeld", "until", "Event 9"]),
        (b'{"v":1,"at":1.0,"fact":{"type":"TaskHeld","task":7},"epoch":3}', ["TaskHeld", "epoch", "Event 9"]),
        (
            b'{"v":1,"at":1.0,"fact":{"type":"GpuHealthChanged","node":"n","gpu":0,"health":"dusty"}}',
            ["GpuHealthChanged", "dusty", "Event 9"],
        ),
    ],
)
def test_an_event_of_a_future_version_is_named(payload: bytes, words: list[str]) -> None:
    with pytest.raises(JournalFromFuture) as caught:
        CODEC.decode(9, payload)
    assert all(word in str(caught.value) for word in words)
    assert "newer" in str(caught.value)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"nonsense",
        b"\xff\xfe",
        b"[1,2]",
        b'"v"',
        b"{}",
        b'{"v":1,"at":1.0}',
        b'{"v":0,"at":1.0,"fact":{"type":"TaskHeld","task":7}}',
        b'{"v":"1","at":1.0,"fact":{"type":"TaskHeld","task":7}}',
        b'{"v":1,"at":1.0,"fact":{"task":7}}',
        b'{"v":1,"at":1.0,"fact":{"type":"TaskHeld","task":"seven"}}',
        b'{"v":1,"at":null,"fact":{"type":"TaskHeld","task":7}}',
        b'{"v":1,"at":1.0,"fact":{"type":"TaskHeld"}}',
        b"[" * 5000,
    ],
)
def test_garbage_is_damage(payload: bytes) -> None:
    with pytest.raises(JournalDamaged, match=r"^Event 9 .*\.$"):
        CODEC.decode(9, payload)


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_numbers_json_lacks_are_refused_before_writing(number: float) -> None:
    with pytest.raises(JournalError, match="not finite"):
        CODEC.encode(JournalEntry(number, TaskHeld(TaskId(7))))
    with pytest.raises(JournalError, match="not finite"):
        CODEC.encode(JournalEntry(1.0, ReservationMade(TaskId(7), (), number)))


def test_null_is_a_value_like_any_other() -> None:
    entry = JournalEntry(1.0, ReservationMade(TaskId(7), (NodeId("null"),), None))

    assert CODEC.decode(1, CODEC.encode(entry)).event == entry.event


def test_text_json_lacks_is_refused_before_writing() -> None:
    with pytest.raises(JournalError, match="cannot be written"):
        CODEC.encode(JournalEntry(1.0, ClusterCreated("\ud800")))


def test_only_listed_events_are_written() -> None:
    class Rumour(Event, frozen=True):
        what: str

    with pytest.raises(JournalError, match="Rumour is not listed"):
        CODEC.encode(JournalEntry(1.0, Rumour("?")))


def test_upgrades_are_of_events_that_exist_and_leave_no_version_out() -> None:
    names = {name_of(event) for event in EVENTS}
    assert {name for name, _ in UPGRADES} <= names
    for name in names:
        versions = sorted(version for upgraded, version in UPGRADES if upgraded == name)
        assert versions == list(range(1, len(versions) + 1))


def test_the_tag_is_called_type() -> None:
    assert {event.__struct_config__.tag_field for event in EVENTS} == {"type"}
    renamed = {event: name_of(event) for event in EVENTS if name_of(event) != event.__name__}
    assert renamed == {
        ClusterCreated: "YardFounded", OrphanedAttemptFound: "RemainsFound", OrphanedAttemptEnded: "RemainsEnded",
    }  # fmt: skip
    assert msgspec.json.decode(CODEC.encode(HELD))["fact"]["type"] == "TaskHeld"
