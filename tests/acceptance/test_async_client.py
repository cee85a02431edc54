"""The client for asyncio against a real cluster."""

import asyncio
from collections.abc import Iterator

import pytest

import gpuyard
from gpuyard.live.sdk import NotFound, Task, TaskFailed, TookTooLong
from gpuyard.live.sdk.aio import AsyncClient
from tests.acceptance.live import Cluster, running_cluster
from tests.acceptance.waiting import until


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("async")) as made:
        yield made


def client(place: Cluster) -> AsyncClient:
    return gpuyard.aio.connect(f"http://127.0.0.1:{place.http}")


async def first_part(cluster: AsyncClient, task: Task) -> bytes:
    async for part in cluster.logs(task, follow=True):
        return part
    return b""


def test_tasks_are_submitted_awaited_and_listed(place: Cluster) -> None:
    async def work() -> None:
        async with client(place) as cluster:
            slow, quick = await asyncio.gather(cluster.submit("sleep 1; echo slow"), cluster.submit("echo quick"))
            assert [task.id async for task in cluster.ends([slow, quick], timeout=60)] == [quick.id, slow.id]
            assert b"".join([part async for part in cluster.logs(slow)]) == b"slow\n"
            assert {task.id async for task in cluster.tasks()} >= {slow.id, quick.id}
            ended = await cluster.wait([slow, quick])
            assert [task.status for task in ended] == ["success", "success"]
            with pytest.raises(TaskFailed, match="exit code 3"):
                await cluster.wait(await cluster.submit("exit 3"), check=True, timeout=60)
            with pytest.raises(NotFound):
                await cluster.task(999_999)

    asyncio.run(work())


def test_waits_do_not_hold_the_event_loop_or_the_request_threads(place: Cluster) -> None:
    async def work() -> None:
        cluster = client(place)
        held = await cluster.submit("sleep 600")
        waits = [asyncio.create_task(cluster.wait(held)) for _ in range(20)]  # more than there are threads
        readers = [asyncio.create_task(first_part(cluster, held)) for _ in range(20)]
        done = await asyncio.wait_for(cluster.wait(await cluster.submit("true")), 30)
        assert done.succeeded
        for task in (*waits, *readers):
            task.cancel()
        ended = await asyncio.gather(*waits, *readers, return_exceptions=True)
        assert {type(error) for error in ended} == {asyncio.CancelledError}
        with pytest.raises(TookTooLong):
            await cluster.wait(held, timeout=0.2)
        await cluster.cancel(held)

    asyncio.run(work())


def test_a_lease_ends_with_its_block_and_when_its_wait_is_cancelled(place: Cluster) -> None:
    async def work() -> None:
        cluster = client(place)
        async with cluster.lease(gpus=4, timeout=600) as lease:
            assert len(lease.gpus) == 4
            waiting = asyncio.create_task(cluster.take_lease(1, timeout=600))
            while len((await cluster.leases()).leases) < 2:
                await asyncio.wait({waiting}, timeout=0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(work())
    until(lambda: not place.client().leases().leases, what="both leases are released")


def test_a_wait_survives_a_restart_of_the_scheduler(place: Cluster) -> None:
    async def work() -> str:
        cluster = client(place)
        task = await cluster.submit("sleep 2")
        waiting = asyncio.create_task(cluster.wait(task, timeout=90))
        async for now in cluster.changes(task):
            if now.status == "running":
                break
        await asyncio.to_thread(place.kill_server)
        await asyncio.to_thread(place.start_server)
        return (await waiting).status

    assert asyncio.run(work()) == "success"
