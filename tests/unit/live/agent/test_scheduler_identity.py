"""An agent reveals no secrets, obeys only the scheduler of its own cluster, and reconnects in time."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio

from gpuyard.live.agent import link, peer
from gpuyard.live.agent.agent_state import AgentState, AgentStateFile
from gpuyard.live.agent.supervisor import messages, paths
from gpuyard.live.agent.supervisor.clock import now
from gpuyard.live.agent.supervisor.fence import FenceTable
from gpuyard.live.agent.supervisor_client import SupervisorClient
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire import proof
from gpuyard.live.wire.rpc import agents_handler
from tests.unit.live.agent.fake_scheduler import PATIENCE_SECONDS, TOKEN, PlayedScheduler, fake_scheduler, node


class Rogue(PlayedScheduler):
    """An attacker on the scheduler's port: it records every byte and tries to run `id`."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[bytes] = []
        self.challenged = asyncio.Event()

    async def challenge(self, request: pb.ChallengeRequest, context: Any) -> pb.ChallengeAnswer:
        self.heard.append(request.SerializeToString())
        self.challenged.set()
        self.token = "a guess"
        return await super().challenge(request, context)

    async def register(self, request: pb.SignedRegistration, context: Any) -> pb.Welcome:
        self.heard.append(request.SerializeToString())
        return await super().register(request, context)


async def _is_refused_by(scheduler: PlayedScheduler, agent: link.AgentLink, address: str) -> str:
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await agent._connect(address)
    except link.RegistrationRefused as refusal:
        return str(refusal)
    raise AssertionError(f"{scheduler} was obeyed")


