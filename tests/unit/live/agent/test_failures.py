"""Messages of an agent about a scheduler that is lost or unreachable."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from gpuyard.live.agent import failures, main
from gpuyard.live.agent.settings import load_agent_settings
from tests.unit.live.agent.fake_scheduler import PATIENCE_SECONDS, TOKEN, fake_scheduler, meanwhile


def broken(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details, None)


REFUSED = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:9090: Failed to connect to remote host: connect: Connection refused (111)"
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("code", "details", "stood", "sentence"),
    [
        (UNAVAILABLE, REFUSED, False, "No process listens at h:9090."),
        (UNAVAILABLE, "Cancelling all calls", True, "The scheduler closed the connection."),
        (UNAVAILABLE, "Socket closed", True, "The scheduler closed the connection."),
        (grpc.StatusCode.UNKNOWN, "Stream removed (Socket closed)", True, "The scheduler closed the connection."),
        (UNAVAILABLE, "Socket closed", False, "The process that listens at h:9090 closed the connection."),
        (UNAVAILABLE, "keepalive watchdog timeout", True, "h:9090 did not answer in time."),
        (UNAVAILABLE, "DNS resolution failed for h:9090: C-ares status", False, "The host name h cannot be resolved."),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded", False, "h:9090 did not answer in time."),
        (UNAVAILABLE, "The disk is full.", False, "The disk is full."),
        (grpc.StatusCode.FAILED_PRECONDITION, "This session has ended.", True, "This session has ended."),
    ],
)
def test_grpc_failures_are_reported_in_plain_sentences(
    code: grpc.StatusCode, details: str, stood: bool, sentence: str
) -> None:
    error = broken(code, details)
    assert failures.sentence(error, "h:9090", stood=stood) == sentence
    assert failures.raw(error) == f"{code.name}: {details}"


def test_a_broken_connection_is_logged_as_lost_and_then_as_unreachable(work_dir: Path) -> None:
    async def story() -> list[dict[str, str]]:
        async with AsyncExitStack() as stack:
            scheduler, address = await stack.enter_async_context(fake_scheduler())
            env = {
                "GPUYARD_AGENT__JOIN_TOKEN": TOKEN,
                "GPUYARD_AGENT__HEARTBEAT_INTERVAL": "100ms",
                "GPUYARD_SCHEDULER__MASTER_ADDRESS": address,
                "GPUYARD_SCHEDULER__RETRY_INTERVAL": "100ms",
                "GPUYARD_GPU__VIRTUAL": "1",
                "GPUYARD_EXECUTOR__WORK_DIR": str(work_dir),
            }
            with capture_logs() as logs:
                async with meanwhile(main.run(load_agent_settings(None, env))), asyncio.timeout(PATIENCE_SECONDS):
                    await scheduler.heartbeats.get()
                    await stack.aclose()
                    while not any(line["event"] == "scheduler_connection_failed" for line in logs):
                        await asyncio.sleep(0.01)
            told = [
                dict(line)
                for line in logs
                if line["event"] in {"scheduler_disconnected", "scheduler_connection_failed"}
            ]
            assert told[1]["message"] == f"No process listens at {address}."
            return told

    gone, _, *_ = asyncio.run(story())
    assert (gone["event"], gone["message"]) == ("scheduler_disconnected", "The scheduler closed the connection.")
    assert gone["error"].startswith("UNAVAILABLE: ")
