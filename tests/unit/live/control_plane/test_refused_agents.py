"""Log lines about refused agents, and how few of them strangers can cause."""

from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from structlog.testing import capture_logs

from gpuyard.live.control_plane.nodes import refused_agents
from gpuyard.live.control_plane.nodes.refused_agents import ANSWER_SECONDS, MOST_NAMES, QUIET_SECONDS, RefusedAgents
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire import proof
from gpuyard.live.wire.rpc import PROTOCOL, AgentsStub
from gpuyard.testing.fake_node import register_node
from tests.unit.live.control_plane.clusters import TOKEN, open_scheduler, run, until
from tests.unit.live.control_plane.test_agent_registration import Hand, registration


def lines(logs: Any) -> list[Any]:
    return [line for line in logs if line["event"] == "agent_refused"]


def test_a_wrong_token_and_a_duplicate_agent_are_logged(tmp_path: Path) -> None:
    async def story() -> None:
        with capture_logs() as logs:
            async with open_scheduler(tmp_path) as (_, address), grpc.aio.insecure_channel(address) as channel:
                hand = Hand(address)
                await hand.joins()
                for token, more in (("wrong", {}), (TOKEN, {"instance": "another"})):
                    with pytest.raises(grpc.aio.AioRpcError):
                        await register_node(AgentsStub(channel), registration(**more), token)
        wrong, double = lines(logs)
        assert (wrong["why"], wrong["peer"].rpartition(":")[0]) == ("WrongJoinToken", "ipv4:127.0.0.1")
        assert (double["why"], double["node"]) == ("NameTaken", "n")
        assert "Give each agent its own agent.id" in double["message"]

    run(story)


def test_an_agent_that_disconnects_after_the_challenge_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_agents, "ANSWER_SECONDS", 0.1)

    async def story() -> None:
        with capture_logs() as logs:
            async with open_scheduler(tmp_path) as (_, address), grpc.aio.insecure_channel(address) as channel:
                asked = pb.ChallengeRequest(protocol=PROTOCOL, node="n7\n", nonce=proof.new_nonce())
                await AgentsStub(channel).challenge(asked)
                await until(lambda: lines(logs))
        (line,) = lines(logs)
        assert (line["why"], line["node"]) == ("BrokeOff", "n7?")
        assert "agent.join_token" in line["message"]

    run(story)


def test_an_agent_that_registers_after_the_challenge_is_not_logged() -> None:
    refused = RefusedAgents()
    with capture_logs() as logs:
        refused.challenged(0.0, b"nonce", "n", "ipv4:10.0.0.1:5")
        refused.answered(b"nonce")
        refused.look(2 * ANSWER_SECONDS)
    assert not logs


def test_an_address_has_one_log_line_per_minute_whatever_names_it_uses() -> None:
    refused = RefusedAgents()
    with capture_logs() as logs:
        for second in range(180):
            refused.refused(float(second), "WrongJoinToken", "No.", peer=f"ipv4:10.0.0.1:{second}", node=f"n{second}")
    assert [line["node"] for line in logs] == ["n0", "n60", "n120"]
    assert [line.get("left_out") for line in logs] == [None, 59, 59]


def test_a_proven_node_keeps_its_log_line_despite_strangers_at_its_address() -> None:
    refused = RefusedAgents()
    with capture_logs() as logs:
        refused.refused(0.0, "WrongJoinToken", "No.", peer="ipv4:10.0.0.1:5", node="n")
        refused.refused(1.0, "NameTaken", "No.", peer="ipv4:10.0.0.1:6", node="n", proven=True)
        refused.refused(2.0, "NameTaken", "No.", peer="ipv4:10.0.0.2:6", node="n", proven=True)
    assert [line["why"] for line in logs] == ["WrongJoinToken", "NameTaken"]


def test_many_addresses_fill_neither_the_log_nor_the_memory() -> None:
    refused = RefusedAgents()
    with capture_logs() as logs:
        for number in range(50 * MOST_NAMES):
            refused.refused(0.0, "OldChallenge", "No.", peer=f"ipv6:[2001:db8::{number:x}]:5")
            refused.challenged(0.0, number.to_bytes(32), "n", f"ipv6:[2001:db8::{number:x}]:5")
        refused.look(ANSWER_SECONDS + 1)
        assert len(logs) <= MOST_NAMES + 1
        refused.refused(QUIET_SECONDS + 1, "OldChallenge", "No.", peer="ipv4:10.0.0.1:5")
    assert len(logs) <= MOST_NAMES + 2
