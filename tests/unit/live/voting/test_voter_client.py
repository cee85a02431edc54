"""A voter that dials schedulers, over loopback."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuyard.core.replication.messages import (
    Canvass,
    CanvassAnswer,
    EpochRefused,
    LeaseRenewed,
    RenewLease,
    RequestVote,
    VoteGranted,
)
from gpuyard.core.replication.timing import Timing
from gpuyard.live.voting import voter_client, voter_file
from gpuyard.live.voting.voter_client import VoterClient
from gpuyard.live.voting.voter_file import BLANK, DurableVoter
from tests.unit.certificates import certificate, needs_openssl
from tests.unit.live.voting.schedulers import TOKEN, AskingScheduler, asking_scheduler


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Voting:
    """A voter with its connections, in a folder."""

    def __init__(self, folder: Path, token: str = TOKEN) -> None:
        self.clock = Clock()
        self.voter = DurableVoter(folder / "voter.json", "n1", Timing(lease=1.0), self.clock)
        self.client = VoterClient(self.voter, "agent", "n1", lambda: token)

    async def problem(self, sentence: str) -> str:
        """Wait for a problem with this sentence in it."""
        while sentence not in self.client.problem:
            await asyncio.sleep(0.01)
        return self.client.problem


@asynccontextmanager
async def voting(folder: Path, *addresses: str, token: str = TOKEN) -> AsyncIterator[Voting]:
    here = Voting(folder, token)
    here.client.set_addresses(list(addresses))
    running = asyncio.create_task(here.client.run())
    try:
        yield here
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await asyncio.sleep(0)


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(30):
            await story()

    asyncio.run(in_time())


async def connected(here: Voting, *schedulers: AskingScheduler) -> None:
    for scheduler in schedulers:
        await scheduler.connected()
    while sorted(here.client.connected) != sorted(scheduler.address for scheduler in schedulers):
        await asyncio.sleep(0.01)


def test_a_voter_answers_all_schedulers_and_votes_for_one(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            asking_scheduler("a#1") as a,
            asking_scheduler("b#1") as b,
            voting(tmp_path, a.address, b.address) as here,
        ):
            await connected(here, a, b)
            here.clock.now += 1.0
            name = here.voter.name
            assert await a.ask(Canvass("a#1")) == CanvassAnswer(name, 0.0, 0, BLANK.accepted)
            assert await a.ask(RequestVote("a#1", 3)) == VoteGranted(name, 3, BLANK.accepted)
            assert await b.ask(RequestVote("b#1", 4)) == EpochRefused(name, 3)
            assert await a.ask(RenewLease("a#1", 3, 7.5)) == LeaseRenewed(name, 3, 7.5)
            assert here.voter.promised == 3
            assert here.client.problem == ""
            assert [(hello.kind, hello.name, hello.info) for hello in a.met] == [
                ("voter", name, {"kind": "agent", "node": "n1"})
            ]

    run(story)


def test_a_voter_joins_the_first_cluster_that_it_meets_and_refuses_another_one_after_a_restart(tmp_path: Path) -> None:
    async def story() -> None:
        async with asking_scheduler("a#1") as a:
            async with voting(tmp_path, a.address) as here:
                await connected(here, a)
                assert here.voter.cluster == "cluster-1"
            async with (
                asking_scheduler("x#1", cluster="cluster-2") as x,
                voting(tmp_path, a.address, x.address) as here,
            ):
                problem = await here.problem("belongs to cluster cluster-1, and the scheduler to cluster cluster-2")
                assert "remove" in problem
                await a.connected()
                assert here.client.connected == [a.address]
                assert a.met[-1].cluster == "cluster-1"

    run(story)


def test_a_voter_that_two_clusters_meet_at_once_belongs_to_one_of_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            asking_scheduler("a#1", cluster="cluster-1") as a,
            asking_scheduler("x#1", cluster="cluster-2") as x,
            voting(tmp_path, a.address, x.address) as here,
        ):
            await here.problem("belongs to cluster")
            assert len(here.client.connected) == 1

    run(story)


def test_a_voter_grants_the_lease_that_the_schedulers_tell(tmp_path: Path) -> None:
    async def story() -> None:
        async with asking_scheduler("a#1", lease_seconds=4.0) as a, voting(tmp_path, a.address) as here:
            await connected(here, a)
            assert here.voter.lease_seconds == 4.0
        assert DurableVoter(tmp_path / "voter.json", "n1", Timing(lease=1.0), Clock()).lease_seconds == 4.0

    run(story)


def test_a_lease_becomes_shorter_only_when_all_schedulers_tell_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with asking_scheduler("a#1", lease_seconds=4.0) as old, voting(tmp_path, old.address) as here:
            await connected(here, old)
            async with asking_scheduler("b#1", lease_seconds=2.0) as b:
                here.client.set_addresses([old.address, b.address])
                await connected(here, old, b)
                assert here.voter.lease_seconds == 4.0
                async with asking_scheduler("a#1", lease_seconds=2.0) as new:
                    here.client.set_addresses([new.address, b.address])
                    await connected(here, new, b)
                    assert here.voter.lease_seconds == 2.0

    run(story)


def test_a_vote_that_cannot_be_written_is_not_answered_and_the_voter_stays_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def story() -> None:
        async with asking_scheduler("a#1") as a, voting(tmp_path, a.address) as here:
            await connected(here, a)
            here.clock.now += 1.0
            with monkeypatch.context() as patched:
                patched.setattr(voter_file, "replace_file", full)
                assert a.voter is not None
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await a.ask(RequestVote("a#1", 1))
            assert await a.ask(Canvass("a#1")) == CanvassAnswer(here.voter.name, 1.0, 0, BLANK.accepted)
            here.clock.now += 1.0
            assert await a.ask(RequestVote("a#1", 1)) == VoteGranted(here.voter.name, 1, BLANK.accepted)

    run(story)


def test_a_cluster_that_cannot_be_written_is_not_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def story() -> None:
        async with asking_scheduler("a#1") as a:
            with monkeypatch.context() as patched:
                here = Voting(tmp_path)
                patched.setattr(voter_file, "replace_file", full)
                here.client.set_addresses([a.address])
                running = asyncio.create_task(here.client.run())
                await here.problem("No space left on device")
                assert here.voter.cluster == ""
            await connected(here, a)
            assert here.voter.cluster == "cluster-1"
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run(story)


def test_a_voter_comes_back_to_a_scheduler_that_starts_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]

    async def story() -> None:
        async with voting(tmp_path, f"127.0.0.1:{port}") as here:
            for _ in range(3):
                async with asking_scheduler("a#1", port=port) as a:
                    await connected(here, a)
                    assert isinstance(await a.ask(Canvass("a#1")), CanvassAnswer)

    run(story)


def test_addresses_can_be_changed_while_a_voter_runs(tmp_path: Path) -> None:
    async def story() -> None:
        async with asking_scheduler("a#1") as a, asking_scheduler("b#1") as b, voting(tmp_path, a.address) as here:
            await connected(here, a)
            here.client.set_addresses([b.address, b.address])
            await connected(here, b)
            await a.left()
            here.client.set_addresses([])
            await b.left()
            assert here.client.problems == {}

    run(story)


def test_a_voter_without_the_join_token_says_what_to_set(tmp_path: Path) -> None:
    async def story() -> None:
        async with asking_scheduler("a#1") as a:
            async with voting(tmp_path, a.address, token="") as here:
                assert "auth.join_token" in await here.problem("There is no key")
            async with voting(tmp_path, a.address, token="another one") as here:
                assert "auth.join_token" in await here.problem("different keys")
            assert a.met == []

    run(story)


def test_a_scheduler_that_speaks_for_another_one_is_not_answered(tmp_path: Path) -> None:
    async def story() -> None:
        async with asking_scheduler("a#1") as a, voting(tmp_path, a.address) as here:
            await connected(here, a)
            here.clock.now += 1.0
            asking = asyncio.create_task(a.ask(RequestVote("b#1", 1)))
            await here.problem("speak for itself only")
            assert here.voter.promised == 0
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    run(story)


def test_a_refusal_of_the_scheduler_is_the_problem_and_it_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voter_client, "MAX_RETRY_SECONDS", 0.3)

    async def story() -> None:
        async with asking_scheduler("a#1") as a:
            a.refuses = "This voter is not wanted."
            async with voting(tmp_path, a.address) as here:
                assert await here.problem("not wanted") == "This voter is not wanted."
                a.refuses = ""
                await connected(here, a)
                assert here.client.problem == ""

    run(story)


@needs_openssl
def test_a_voter_checks_all_certificates_but_that_of_its_own_scheduler(tmp_path: Path) -> None:
    pair = certificate(tmp_path, "scheduler")
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(pair.cert, pair.key)
    strict = ssl.create_default_context(cafile=str(certificate(tmp_path, "other").cert))

    async def story() -> None:
        async with asking_scheduler("a#1", tls=served) as own, asking_scheduler("b#1", tls=served) as other:
            voter = DurableVoter(tmp_path / "voter.json", "scheduler-a", Timing(lease=1.0), Clock())
            client = VoterClient(voter, "scheduler", "a", lambda: TOKEN, tls=strict, own_address=own.address)
            client.set_addresses([own.address, other.address])
            running = asyncio.create_task(client.run())
            await own.connected()
            while not client.connected or "certificate" not in client.problem:
                await asyncio.sleep(0.01)
            assert client.connected == [own.address]
            assert other.met == []
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await own.left()

    run(story)
