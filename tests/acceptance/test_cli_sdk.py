"""The Python client against a real cluster."""

import os
import subprocess
from collections.abc import Iterator
from threading import Thread

import pytest

from gpuyard.live.sdk import Client, NotFound, Refused, Task, TaskFailed
from tests.acceptance.cli_cluster import CliCluster, running_cluster
from tests.acceptance.waiting import until


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def cluster(place: CliCluster) -> Client:
    return place.client()


def test_many_tasks_are_submitted_and_waited_for(cluster: Client) -> None:
    tasks = cluster.submit_many([{"command": ["true"], "gpu_count": 1, "name": "many"} for _ in range(150)])

    ended = cluster.wait(tasks, timeout=120)
    assert [task.id for task in ended] == [task.id for task in tasks]
    assert {task.status for task in ended} == {"success"}
    assert sum(1 for _ in cluster.tasks(name="many")) == 150


def test_tasks_are_returned_in_the_order_in_which_they_end(cluster: Client) -> None:
    slow = cluster.submit("sleep 1")
    quick = cluster.submit("true")

    assert [task.id for task in cluster.ends([slow, quick], timeout=60)] == [quick.id, slow.id]


def test_one_idempotency_key_creates_one_task(cluster: Client) -> None:
    first, again = (cluster.submit("true", idempotency_key="my-own-key") for _ in range(2))

    assert first.id == again.id
    with pytest.raises(Refused) as caught:
        cluster.submit("false", idempotency_key="my-own-key")
    assert caught.value.status == 409


def test_a_failed_task_raises_when_checked(cluster: Client) -> None:
    with pytest.raises(TaskFailed, match="exit code 3"):
        cluster.wait(cluster.submit("exit 3"), check=True, timeout=60)


def test_output_is_followed_as_it_is_written(cluster: Client) -> None:
    task = cluster.submit("echo one; sleep 0.3; echo two")

    assert b"".join(cluster.logs(task, follow=True)) == b"one\ntwo\n"


def test_a_lease_ends_with_its_with_block(cluster: Client) -> None:
    with cluster.lease(gpus=1, timeout=600) as lease:
        done = subprocess.run(
            ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"],
            env={**os.environ, **lease.env},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == lease.gpus[0].rpartition("/")[2]
        assert [held.id for held in cluster.leases().leases] == [lease.id]
    until(lambda: cluster.task(lease.id).ended, what="the lease ends")


def test_hold_release_and_priority(cluster: Client) -> None:
    task = cluster.submit("true", gpu_count=64)
    assert cluster.set_priority(task, 90).priority == 90
    assert cluster.hold(task).status == "pending"
    assert "hold" in (cluster.explain(task).reason or "")
    cluster.release(task)
    assert "hold" not in (cluster.explain(task).reason or "")
    assert cluster.cancel(task).status == "cancelled"


def test_dependencies_accept_task_objects(cluster: Client) -> None:
    first = cluster.submit("exit 1")
    after = cluster.submit("true", depends_on=[first])
    whatever = cluster.submit("true", after_any=[first])

    assert [task.status for task in cluster.wait([after, whatever], timeout=60)] == ["cancelled", "success"]


def test_an_unknown_task_is_not_found(cluster: Client) -> None:
    for ask in (cluster.task, cluster.explain, cluster.cancel, cluster.wait):
        with pytest.raises(NotFound, match="does not exist"):
            ask("task-999999")


def test_a_client_is_safe_for_many_threads(cluster: Client) -> None:
    made: list[Task] = []
    threads = [Thread(target=lambda: made.append(cluster.submit("true"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len({task.id for task in made}) == 8
    assert all(task.succeeded for task in cluster.wait(made, timeout=60))
