"""`gpuyard lease`: told to stop while the lease is asked for."""

import os
import signal
import subprocess
import sys
import threading

from gpuyard.domain.values import TaskStatus
from gpuyard.wire.answers import LeaseAnswer
from tests.unit.sdk.partner import Answering, partner

LEASE = LeaseAnswer(
    id="task-7", task_id="task-7", status=TaskStatus.PENDING, gpu_count=1, gpus=[], node_id=None, name="",
    tenant_id="default", user="ann", created_at="2026-11-15T12:00:00Z", started_at=None, expires_at=None, finished_at=None, reason=None,
)  # fmt: skip


def test_a_lease_that_is_asked_for_while_its_asker_is_told_to_stop_is_given_back() -> None:
    client = threading.Event()
    pids: list[int] = []

    def behave(line: Answering) -> None:
        if line.asked.method == "POST":
            client.wait(30)
            os.kill(pids[0], signal.SIGTERM)
            line.say(LEASE, 201)
        else:
            line.say({"status": "cancelled", "message": "It was given back."})

    with partner(behave) as server:
        words = [sys.executable, "-m", "gpuyard.cli", "lease", "--server", server.url]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as lease:
            pids.append(lease.pid)
            client.set()
            _, said = lease.communicate(timeout=60)
    assert lease.returncode == 130, said
    assert [asked.method for asked in server.asked] == ["POST", "DELETE"]
