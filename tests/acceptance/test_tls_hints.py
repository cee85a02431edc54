"""TLS failures name the cause and what to change: agents and clients against real servers."""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from gpuyard.live.agent.settings import AgentTlsSection
from gpuyard.live.agent.tls import what_is_wrong
from gpuyard.live.sdk import Unreachable, connect
from gpuyard.live.sdk.errors import NotGpuyard
from tests.acceptance.cli_cluster import GPUYARD
from tests.acceptance.waiting import until
from tests.ports import free_port

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificates with openssl")


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three certificates that sign themselves: `here` is for 127.0.0.1, `there` for another name, `agent` for an agent."""
    folder = tmp_path_factory.mktemp("pem")
    for name, names in (("here", "IP:127.0.0.1"), ("there", "DNS:gpu.example"), ("agent", "DNS:agent.example")):
        words = f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -addext subjectAltName={names}"
        files = ["-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]
        subprocess.run(["openssl", *words.split(), *files], check=True, capture_output=True, timeout=60)
    return folder


@contextmanager
def agents_port(pem: Path, name: str = "", client_ca: str = "") -> Iterator[str]:
    """A gRPC server with this certificate, or with none."""
    server = grpc.server(ThreadPoolExecutor(1))
    if name:
        pair = ((pem / f"{name}.key").read_bytes(), (pem / f"{name}.pem").read_bytes())
        ca = (pem / f"{client_ca}.pem").read_bytes() if client_ca else None
        credentials = grpc.ssl_server_credentials([pair], ca, require_client_auth=bool(client_ca))
        port = server.add_secure_port("127.0.0.1:0", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def tls(pem: Path, ca: str, own: str = "") -> AgentTlsSection:
    return AgentTlsSection(
        ca=str(pem / f"{ca}.pem"),
        cert=str(pem / f"{own}.pem") if own else "",
        key=str(pem / f"{own}.key") if own else "",
    )


def test_a_plain_text_agent_is_told_that_the_scheduler_requires_tls(pem: Path) -> None:
    with agents_port(pem, "here") as address:
        assert what_is_wrong(AgentTlsSection(), address).startswith(
            f"The scheduler at {address} uses TLS and this agent does not. Set tls.ca"
        )


def test_an_agent_with_tls_is_told_that_the_port_is_plain_text(pem: Path) -> None:
    with agents_port(pem) as address:
        told = what_is_wrong(tls(pem, "here"), address)
    assert told.startswith(f"The process that listens at {address} does not use TLS, but this agent has tls.ca.")
    assert "server.tls.cert" in told
    assert "scheduler.plain: true" in told


def test_an_agent_that_trusts_another_authority_is_told_which_file_to_change(pem: Path) -> None:
    with agents_port(pem, "here") as address:
        told = what_is_wrong(tls(pem, "there"), address)
    assert "is not signed by the authority in tls.ca" in told
    assert str(pem / "there.pem") in told


def test_an_agent_that_uses_a_name_not_in_the_certificate_is_told_so(pem: Path) -> None:
    with agents_port(pem, "there") as address:
        told = what_is_wrong(tls(pem, "there"), address)
    assert "is for another host name than 127.0.0.1" in told
    assert "scheduler.master_address" in told


def test_an_agent_without_a_required_certificate_is_told_so(pem: Path) -> None:
    with agents_port(pem, "here", client_ca="agent") as address:
        assert "set tls.cert and tls.key." in what_is_wrong(tls(pem, "here"), address)
        assert "does not accept this agent's certificate" in what_is_wrong(tls(pem, "here", own="there"), address)
        assert what_is_wrong(tls(pem, "here", own="agent"), address) == ""


def test_no_tls_hint_is_given_for_other_errors(pem: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    assert what_is_wrong(AgentTlsSection(), nobody) == what_is_wrong(tls(pem, "here"), nobody) == ""
    with agents_port(pem) as plain, agents_port(pem, "here") as secret:
        assert what_is_wrong(AgentTlsSection(), plain) == what_is_wrong(tls(pem, "here"), secret) == ""


@contextmanager
def process(folder: Path, kind: str, settings: object) -> Iterator[Path]:
    """`gpuyard server` or `gpuyard agent` with this file; its log."""
    file, log = folder / f"{kind}.yaml", folder / f"{kind}.log"
    file.write_text(json.dumps(settings))
    env = {name: value for name, value in os.environ.items() if not name.startswith("GPUYARD_")}
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [GPUYARD, kind, "--config", str(file)], env=env, cwd=folder, stdout=output, stderr=subprocess.STDOUT
        ) as started,
    ):
        try:
            yield log
        finally:
            started.send_signal(signal.SIGTERM)
            started.wait(60)


def said(log: Path, event: str) -> dict[str, str] | None:
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return next((line for line in lines if line["event"] == event), None)


def test_agents_and_clients_connect_to_a_real_scheduler_with_tls(pem: Path, tmp_path: Path) -> None:
    server = {
        "http_address": "127.0.0.1:0",
        "grpc_address": "127.0.0.1:0",
        "tls": {"cert": str(pem / "here.pem"), "key": str(pem / "here.key")},
    }
    with process(tmp_path, "server", {"server": server, "storage": {"data_dir": str(tmp_path / "data")}}) as log:
        started = until(lambda: said(log, "scheduler_started"), what="the scheduler listens")
        agent = {
            "agent": {"id": "n1", "join_token": "any"},
            "scheduler": {"master_address": f"127.0.0.1:{started['grpc_port']}"},
            "gpu": {"virtual": "1"},
            "executor": {"work_dir": str(tmp_path / "work")},
        }
        with process(tmp_path, "agent", agent) as agents_log:
            told = until(lambda: said(agents_log, "scheduler_connection_failed"), what="the agent says why")
        assert "uses TLS and this agent does not. Set tls.ca" in told["message"]
        for line in (*log.read_text().splitlines(), *agents_log.read_text().splitlines()):
            assert line.startswith("{"), "gRPC's own lines do not stand between ours"

        address = started["http"]
        with pytest.raises(NotGpuyard, match=f"uses TLS; use https://{address}"):
            connect(f"http://{address}", token="").gpus()
        with pytest.raises(NotGpuyard, match=f"uses TLS; use https://{address}"):
            connect(f"http://{address}", token="").submit("true", gpu_count=1)
        with pytest.raises(Unreachable, match="GPUYARD_CA"):
            connect(f"https://{address}", token="", ca=str(pem / "there.pem")).gpus()
        port = address.rpartition(":")[2]
        with pytest.raises(Unreachable, match="is for another host name than localhost"):
            connect(f"https://localhost:{port}", token="", ca=str(pem / "here.pem")).gpus()


def test_a_client_with_tls_at_a_plain_port_is_told_to_use_http(tmp_path: Path) -> None:
    server = {"http_address": "127.0.0.1:0", "grpc_address": "127.0.0.1:0"}
    with process(tmp_path, "server", {"server": server, "storage": {"data_dir": str(tmp_path / "data")}}) as log:
        started = until(lambda: said(log, "scheduler_started"), what="the scheduler listens")
        with pytest.raises(Unreachable, match=r"does not use TLS; try an address that begins with http://"):
            connect(f"https://{started['http']}", token="").gpus()
