"""`gpuyard usage` shows every figure of the API, and fits the terminal."""

import sys
from typing import Any

import msgspec
import pytest

from gpuyard import cli
from gpuyard.cli.output import screen
from gpuyard.cli.output.screen import Screen
from gpuyard.cli.usage import COLUMNS, RANKS
from gpuyard.live.wire.usage_answers import UsageAnswer, UsageFigures, UsageRow
from tests.unit.live.sdk.fake_server import fake_server

FIGURES: dict[str, Any] = {
    "tasks": 3, "gpu_hours": 812.5, "used_gpu_hours": 790.1, "idle_gpu_hours": 20.0, "failed_gpu_hours": 12.4,
    "preempted_gpu_hours": 3.75, "out_of_memory_gpu_hours": 0.6, "energy_kwh": 281.4, "wait_hours": 12.04,
}  # fmt: skip
ANSWER = UsageAnswer(
    "2026-01-01T00:00:00Z", "2026-01-08T00:00:00Z", ["tenant"],
    [UsageRow(tenant="lab", **FIGURES), UsageRow(tenant="", **FIGURES)], UsageFigures(**FIGURES),
)  # fmt: skip


def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with fake_server(lambda line: line.say(ANSWER)) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "usage", "--server", server.url])
        assert cli.main() == 0
    return capsys.readouterr().out.splitlines()


def test_the_columns_are_the_figures_of_the_api_and_of_the_dashboard() -> None:
    assert list(COLUMNS.values()) == [one.name for one in msgspec.structs.fields(UsageFigures)]
    assert set(RANKS) < set(COLUMNS)


def test_a_pipe_gets_all_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    head, lab, nobody, total = printed(monkeypatch, capsys)
    assert head.split() == [
        "TENANT",
        "TASKS",
        "GPU",
        "HOURS",
        "USED",
        "IDLE",
        "FAILED",
        "PREEMPTED",
        "OUT",
        "OF",
        "MEMORY",
        "KWH",
        "WAIT",
        "HOURS",
    ]
    assert lab.split() == ["lab", "3", "812.50", "790.10", "20.00", "12.40", "3.75", "0.60", "281.40", "12.04"]
    assert (nobody.split()[0], total.split()[0]) == ("–", "total")


@pytest.mark.parametrize(("width", "last"), [(120, "WAIT HOURS"), (60, "WAIT HOURS"), (40, "IDLE"), (20, "GPU HOURS")])
def test_a_narrow_terminal_gets_the_figures_that_matter_most(
    width: int, last: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(screen, "screen_of", lambda *_: Screen(width, 24, colors=False, moves=True))
    lines = printed(monkeypatch, capsys)
    assert max(map(len, lines)) <= width
    assert lines[0].endswith(last)
