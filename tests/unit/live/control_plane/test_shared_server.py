"""Which of several schedulers leads, and what it says about itself."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gpuyard.core.journal.port import Leader
from gpuyard.live.control_plane import shared_server
from gpuyard.live.control_plane.rest.health import health_of
from gpuyard.live.control_plane.role import SchedulerRole
from gpuyard.live.control_plane.shared_storage import LeaderWatch
from gpuyard.live.control_plane.stores.database import StoreFull

LEASE_SECONDS = 1.5


def _is_its_turn(leader: Leader, *, is_elected: bool = False) -> bool:
    """Ask a scheduler that has handed over a moment ago, when the lease of `leader` is over."""

    async def ask() -> bool:
        now = asyncio.get_running_loop().time()
        settings = SimpleNamespace(public_url="http://a")
        process: Any = SimpleNamespace(settings=settings, not_before=now + 8)
        journal: Any = SimpleNamespace(lease_seconds=LEASE_SECONDS, is_elected=is_elected)
        return shared_server._is_its_turn(process, leader, LeaderWatch(leader, now - 2), journal)

    return asyncio.run(ask())


def test_a_scheduler_that_handed_over_leads_again_when_its_successor_fails() -> None:
    assert _is_its_turn(Leader(2, 50, released=False, holder="b", url="http://b", wanted=""))


def test_a_scheduler_that_handed_over_leaves_the_released_journal_to_the_others() -> None:
    assert not _is_its_turn(Leader(1, 50, released=True, holder="a", url="http://a", wanted=""))


def test_a_scheduler_that_was_elected_leads_although_it_has_handed_over_a_moment_ago() -> None:
    assert _is_its_turn(Leader(1, 50, released=True, holder="", url="", wanted=""), is_elected=True)


def test_a_scheduler_whose_lease_is_over_does_not_say_that_it_leads() -> None:
    role = SchedulerRole(leads=True, shared=True, has_lease=lambda: False, epoch=1)
    clock = SimpleNamespace(ahead_seconds=lambda: 0.0)
    scheduler: Any = SimpleNamespace(
        role=role, loop=SimpleNamespace(unwritable=None), ready=True, stopping=False, clock=clock
    )
    assert health_of(scheduler).role == "standby"


def test_a_scheduler_that_follows_again_on_a_full_disk_waits_for_space() -> None:
    async def story() -> list[str]:
        told, said = asyncio.Event(), list[str]()

        class Disk:
            """A storage that is full when it is opened for the second time."""

            async def open(self, *_: object) -> None:
                await asyncio.sleep(0)
                said.append(process.door.why)
                if len(said) == 2:
                    raise StoreFull("No space is left.")
                if len(said) == 3:
                    told.set()

        process: Any = SimpleNamespace(settings=None, storage=Disk(), told=told, door=shared_server._Door())
        serving: Any = asyncio.get_running_loop().create_future()
        await shared_server._live(process, serving)
        return said

    assert asyncio.run(story())[2] == "The disk of this scheduler is full. Free some space."


def test_a_scheduler_does_not_start_on_a_full_disk() -> None:
    async def story() -> None:
        class Disk:
            async def open(self, *_: object) -> None:
                raise StoreFull("No space is left.")

        process: Any = SimpleNamespace(settings=None, storage=Disk(), told=asyncio.Event(), door=shared_server._Door())
        serving: Any = asyncio.get_running_loop().create_future()
        with pytest.raises(StoreFull):
            await shared_server._live(process, serving)

    asyncio.run(story())
