"""`gpuyard ps`: how long a task has run."""

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuyard import cli
from gpuyard.core.domain.values import TaskStatus
from gpuyard.live.wire.answers import TaskList
from tests.unit.live.sdk.fake_server import fake_server, task

VERY_LONG_AGO = (datetime.now(UTC) - timedelta(days=9)).isoformat()
LONG_AGO = (datetime.now(UTC) - timedelta(days=2, minutes=30)).isoformat()
"""Before the tests began; they take less than half an hour."""


@pytest.mark.parametrize(
    ("status", "changed", "ran"),
    [
        (TaskStatus.PENDING, {}, "–"),
        (TaskStatus.PENDING, {"started_at": LONG_AGO, "attempts": 1, "run_seconds": 90.0}, "1m30s"),
        (TaskStatus.PENDING, {"started_at": LONG_AGO, "attempts": 1}, "–"),
        (TaskStatus.SUSPENDED, {"started_at": LONG_AGO, "attempts": 1, "run_seconds": 45.0}, "45s"),
        (TaskStatus.RUNNING, {"started_at": LONG_AGO, "attempts": 1}, "2d"),
        (
            TaskStatus.RUNNING,
            {"started_at": VERY_LONG_AGO, "running_since": LONG_AGO, "ran_before_seconds": 10_800.0, "attempts": 1},
            "2d3h",
        ),
    ],
)
def test_the_time_that_a_task_waits_after_it_ran_is_not_run_time(
    status: TaskStatus,
    changed: dict[str, Any],
    ran: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with fake_server(lambda line: line.say(TaskList([task(7, status, reason="why", **changed)], 1, None))) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "ps", "--server", server.url])
        assert cli.main() == 0
    head, row = capsys.readouterr().out.splitlines()
    assert (head.split()[-2:], row.split()[-2:]) == (["RAN", "REASON"], [ran, "why"])
