"""`gpuyard show`: details, what has happened, and the last lines of the output of a task that failed."""

import sys
from typing import Any

import pytest

from gpuyard import cli
from gpuyard.cli.output.screen import Screen
from gpuyard.cli.show import story_lines
from gpuyard.core.domain.values import TaskStatus
from gpuyard.live.wire.story_answers import StoryAnswer, StoryEvent
from gpuyard.live.wire.task_answers import ForecastAnswer
from tests.unit.live.sdk.fake_server import Answering, fake_server, refusal, task

SUBMITTED = {"at": "2026-01-01T12:00:00Z", "event": "TaskSubmitted", "text": "The task was submitted."}
ENDED = {
    "at": "2026-01-01T14:30:00Z",
    "event": "AttemptEnded",
    "text": "Attempt 1 failed.",
    "data": {"outcome": "failed"},
}


def event(**changed: Any) -> StoryEvent:
    usual: dict[str, Any] = {
        "cause": None,
        "cause_code": None,
        "attempt": None,
        "node_id": None,
        "by": "",
        "seq": None,
        "data": {},
    }
    return StoryEvent(**{**usual, **changed})


def shown(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    told: Any,
    output: bytes | None = b"",
    words: tuple[str, ...] = ("show", "task-7"),
) -> list[str]:
    """The lines of a command about a task with this output; None: its node is not connected."""

    def answer(line: Answering) -> None:
        path = line.asked.path.partition("?")[0]
        if path.endswith("/events"):
            line.say(StoryAnswer([event(**SUBMITTED, by="ann"), event(**ENDED, by="agent:n1")], None))
        elif path.endswith("/logs"):
            line.say(refusal("NodeUnreachable", "Node n1 is not connected."), 503) if output is None else line.say(
                output
            )
        elif path.endswith("/explain"):
            line.say({"task_id": "task-7", "status": told.status, "reason": told.reason, "reason_code": None, "ahead": 0,
                      "starts_at": None, "starts_low": None, "starts_high": None, "nodes": told.node_ids})  # fmt: skip
        else:
            line.say(told)

    with fake_server(answer) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", *words, "--server", server.url, "--token", ""])
        assert cli.main() == 0
    return capsys.readouterr().out.splitlines()


def failed(**changed: Any) -> Any:
    return task(
        status=TaskStatus.FAILED, reason="It ended with exit code 3.", started_at="2026-01-01T12:30:00Z", attempts=1,
        node_ids=["n1"], **changed,
    )  # fmt: skip


def test_a_prediction_is_shown_in_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    forecast = ForecastAnswer(
        gpu_model="H200",
        seconds=90.0,
        low_seconds=60.0,
        high_seconds=120.0,
        memory_mib=4096.0,
        memory_low_mib=4000.0,
        memory_high_mib=4200.0,
        utilization=None,
    )
    lines = [line.split(maxsplit=1) for line in shown(monkeypatch, capsys, task(forecasts=[forecast]))]
    assert ["forecasts", "H200 1m30s (1m00s to 2m00s), 4,096 MiB"] in lines


def test_an_expected_run_time_is_shown_with_its_range(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = task(estimated_seconds=90.0, estimated_low_seconds=60.0, estimated_high_seconds=1200.0)
    lines = [line.split(maxsplit=1) for line in shown(monkeypatch, capsys, told)]
    assert ["estimated_seconds", "90 (60 to 1,200)"] in lines
    assert "estimated_low_seconds" not in {line[0] for line in lines if line}


def test_the_story_says_when_what_and_who() -> None:
    events = [event(**SUBMITTED, by="ann"), event(**ENDED, cause="Its node was lost.", by="agent:n1")]
    first, second = story_lines(events, Screen(80, 24, colors=False, moves=False))
    assert first.endswith("  The task was submitted. [ann]")
    assert second.endswith("  +2h30m  Attempt 1 failed. Its node was lost.")
    painted = story_lines(events, Screen(80, 24, colors=True, moves=True))[1]
    assert "\x1b[31mAttempt 1 failed." in painted


@pytest.mark.parametrize("command", ["show", "explain"])
def test_a_failed_task_shows_the_end_of_its_output(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = b"".join(b"line %d\n" % number for number in range(30)) + b"progress 1%\rprogress 2%\r\n\x1b[2Jbad\n"
    lines = shown(monkeypatch, capsys, failed(), output, (command, "task-7"))
    place = lines.index("The last lines of its output (gpuyard logs task-7):")
    assert lines[place + 1 :] == [*(f"  line {number}" for number in range(22, 30)), "  progress 2%", "  �[2Jbad"]


@pytest.mark.parametrize(
    ("output", "said"),
    [(b"", "It has written nothing."), (None, "Its output is not available now. Node n1 is not connected.")],
)
def test_a_missing_output_is_said(
    output: bytes | None, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(monkeypatch, capsys, failed(), output)[-1] == said


def test_a_task_that_succeeded_shows_no_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = task(status=TaskStatus.SUCCESS, started_at="2026-01-01T12:30:00Z", attempts=1)
    assert shown(monkeypatch, capsys, told, b"secret\n")[-1].endswith("Attempt 1 failed.")


def test_several_tasks_are_shown_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(monkeypatch, capsys, task(), words=("show", "7-8", "7"))
    assert sum(line.startswith("id ") for line in lines) == 2
    assert len(shown(monkeypatch, capsys, task(), words=("show", "7", "8", "--json"))) == 2
