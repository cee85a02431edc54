"""A node votes where its scheduler says, and obeys no scheduler of an epoch below the one it has granted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from gpuyard.core.replication.messages import Canvass, CanvassAnswer, RequestVote, VoteGranted
from gpuyard.live.agent import main
from gpuyard.live.agent.agent_voter import AgentVoter
from gpuyard.live.agent.scheduler_addresses import reachable
from gpuyard.live.agent.settings import AgentSettings, load_agent_settings
from gpuyard.live.wire import agents_pb2 as pb
from tests.unit.live.agent.fake_scheduler import PATIENCE_SECONDS, PlayedScheduler, fake_scheduler, meanwhile
from tests.unit.live.voting.schedulers import TOKEN, AskingScheduler, asking_scheduler


def settings_of(work_dir: Path, address: str) -> AgentSettings:
    env = {
        "GPUYARD_AGENT__ID": "node-1",
        "GPUYARD_AGENT__JOIN_TOKEN": TOKEN,
        "GPUYARD_AGENT__HEARTBEAT_INTERVAL": "100ms",
        "GPUYARD_SCHEDULER__MASTER_ADDRESS": address,
        "GPUYARD_SCHEDULER__RETRY_INTERVAL": "100ms",
        "GPUYARD_SCHEDULER__MAX_RETRY_INTERVAL": "200ms",
        "GPUYARD_GPU__VIRTUAL": "2",
        "GPUYARD_EXECUTOR__WORK_DIR": str(work_dir),
    }
    return load_agent_settings(None, env)


@asynccontextmanager
async def leader() -> AsyncIterator[tuple[PlayedScheduler, str]]:
    async with fake_scheduler() as (scheduler, address):
        scheduler.token = TOKEN
        yield scheduler, address


async def logged(logs: list[EventDict], event: str) -> EventDict:
    """Wait until this event is in the log."""
    while True:
        for entry in logs:
            if entry["event"] == event:
                return entry
        await asyncio.sleep(0.01)


async def granted(scheduler: AskingScheduler, epoch: int) -> VoteGranted:
    """Ask for a vote until it is granted: the voter waits for a lease after its start."""
    while True:
        answer = await scheduler.ask(RequestVote(scheduler.name, epoch))
        if isinstance(answer, VoteGranted):
            return answer
        await asyncio.sleep(0)


@pytest.mark.slow
def test_a_node_votes_where_its_scheduler_says_also_when_no_scheduler_leads_any_more(work_dir: Path) -> None:
    async def story() -> None:
        async with asking_scheduler("a#1", cluster="yard") as a, asyncio.timeout(PATIENCE_SECONDS):
            async with leader() as (scheduler, address):
                scheduler.voting = [f"0.0.0.0:{a.port}", a.address]
                settings = settings_of(work_dir, address)
                async with meanwhile(main.run(settings)):
                    first = await a.ask(Canvass("a#1"))
                    assert isinstance(first, CanvassAnswer)
                    assert first.voter.startswith("node-1#")
                    assert [hello.info for hello in a.met] == [{"kind": "agent", "node": "node-1"}]
                await a.left()
            async with meanwhile(main.run(settings)):
                again = await a.ask(Canvass("a#1"))
                assert isinstance(again, CanvassAnswer)
                assert again.voter == first.voter
                assert a.met[-1].cluster == "yard"

    asyncio.run(story())


@pytest.mark.slow
def test_a_node_that_is_told_no_address_does_not_vote(work_dir: Path) -> None:
    async def story() -> None:
        async with (
            asking_scheduler("a#1", cluster="yard") as a,
            leader() as (scheduler, address),
            asyncio.timeout(PATIENCE_SECONDS),
        ):
            async with meanwhile(main.run(settings_of(work_dir, address))):
                await scheduler.heartbeats.get()
                assert not (work_dir / "voter.json").exists()
            scheduler.voting = [a.address]
            async with meanwhile(main.run(settings_of(work_dir, address))):
                await a.connected()
            await a.left()
            scheduler.voting = []
            scheduler.heartbeats = asyncio.Queue()
            async with meanwhile(main.run(settings_of(work_dir, address))):
                await scheduler.heartbeats.get()
                await a.left()
                while b'"voting":[]' not in (work_dir / "agent.json").read_bytes():
                    await asyncio.sleep(0.01)

    asyncio.run(story())


@pytest.mark.slow
def test_a_node_obeys_no_scheduler_of_a_lower_epoch_than_the_one_it_has_granted(work_dir: Path) -> None:
    async def story() -> None:
        async with (
            asking_scheduler("a#1", cluster="yard", lease_seconds=0.05) as a,
            leader() as (scheduler, address),
            asyncio.timeout(PATIENCE_SECONDS),
        ):
            scheduler.voting = [a.address]
            settings = settings_of(work_dir, address)
            with capture_logs() as logs:
                async with meanwhile(main.run(settings)):
                    assert (await granted(a, 5)).epoch == 5
                    scheduler.say(pb.Command(task=1, attempt=1, origin=7, stop=pb.Stop()))
                    await logged(logs, "old_scheduler_ignored")
                async with meanwhile(main.run(settings)):
                    refusal = await logged(logs, "registration_refused")
                    assert "is at epoch 1, and the voter of this node has promised epoch 5" in refusal["message"]
                    scheduler.epoch, scheduler.heartbeats = 5, asyncio.Queue()
                    await scheduler.heartbeats.get()
            assert [registration.epoch for registration in scheduler.registrations] == [0, 1]

    asyncio.run(story())


def test_a_voter_starts_again_when_its_node_moves_to_another_cluster(tmp_path: Path) -> None:
    async def story() -> None:
        voter = AgentVoter(tmp_path, "node-1", TOKEN)
        async with (
            asking_scheduler("a#1", cluster="old", lease_seconds=0.05) as a,
            asking_scheduler("b#1", cluster="new") as b,
            meanwhile(voter.run()),
            asyncio.timeout(PATIENCE_SECONDS),
        ):
            voter.vote_at("old", (a.address,))
            before = await granted(a, 3)
            assert (voter.promised_in("old"), voter.promised_in("new")) == (3, 0)
            voter.vote_at("new", (b.address,))
            after = await b.ask(Canvass("b#1"))
            assert isinstance(after, CanvassAnswer)
            assert (after.promised, after.voter != before.voter) == (0, True)
            assert voter.promised_in("old") == 0

    asyncio.run(story())


def test_a_voter_remembers_what_it_has_promised_before_it_is_connected(tmp_path: Path) -> None:
    async def story() -> None:
        voter = AgentVoter(tmp_path, "node-1", TOKEN)
        async with (
            asking_scheduler("a#1", cluster="yard", lease_seconds=0.05) as a,
            meanwhile(voter.run()),
            asyncio.timeout(PATIENCE_SECONDS),
        ):
            voter.vote_at("yard", (a.address,))
            await granted(a, 3)
        assert AgentVoter(tmp_path, "node-1", TOKEN).promised_in("yard") == 3

    asyncio.run(story())


@pytest.mark.parametrize(
    ("told", "scheduler", "found"),
    [
        ("0.0.0.0:9092", "scheduler-1:9090", "scheduler-1:9092"),
        ("[::]:9092", "[fd00::1]:9090", "[fd00::1]:9092"),
        (":9092", "10.0.0.1:9090", "10.0.0.1:9092"),
        ("10.0.0.2:9092", "10.0.0.1:9090", "10.0.0.2:9092"),
    ],
)
def test_a_scheduler_that_listens_on_all_interfaces_is_reached_where_it_was_found(
    told: str, scheduler: str, found: str
) -> None:
    assert reachable([told, told], scheduler) == (found,)
