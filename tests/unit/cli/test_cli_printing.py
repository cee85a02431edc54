"""How answers look: tables in a pipe are plain, text of others can not do anything to a terminal."""

import pytest

from gpuyard.cli.explain import in_words
from gpuyard.cli.printing import print_pairs, print_table, seconds_since, spoken_seconds
from gpuyard.domain.values import TaskStatus
from gpuyard.wire.answers import ExplainAnswer


def test_a_table_in_a_pipe_is_plain_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("ID", "GPUS", "NAME"), [("task-1", 2, "x" * 300), ("task-10", 16, None)], right=("GPUS",))

    lines = capsys.readouterr().out.splitlines()
    assert lines == ["ID       GPUS  NAME", f"task-1      2  {'x' * 300}", "task-10    16  –"]


def test_what_others_wrote_can_not_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME",), [("evil\x1b[2J\nname",)])
    print_pairs([("name", "a\rb"), ("empty", None), ("list", ["x\x07", "y"])])

    assert capsys.readouterr().out == "NAME\nevil�[2J�name\nname  a�b\nlist  x� y\n"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, ""), (0.4, "0s"), (59, "59s"), (61, "1m01s"), (3599, "59m"), (3660, "1h01m"), (90000, "1d1h")],
)
def test_durations_are_short(seconds: float | None, words: str) -> None:
    assert spoken_seconds(seconds) == words


def test_a_duration_ends_with_the_task() -> None:
    assert seconds_since("2026-01-01T00:00:00.500000Z", "2026-01-01T00:01:00.000000Z") == 59.5
    assert seconds_since(None) is None


def explanation(**said: object) -> ExplainAnswer:
    usual: dict[str, object] = {
        "task_id": "task-7",
        "status": TaskStatus.PENDING,
        "reason": "No GPU is free.",
        "reason_code": "NoRoom",
        "ahead": 0,
        "starts_at": None,
        "starts_low": None,
        "starts_high": None,
        "nodes": [],
    }
    return ExplainAnswer(**{**usual, **said})  # type: ignore[arg-type]


def test_why_a_task_waits_is_told_in_words() -> None:
    assert in_words(explanation(ahead=1))[:2] == ["task-7 is pending. No GPU is free.", "1 task goes before it."]
    assert "Nobody can say" in in_words(explanation())[-1]


def test_an_expected_start_has_its_band() -> None:
    told = in_words(
        explanation(
            starts_at="2026-01-02T00:00:00.000000Z",
            starts_low="2026-01-01T00:00:00.000000Z",
            starts_high="2026-01-03T00:00:00.000000Z",
            nodes=["node-1"],
        )
    )
    assert "on node-1, between" in told[-1]


def test_a_task_that_runs_says_where() -> None:
    told = in_words(explanation(status=TaskStatus.RUNNING, reason=None, nodes=["a", "b"]))
    assert told == ["task-7 is running.", "Its GPUs are on a and b."]
