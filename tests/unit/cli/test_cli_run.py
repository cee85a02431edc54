"""`gpuyard run`: Ctrl-C while the task is being submitted, and exit codes."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from gpuyard.cli.run import exit_code_of
from gpuyard.core.domain.values import TaskStatus
from tests.unit.live.sdk.fake_server import Answering, fake_server, task


def test_ctrl_c_during_a_submission_cancels_the_task_as_soon_as_it_is_known() -> None:
    heard, client = threading.Event(), threading.Event()
    pids: list[int] = []

    def behave(line: Answering) -> None:
        if line.asked.method == "POST":
            client.wait(30)
            os.kill(pids[0], signal.SIGINT)
            heard.wait(30)
            line.say(task(status=TaskStatus.RUNNING), 201)
        elif line.asked.method == "DELETE":
            line.say({"id": "task-7", "task_id": "task-7", "status": "cancelled", "message": "It is cancelled."})
        else:
            line.say(task(status=TaskStatus.CANCELLED))

    with fake_server(behave) as server:
        words = [sys.executable, "-m", "gpuyard.cli", "run", "--server", server.url, "--", "sleep", "100"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as run:
            pids.append(run.pid)
            client.set()
            assert run.stderr is not None
            first = run.stderr.readline()
            heard.set()
            _, rest = run.communicate(timeout=60)
    assert "is being submitted and will be cancelled" in first
    assert "task-7 is being cancelled" in rest
    assert run.returncode == 130
    assert "DELETE" in [asked.method for asked in server.asked]


@pytest.mark.parametrize(
    ("status", "number", "code"),
    [("cancelled", None, 130), ("cancelled", 15, 130), ("timeout", 15, 124), ("failed", 15, 143), ("success", None, 0)],
)
def test_the_status_decides_the_exit_code_before_the_signal(status: str, number: int | None, code: int) -> None:
    assert exit_code_of(task(status=TaskStatus(status), signal=number), silent=True) == code
