"""The settings files of the two legacy systems work unchanged; only unsafe values are refused."""

import os
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpuyard.live.agent import main as agent_main
from gpuyard.live.agent.settings import load_agent_settings
from gpuyard.live.control_plane.settings import load_server_settings
from gpuyard.live.sdk import Refused, connect
from gpuyard.live.wire.config import WrongSettings
from tests.acceptance.live import GPUYARD, Cluster
from tests.acceptance.waiting import until
from tests.ports import free_port

OF_002 = """
system:
  host: "0.0.0.0"
  port: 8080
  log_level: "info"
  log_file: ""
gpu:
  enabled: true
  devices: [0, 1, 2, 3]
  max_memory_percent: 95
  max_compute_percent: 95
  check_interval: 5
scheduler:
  algorithm: "least_used"
  queue_size: 100
  interval: 500
  task_timeout: 3600
  preemptive: false
tenants:
  default: {max_gpus: 1, max_memory_per_gpu: 0, priority: 50}
  high_priority: {max_gpus: 2, max_memory_per_gpu: 16000, priority: 80}
  low_priority: {max_gpus: 1, max_memory_per_gpu: 8000, priority: 30}
monitor:
  enabled: true
  interval: 10
  retention: 24
  http_api: true
  http_port: 8081
"""
OF_003 = """
server:
  grpc_address: ":19090"
  http_address: ":18080"
scheduler:
  role: "master"
  schedule_interval: 5
  snapshot_interval: 30
replication:
  enabled: false
  peer_address: ""
  heartbeat_interval: 2
  heartbeat_timeout: 6
quota:
  online_percent: 0.7
  batch_percent: 0.3
agent:
  heartbeat_timeout: 15
storage:
  snapshot_dir: "./test-local/scheduler"
  shared_storage: "./test-local/shared"
logging:
  level: "info"
  format: "text"
  output: "stdout"
"""
AGENT_OF_003 = """
agent:
  id: ""
  heartbeat_interval: 5
scheduler:
  master_address: "localhost:19090"
  standby_address: ""
  connection_timeout: 10
  retry_interval: 2
  max_retry_interval: 30
gpu:
  detection_method: "nvidia-smi"
  health_check_interval: 30
executor:
  execution_method: "process"
  work_dir: "./test-local/tasks"
  docker:
    socket: "/var/run/docker.sock"
    default_image: "nvidia/cuda:12.0-runtime-ubuntu22.04"
logging:
  level: "info"
  format: "text"
  output: "stdout"
"""


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", [OF_002, OF_003])
def test_only_the_open_address_without_a_login_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(WrongSettings) as wrong:
        load_server_settings(written(tmp_path, "scheduler.yaml", text), {})
    lines = str(wrong.value).splitlines()
    [complaint] = [line for line in lines if "server.grpc_address" not in line]
    assert all("would not be encrypted" in line for line in lines if line != complaint)
    assert "without a login. Set auth.enabled: true and add users, or listen on 127.0.0.1." in complaint
    assert f"line {3 if text is OF_002 else 4}: " in complaint


def test_an_address_in_the_environment_replaces_the_one_in_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "scheduler.yaml", OF_002)
    settings = load_server_settings(path, {"GPUYARD_SERVER__HTTP_ADDRESS": "127.0.0.1:18080"})
    assert (settings.http_address, settings.monitor_address) == ("127.0.0.1:18080", "127.0.0.1:8081")
    assert settings.scheduler.queue_size == 100
    assert settings.schedule_seconds == 0.5


def test_the_legacy_agent_file_is_accepted(tmp_path: Path) -> None:
    settings = load_agent_settings(written(tmp_path, "agent.yaml", AGENT_OF_003), {})
    assert settings.executor.docker.default_image


