"""`gpuyard show` of a task with predictions."""

import sys

import pytest

from gpuyard import cli
from gpuyard.live.wire.task_answers import ForecastAnswer
from tests.unit.live.sdk.fake_server import fake_server, task


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
    with fake_server(lambda line: line.say(task(forecasts=[forecast]))) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "show", "task-7", "--server", server.url, "--token", ""])
        assert cli.main() == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["forecasts", "H200 1m30s (1m00s to 2m00s), 4,096 MiB"] in lines


def test_an_expected_run_time_is_shown_with_its_range(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = task(estimated_seconds=90.0, estimated_low_seconds=60.0, estimated_high_seconds=1200.0)
    with fake_server(lambda line: line.say(told)) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "show", "task-7", "--server", server.url, "--token", ""])
        assert cli.main() == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert ["estimated_seconds", "90 (60 to 1,200)"] in lines
    assert "estimated_low_seconds" not in {line[0] for line in lines}
