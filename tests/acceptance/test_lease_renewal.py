"""A lease that is renewed while its block runs, and sets the devices of this process."""

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

import gpuyard
from gpuyard.core.domain.errors import WrongInput
from gpuyard.live.sdk import Client
from tests.acceptance.live import Cluster, running_cluster
from tests.acceptance.waiting import until

TIMEOUT = 3.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("leases")) as made:
        yield made


def limit(cluster: Client, lease: str) -> float:
    return cluster.task(lease).timeout or 0.0


def test_a_renewed_lease_outlives_its_timeout_and_ends_with_its_block(place: Cluster) -> None:
    cluster = place.client()
    with cluster.lease(gpus=1, timeout=TIMEOUT, renew=True) as lease:
        until(lambda: limit(cluster, lease.id) > 3 * TIMEOUT, what="it is renewed several times")
        assert cluster.task(lease.id).status == "running"
    until(lambda: cluster.task(lease.id).ended, what="the lease ends")


def test_an_awaited_lease_is_renewed_as_well(place: Cluster) -> None:
    async def work() -> str:
        cluster = gpuyard.aio.connect(f"http://127.0.0.1:{place.http}")
        async with cluster.lease(gpus=1, timeout=TIMEOUT, renew=True, set_devices=True) as lease:
            assert os.environ["CUDA_VISIBLE_DEVICES"] == lease.env["CUDA_VISIBLE_DEVICES"]
            await asyncio.to_thread(until, lambda: limit(place.client(), lease.id) > 2 * TIMEOUT)
            assert (await cluster.task(lease.id)).status == "running"
        return lease.id

    lease = asyncio.run(work())
    until(lambda: place.client().task(lease).ended, what="the lease ends")


def test_the_lease_of_a_killed_program_ends_after_its_timeout(place: Cluster) -> None:
    program = f"""
        import gpuyard, os, signal
        cluster = gpuyard.connect("http://127.0.0.1:{place.http}")
        with cluster.lease(gpus=1, timeout=1, renew=True) as lease:
            print(lease.id, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False, timeout=60
    )
    until(lambda: place.client().task(done.stdout.strip()).status == "timeout", what="the GPUs are free again")


def test_the_devices_of_this_process_are_those_of_the_lease_within_the_block(
    place: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with place.client().lease(gpus=2, timeout=60, set_devices=True) as lease:
        assert os.environ["CUDA_VISIBLE_DEVICES"] == lease.env["CUDA_VISIBLE_DEVICES"] != "7"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "7"


def test_a_lease_without_a_timeout_cannot_be_renewed(place: Cluster) -> None:
    cluster = place.client()
    before = {one.id for one in cluster.leases().leases}  # the end of those of other tests may be under way
    with pytest.raises(WrongInput, match="renew needs a timeout"), cluster.lease(gpus=1, renew=True):
        raise AssertionError("it is refused")
    assert {one.id for one in cluster.leases().leases} <= before


def test_a_task_is_printed_in_a_short_line(place: Cluster) -> None:
    cluster = place.client()
    task = cluster.wait(cluster.submit("true", name="short"), timeout=60)
    assert str(task) == f"{task.id} short: success on node-1"
