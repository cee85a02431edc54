"""Which requests were sent before: most keys are new, and the archive is not searched for them."""

import asyncio
from pathlib import Path

import pytest

from gpuyard.core.domain.events import TaskSubmitted
from gpuyard.core.domain.values import TaskId, TenantId
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.stores.archive import Archive, SubmitKey
from gpuyard.live.control_plane.stores.idempotency import IdempotentRequests, KeyFilter, SubmitResult
from tests.unit.live.control_plane.clusters import open_scheduler, run, spec, submit

LAB = TenantId("lab")


def test_the_filter_contains_every_added_key_and_hardly_any_other() -> None:
    one, other = KeyFilter(), KeyFilter()
    for number in range(5_000):
        (one if number % 2 else other).add((LAB, f"key-{number}"))
    one.update(other)
    assert all((LAB, f"key-{number}") in one for number in range(5_000))
    assert sum((LAB, f"new-{number}") in one for number in range(5_000)) < 5
    assert (TenantId("other"), "key-1") not in one


def test_the_archive_is_searched_only_for_keys_that_it_may_have(tmp_path: Path) -> None:
    asked = []

    class Watched(Archive):
        def lookup(self, tenant: TenantId, key: str) -> SubmitKey | None:
            asked.append(key)
            return super().lookup(tenant, key)

    async def story() -> None:
        async with open_scheduler(tmp_path) as (scheduler, _):
            await submit(scheduler, spec(), key="old", body=b"old")
            await scheduler.archiver.archive_now()
        async with open_scheduler(tmp_path) as (scheduler, _):
            scheduler.stores.archive.__class__ = Watched
            while not scheduler._requests._filter_is_whole:
                await asyncio.sleep(0.001)
            assert await submit(scheduler, spec(), key="new", body=b"new") == [TaskId(2)]
            assert asked == []
            assert await submit(scheduler, spec(), key="old", body=b"old") == [TaskId(1)]
            await scheduler.archiver.archive_now()
            assert await submit(scheduler, spec(), key="new", body=b"new") == [TaskId(2)]
            assert asked == ["old", "new"]

    run(story)


def test_a_request_that_the_leader_before_had_accepted_is_known_before_its_key_is_archived(tmp_path: Path) -> None:
    async def story() -> None:
        archive = Archive.open(tmp_path / "archive.sqlite")
        requests = IdempotentRequests(archive, b"secret")
        name, digest = (LAB, "key"), requests.digest(b"body")
        for task in (7, 8):
            requests.note(TaskSubmitted(TaskId(task), spec(tenant="lab"), key="key", digest=digest), 1.0)
        again: SubmitResult = asyncio.get_running_loop().create_future()
        first = await requests.known(name, digest, again)
        assert first is not None
        assert await first == [TaskId(7), TaskId(8)]
        with pytest.raises(WrongRequest, match="already used with another body"):
            await requests.known(name, requests.digest(b"other"), again)
        requests.archived(requests.take_accepted())
        archive.close()

    run(story)