def test_a_process_on_the_schedulers_port_learns_no_token_and_is_not_obeyed(work_dir: Path) -> None:
    async def story() -> None:
        rogue = Rogue()
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((agents_handler(rogue),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with node(work_dir) as (scheduler, agent):
            await scheduler.heartbeats.get()
            sentence = await _is_refused_by(rogue, agent, f"127.0.0.1:{port}")
            assert "does not know the join token of this node" in sentence
            assert rogue.registrations == []
            assert not any(TOKEN.encode() in said for said in rogue.heard)
        await server.stop(None)

    asyncio.run(story())


def test_a_scheduler_of_another_cluster_is_refused_with_the_command_that_admits_it(work_dir: Path) -> None:
    async def story() -> None:
        async with node(work_dir) as (scheduler, agent), fake_scheduler() as (other, address):
            await scheduler.heartbeats.get()
            other.yard = "rebuilt"
            sentence = await _is_refused_by(other, agent, address)
            assert "--accept-cluster rebuilt" in sentence
            assert other.registrations == []

    asyncio.run(story())


def test_an_agent_that_accepts_another_cluster_forgets_the_old_one(work_dir: Path) -> None:
    state_file = AgentStateFile(work_dir, "boot")
    state_file.memory = AgentState(state_file.memory.instance, "old", seq=9, epoch=4, origin=5, task=77)
    state_file.belong_to("new")
    again = AgentStateFile(work_dir, "boot")
    assert again.memory == AgentState(state_file.memory.instance, "new")


def test_a_second_scheduler_of_the_same_epoch_is_not_obeyed(work_dir: Path) -> None:
    async def story() -> None:
        async with node(work_dir) as (scheduler, agent), fake_scheduler() as (twin, address):
            await scheduler.heartbeats.get()
            twin.origin = 8
            assert "--take-over" in await _is_refused_by(twin, agent, address)
            assert agent._state_file.memory.origin == scheduler.origin
            (shown,) = twin.registrations
            assert (shown.epoch, shown.origin) == (1, scheduler.origin), "it is shown whom the node obeys"

    asyncio.run(story())


def test_a_scheduler_that_takes_over_is_told_of_the_other_one_of_its_epoch(work_dir: Path) -> None:
    """Only then can it begin an epoch above both."""

    async def story() -> None:
        async with node(work_dir) as (scheduler, agent), fake_scheduler() as (twin, address):
            await scheduler.heartbeats.get()
            twin.origin = 8
            assert "--take-over" in await _is_refused_by(twin, agent, address), "it has not begun another epoch"
            (told,) = twin.registrations
            assert (told.epoch, told.origin) == (1, 7)
            twin.epoch = 2
            connecting = asyncio.create_task(agent._connect(address))
            await twin.heartbeats.get()
            connecting.cancel()

    asyncio.run(story())


def test_an_extended_lease_for_a_planned_absence_ends_when_the_agent_is_back(work_dir: Path) -> None:
    """The scheduler counts again from the registration on: no fenced attempt may outlive what it counts."""

    async def story() -> None:
        async with SupervisorClient(work_dir / "supervisor") as processes:
            processes.send(messages.Renew(295.0))  # as an agent that announces its absence does
            table = FenceTable(work_dir / "supervisor" / paths.TABLE)
            while table.lease_end < now() + 200.0:
                await asyncio.sleep(0.01)
        async with node(work_dir) as (scheduler, _):
            await scheduler.heartbeats.get()
            assert 0.0 < table.lease_end - now() <= 12.0

    asyncio.run(story())


def test_attempts_are_reported_with_their_origin_and_their_gpus(work_dir: Path) -> None:
    async def story() -> None:
        async with node(work_dir) as (scheduler, agent):
            await scheduler.heartbeats.get()
            launch = pb.Launch(shell="sleep 600", by_owner=True, gpus=[1, 3])
            scheduler.say(pb.Command(task=1, attempt=1, origin=77, launch=launch))
            report = await scheduler.hears_of(1, "started")
            assert (report.origin, 0.0 <= report.seconds_ago < PATIENCE_SECONDS) == (77, True)
            (told,) = agent._relay.attempts()
            assert (told.task, told.attempt, told.origin, list(told.gpus)) == (1, 1, 77, [1, 3])
            scheduler.say(pb.Command(task=1, attempt=1, origin=78, stop=pb.Stop()))  # another one's attempt
            scheduler.say(pb.Command(task=1, attempt=1, origin=77, stop=pb.Stop()))
            while True:
                ended = await scheduler.hears_of(1, "ended")
                if ended.origin == 77:
                    break
            assert ended.ended.outcome == pb.Ended.STOPPED

    asyncio.run(story())


def test_an_agent_that_stops_on_purpose_says_so_and_waits_for_the_acknowledgement(work_dir: Path) -> None:
    async def story() -> None:
        async with node(work_dir) as (scheduler, agent):
            await scheduler.heartbeats.get()
            leaving = asyncio.create_task(agent.say_goodbye())
            async with asyncio.timeout(PATIENCE_SECONDS):
                goodbye = await scheduler.goodbyes.get()
            assert goodbye.back_within_seconds == 300.0
            assert not leaving.done()
            scheduler.say(goodbye=True)
            await leaving

    asyncio.run(story())


def test_back_off_leaves_time_to_reconnect_with_any_settings(work_dir: Path) -> None:
    async def story() -> None:
        async with node(work_dir) as (scheduler, agent):
            await scheduler.heartbeats.get()
            assert agent._state_file.memory.offline_after_seconds == 15.0
            longest = agent._in_time(600.0) + agent._in_time(600.0, 2 * 1) * 2
            assert longest < 15.0, "a pause and a try at every address are over before the node is given up"

    asyncio.run(story())


def test_nonces_are_valid_once_for_a_minute_and_for_one_agent() -> None:
    nonces, mine = proof.NonceIssuer(), proof.new_nonce()
    nonce = nonces.give(mine, now=100.0)
    assert nonces.is_good(nonce, mine, now=101.0)
    assert not nonces.is_good(nonce, proof.new_nonce(), now=101.0)
    assert not nonces.is_good(nonce, mine, now=161.0)
    assert not nonces.is_good(nonce[:-1] + bytes([nonce[-1] ^ 1]), mine, now=101.0)
    assert not nonces.is_good(b"", mine, now=101.0)
    assert not proof.NonceIssuer().is_good(nonce, mine, now=101.0)
    nonces.use(nonce, now=101.0)
    assert not nonces.is_good(nonce, mine, now=101.0)


def test_a_process_of_another_user_on_the_schedulers_port_is_not_contacted(work_dir: Path) -> None:
    async def story() -> None:
        async with node(work_dir) as (scheduler, agent):
            await scheduler.heartbeats.get()
            memory = agent._state_file.memory
            memory.scheduler_uid = 998
            agent._uid_of_listener = lambda _: 65534
            heard = len(scheduler.registrations)
            sentence = await _is_refused_by(scheduler, agent, agent._options.addresses[0])
            assert "--accept-cluster yard" in sentence
            assert len(scheduler.registrations) == heard
            assert peer.refused(998, "a:1", memory) == peer.refused(0, "a:1", memory) == ""
            assert peer.refused(os.geteuid(), "a:1", memory) == peer.refused(None, "a:1", memory) == ""
            agent._options = replace(agent._options, accept_cluster="yard")
            assert await agent._listener(agent._options.addresses[0]) == 65534, (
                "the administrator has said that it is right"
            )

    asyncio.run(story())


def test_the_kernel_names_the_local_listener(work_dir: Path) -> None:
    async def story() -> None:
        async with node(work_dir) as (scheduler, agent):
            await scheduler.heartbeats.get()
            assert await asyncio.to_thread(peer.uid_of_listener, agent._options.addresses[0]) == os.geteuid()
        assert await asyncio.to_thread(peer.uid_of_listener, "127.0.0.1:1") is None

    asyncio.run(story())


def test_a_cluster_accepted_by_mistake_does_not_erase_the_right_one(work_dir: Path) -> None:
    async def story() -> None:
        async with node(work_dir) as (scheduler, agent), fake_scheduler() as (other, address):
            await scheduler.heartbeats.get()
            before = agent._state_file.memory
            agent._options = replace(agent._options, accept_cluster="a typing error")
            other.yard = "rebuilt"
            assert "--accept-cluster rebuilt" in await _is_refused_by(other, agent, address)
            assert agent._state_file.memory is before
            agent._options = replace(agent._options, accept_cluster="rebuilt")
            connecting = asyncio.create_task(agent._connect(address))
            await other.heartbeats.get()
            assert (agent._state_file.memory.cluster_id, other.registrations[0].epoch) == ("rebuilt", 0)
            connecting.cancel()

    asyncio.run(story())
