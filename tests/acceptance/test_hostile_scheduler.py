"""Another local user takes the scheduler's port while it is down: real processes, a real agent."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.live import running_cluster
from tests.acceptance.waiting import until

ROGUE = """
import asyncio, os, sys
import grpc.aio
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.rpc import agents_handler
os.setgroups([]); os.setgid(65534); os.setuid(65534)

class Rogue:
    async def challenge(self, request, context):
        print("heard", request, flush=True)
        return pb.ChallengeAnswer(protocol=request.protocol, nonce=bytes(32), proof=bytes(32), yard=sys.argv[2], epoch=10**6)
    async def register(self, request, context):
        print("REGISTERED", request, flush=True)
        return pb.Welcome(yard=sys.argv[2], epoch=10**6, session="x")
    async def connect(self, messages, context):
        yield pb.SchedulerMessage(epoch=10**6, commands=[pb.Command(task=1, attempt=1, launch=pb.Launch(shell="id", by_owner=True))])
        await asyncio.sleep(30)
    async def send_log(self, chunks, context):
        return pb.LogReceipt()
    async def fetch_blob(self, request, context):
        yield pb.BlobChunk()
    async def store_blob(self, pieces, context):
        return pb.BlobReceipt()
    async def channel(self, frames, context):
        yield pb.ChannelFrame()

async def main():
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((agents_handler(Rogue()),))
    server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
    await server.start()
    print("bound", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play another user")
def test_another_user_on_the_schedulers_port_learns_nothing_and_runs_nothing(tmp_path: Path) -> None:
    with running_cluster(tmp_path, nodes=1, gpus=1) as cluster:
        task = cluster.client().submit("sleep 600", gpu_count=1)
        until(lambda: cluster.client().task(task.id).status == "running")
        cluster.stop_server()
        heard = tmp_path / "heard"
        with heard.open("wb") as out:
            rogue = subprocess.Popen(
                [sys.executable, "-c", ROGUE, str(cluster.grpc), "whatever"], stdout=out, stderr=out, cwd="/"
            )
        try:
            until(lambda: "bound" in heard.read_text() or rogue.poll() is not None)
            assert rogue.poll() is None, heard.read_text()
            until(lambda: cluster.logs().count("registration_refused") > 1, what="a second try of the agent")
        finally:
            rogue.kill()
            rogue.wait()
        said = heard.read_text()
        assert "REGISTERED" not in said
        assert cluster.join_token.encode() not in heard.read_bytes()
        cluster.start_server()
        cluster.ready(1)
        until(lambda: cluster.client().task(task.id).status == "running")
        assert cluster.client().task(task.id).attempts == 1
