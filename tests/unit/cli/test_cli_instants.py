"""Times as people write them."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from gpuyard.cli.input.instants import instant_in, past_instant_in, spoken_instant

NOW = datetime(2026, 11, 19, 20, 30)  # noqa: DTZ001 - a Thursday, local time


@pytest.fixture(autouse=True)
def _in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("now", "2026-11-19 20:30"),
        ("now+2h", "2026-11-19 22:30"),
        ("now + 1d", "2026-11-20 20:30"),
        ("21:00", "2026-11-19 21:00"),
        ("16:00", "2026-11-20 16:00"),
        ("9pm", "2026-11-19 21:00"),
        ("12am", "2026-11-20 00:00"),
        ("today 18:00", "2026-11-19 18:00"),
        ("tomorrow", "2026-11-20 00:00"),
        ("Tomorrow 9:00", "2026-11-20 09:00"),
        ("fri 18:00", "2026-11-20 18:00"),
        ("Friday", "2026-11-20 00:00"),
        ("thu 21:00", "2026-11-19 21:00"),
        ("thursday 18:00", "2026-11-26 18:00"),
        ("2026-12-24", "2026-12-24 00:00"),
        ("2026-12-24 18:30", "2026-12-24 18:30"),
        ("2026-12-24T18:30:05", "2026-12-24 18:30:05"),
        ("2026-12-24T18:30:00Z", "2026-12-24 19:30"),
        ("2026-07-01 18:00+00:00", "2026-07-01 20:00"),
    ],
)
def test_a_time_means_the_next_such_instant_in_local_time(text: str, meant: str) -> None:
    expected = datetime.fromisoformat(meant).astimezone()
    assert instant_in(text, NOW) == expected


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("now", "2026-11-19 20:30"),
        ("10m", "2026-11-19 20:20"),
        ("1h30m", "2026-11-19 19:00"),
        ("now-2h", "2026-11-19 18:30"),
        ("now - 1d", "2026-11-18 20:30"),
        ("14:30", "2026-11-19 14:30"),
        ("14:30:05", "2026-11-19 14:30:05"),
        ("21:00", "2026-11-18 21:00"),
        ("9pm", "2026-11-18 21:00"),
        ("6am", "2026-11-19 06:00"),
        ("today", "2026-11-19 00:00"),
        ("yesterday 9:00", "2026-11-18 09:00"),
        ("fri 18:00", "2026-11-13 18:00"),
        ("thu 18:00", "2026-11-19 18:00"),
        ("thursday 21:00", "2026-11-12 21:00"),
        ("2026-11-19T18:30:00Z", "2026-11-19 19:30"),
        ("2026-11-18 18:00", "2026-11-18 18:00"),
    ],
)
def test_of_the_past_a_time_means_the_last_such_instant(text: str, meant: str) -> None:
    assert past_instant_in(text, NOW) == datetime.fromisoformat(meant).astimezone()


@pytest.mark.parametrize(
    "text", ["", "18", "soon", "tomorrow", "now+1h", "2026-11-19 20:31", "10x", "25:00", "-", "yesterday 9"]
)
def test_what_is_no_time_of_the_past_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        past_instant_in(text, NOW)
    assert len(str(refused.value)) > 10


def test_days_are_counted_on_the_calendar_when_the_clock_changes() -> None:
    before = datetime(2026, 10, 24, 12, 0)  # noqa: DTZ001 - clocks go back in the next night
    assert instant_in("tomorrow 12:00", before) - before.astimezone() == timedelta(hours=25)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "18",
        "soon",
        "yesterday",
        "fri 25:00",
        "fri 18",
        "13pm",
        "2026-02-30",
        "now+-2h",
        "t 18:00",
        "12:60",
        "x" * 99,
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        instant_in(text, NOW)
    assert len(str(refused.value)) > 10


def test_an_instant_is_spoken_with_its_zone() -> None:
    assert spoken_instant(instant_in("fri 18:00", NOW)) == "Fri 2026-11-20 18:00 CET"
    assert spoken_instant(datetime(2026, 7, 1, 12, 0, 5, tzinfo=UTC)) == "Wed 2026-07-01 12:00:05 UTC"