def test_up_with_the_legacy_single_machine_file_runs_a_task_on_its_gpus(tmp_path: Path) -> None:
    """`gpuyard up -config FILE`, with one dash; SIGHUP does not end it."""
    path = written(tmp_path, "scheduler.yaml", OF_002)
    http, monitor = free_port(), free_port()
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GPUYARD_")},
        "GPUYARD_MONITOR__HTTP_PORT": str(monitor),
        "GPUYARD_GPU__DEVICES": "[1, 3]",
    }
    command = [*GPUYARD, "up", "-config", str(path), "--data-dir", str(tmp_path / "data")]
    command += [
        "--http-address",
        f"127.0.0.1:{http}",
        "--grpc-address",
        "127.0.0.1:0",
        "--virtual-gpus",
        "4:RTX4090:24",
    ]
    running_cluster = Cluster(tmp_path)
    with (tmp_path / "up.err").open("wb") as out:
        running_cluster.server = subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)
    try:
        client = connect(f"http://127.0.0.1:{http}", token="")
        until(lambda: _gpus(client) == 2, 40, f"two GPUs of four\n{running_cluster.logs()}")
        assert {gpu.memory for gpu in client.gpus().gpus} == {24576 * 95 // 100}
        done = client.wait(client.submit("echo $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", gpu_count=1), timeout=30)
        assert (done.status, done.timeout) == ("success", 3600)
        assert b"".join(client.logs(done)).strip() == b"95"
        assert connect(f"http://127.0.0.1:{monitor}", token="").gpus().total == 2
        running_cluster.kill(running_cluster.server, signal.SIGHUP)
        log = tmp_path / "data" / "logs" / "scheduler.log"
        until(lambda: "signal_ignored" in log.read_text(), what="the log says so")
        assert client.gpus().total == 2
    finally:
        running_cluster.end()


def _says(log: Path, words: str) -> bool:
    return words in log.read_text()


def _gpus(client: Any) -> int:
    try:
        total: int = client.gpus().total
    except Exception:
        return 0
    return total


def test_a_scheduler_with_the_legacy_cluster_file_accepts_a_local_agent_without_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent finds the token that the scheduler has drawn where schedulers keep it."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "join_token").write_text("drawn\n")
    monkeypatch.setattr(agent_main, "data_folders", lambda: [tmp_path / "nowhere", data])
    settings = load_agent_settings(written(tmp_path, "agent.yaml", AGENT_OF_003), {})
    assert agent_main.join_token_of(settings, tmp_path / "tasks") == "drawn"
    elsewhere = AGENT_OF_003.replace('"localhost:19090"', '"scheduler-master:9090"\n  plain: true')
    settings = load_agent_settings(written(tmp_path, "agent.yaml", elsewhere), {})
    assert agent_main.join_token_of(settings, tmp_path / "tasks") == ""


def test_a_wrong_token_is_answered_with_the_place_of_the_right_one_and_sighup_stops_neither(tmp_path: Path) -> None:
    running_cluster = Cluster(tmp_path, scheduler={"auth": {}})
    try:
        running_cluster.start_server()
        running_cluster.join_token = "wrong"
        running_cluster.start_agent("node-1")
        until(lambda: "or the file join_token in its data folder" in running_cluster.logs(), 30, "the sentence")
        for process, log in ((running_cluster.agents["node-1"], "node-1.log"), (running_cluster.server, "server.log")):
            running_cluster.kill(process, signal.SIGHUP)
            until(partial(_says, tmp_path / log, "signal_ignored"), what=f"{log} says so")
            assert process is not None
            assert process.poll() is None
    finally:
        running_cluster.end()


def test_a_task_beyond_the_queue_limit_is_refused_with_the_key(tmp_path: Path) -> None:
    running_cluster = Cluster(tmp_path, scheduler={"scheduler": {"queue_size": 3}})
    try:
        running_cluster.start_server()
        client = running_cluster.ready(0)
        for _ in range(3):
            client.submit("true", gpu_count=1)
        with pytest.raises(Refused, match=r"limit of 3 \(scheduler\.queue_size\)") as refused:
            client.submit("true", gpu_count=1)
        assert refused.value.code == "QueueFull"
        with pytest.raises(Refused, match="queue_size"):
            client.submit("true", gpu_count=1, array=2)
        client.cancel("task-1")
        client.submit("true", gpu_count=1)
    finally:
        running_cluster.end()
