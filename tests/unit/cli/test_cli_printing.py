"""How answers look: tables in a pipe are plain, foreign text cannot control a terminal."""

import pytest

from gpuyard.cli.output.printing import format_seconds, print_pairs, print_table, seconds_since


def test_a_table_in_a_pipe_is_plain_and_complete(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("ID", "GPUS", "NAME"), [("task-1", 2, "x" * 300), ("task-10", 16, None)], right=("GPUS",))

    lines = capsys.readouterr().out.splitlines()
    assert lines == ["ID       GPUS  NAME", f"task-1      2  {'x' * 300}", "task-10    16  –"]


def test_foreign_text_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME",), [("evil\x1b[2J\nname",)])
    print_pairs([("name", "a\rb"), ("empty", None), ("list", ["x\x07", "y"])])

    assert capsys.readouterr().out == "NAME\nevil�[2J�name\nname  a�b\nlist  x� y\n"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, ""),
        (0.4, "0s"),
        (59, "59s"),
        (61, "1m01s"),
        (3599, "59m"),
        (3660, "1h01m"),
        (90000, "1d1h"),
        (2592000, "30d"),
    ],
)
def test_durations_are_short(seconds: float | None, words: str) -> None:
    assert format_seconds(seconds) == words


@pytest.mark.parametrize(("seconds", "words"), [(0.94, "0.9s"), (0.00071, "0s"), (2.0, "2s"), (9.96, "9s")])
def test_the_run_time_of_a_short_task_is_not_rounded_to_zero(seconds: float, words: str) -> None:
    assert format_seconds(seconds, fine=True) == words


def test_a_duration_stops_with_the_task() -> None:
    assert seconds_since("2026-01-01T00:00:00.500000Z", "2026-01-01T00:01:00.000000Z") == 59.5
    assert seconds_since(None) is None
