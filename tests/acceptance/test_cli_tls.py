"""`gpuyard server` with TLS from a settings file: clients trust only the configured authority."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from gpuyard.live.sdk import Unreachable, connect
from tests.acceptance.cli_cluster import GPUYARD
from tests.acceptance.waiting import until

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")


def certificate(folder: Path) -> tuple[Path, Path]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    command = ["openssl", *words.split(), "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return cert, key


def started_at(log: Path) -> str | None:
    """Where it listens, as its log says."""
    lines = log.read_text().splitlines() if log.exists() else []
    told = [json.loads(line) for line in lines if line.startswith("{")]
    return next((f"https://{line['http']}" for line in told if line["event"] == "scheduler_started"), None)


def test_a_server_with_tls_is_reached_by_clients_that_trust_it(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    file, log = tmp_path / "scheduler.yaml", tmp_path / "scheduler.log"
    file.write_text(
        json.dumps(
            {
                "server": {
                    "http_address": "127.0.0.1:0",
                    "grpc_address": "127.0.0.1:0",
                    "tls": {"cert": str(cert), "key": str(key)},
                },
                "storage": {"data_dir": str(tmp_path / "data")},
                "logging": {"output": str(log), "format": "json"},
            }
        )
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("GPUYARD_")}
    with subprocess.Popen([GPUYARD, "server", "--config", str(file)], env=env, cwd=tmp_path) as server:
        try:
            url = until(lambda: started_at(log), what="the scheduler listens")
            until(lambda: connect(url, token="", ca=str(cert)).gpus().total == 0, what="the first answer")
            with pytest.raises(Unreachable, match="GPUYARD_CA"):
                connect(url, token="").gpus()
            done = subprocess.run(
                [GPUYARD, "ps"],
                env={**env, "GPUYARD_SERVER": url, "GPUYARD_CA": str(cert)},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, "")
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
