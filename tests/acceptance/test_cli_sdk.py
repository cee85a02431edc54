"""The client from Python against a real yard."""

import os
import subprocess
from collections.abc import Iterator
from threading import Thread

import pytest

from gpuyard.live.sdk import Client, NotFound, Refused, Task, TaskFailed
from tests.acceptance.cli_yard import Yard, a_yard
from tests.acceptance.waiting import until


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with a_yard(tmp_path_factory.mktemp("yard")) as made:
        yield made


@pytest.fixture
def yard(place: Yard) -> Client:
    return place.client()


def test_many_tasks_are_submitted_and_waited_for(yard: Client) -> None:
    tasks = yard.submit_many([{"command": ["true"], "gpu_count": 1, "name": "many"} for _ in range(150)])

    ended = yard.wait(tasks, timeout=120)
    assert [task.id for task in ended] == [task.id for task in tasks]
    assert {task.status for task in ended} == {"success"}
    assert sum(1 for _ in yard.tasks(name="many")) == 150


def test_tasks_come_in_the_order_in_which_they_end(yard: Client) -> None:
    slow = yard.submit("sleep 1")
    quick = yard.submit("true")

    assert [task.id for task in yard.ends([slow, quick], timeout=60)] == [quick.id, slow.id]


def test_one_key_makes_one_task(yard: Client) -> None:
    first, again = (yard.submit("true", idempotency_key="my-own-key") for _ in range(2))

    assert first.id == again.id
    with pytest.raises(Refused) as caught:
        yard.submit("false", idempotency_key="my-own-key")
    assert caught.value.status == 409


def test_a_failure_is_an_error_for_those_who_check(yard: Client) -> None:
    with pytest.raises(TaskFailed, match="exit code 3"):
        yard.wait(yard.submit("exit 3"), check=True, timeout=60)


def test_output_is_followed_as_it_is_written(yard: Client) -> None:
    task = yard.submit("echo one; sleep 0.3; echo two")

    assert b"".join(yard.logs(task, follow=True)) == b"one\ntwo\n"


def test_a_lease_ends_with_its_with(yard: Client) -> None:
    with yard.lease(gpus=1, timeout=600) as lease:
        done = subprocess.run(
            ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"],
            env={**os.environ, **lease.env},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == lease.gpus[0].rpartition("/")[2]
        assert [held.id for held in yard.leases().leases] == [lease.id]
    until(lambda: yard.task(lease.id).ended, what="the lease ends")


def test_hold_release_and_priority(yard: Client) -> None:
    task = yard.submit("true", gpu_count=64)
    assert yard.set_priority(task, 90).priority == 90
    assert yard.hold(task).status == "pending"
    assert "hold" in (yard.explain(task).reason or "")
    yard.release(task)
    assert "hold" not in (yard.explain(task).reason or "")
    assert yard.cancel(task).status == "cancelled"


def test_dependencies_take_tasks(yard: Client) -> None:
    first = yard.submit("exit 1")
    after = yard.submit("true", depends_on=[first])
    whatever = yard.submit("true", after_any=[first])

    assert [task.status for task in yard.wait([after, whatever], timeout=60)] == ["cancelled", "success"]


def test_an_unknown_task_is_not_found(yard: Client) -> None:
    for ask in (yard.task, yard.explain, yard.cancel, yard.wait):
        with pytest.raises(NotFound, match="does not exist"):
            ask("task-999999")


def test_a_client_serves_many_threads(yard: Client) -> None:
    made: list[Task] = []
    threads = [Thread(target=lambda: made.append(yard.submit("true"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len({task.id for task in made}) == 8
    assert all(task.succeeded for task in yard.wait(made, timeout=60))
