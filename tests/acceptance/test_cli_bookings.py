"""Bookings and maintenance windows against a real cluster: four virtual GPUs, real tasks."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli_cluster import CliCluster, running_cluster
from tests.acceptance.waiting import until


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(made: CliCluster) -> Iterator[CliCluster]:
    yield made
    client = made.client()
    for booking in client.bookings().bookings:
        client.cancel_booking(booking.id)
    for task in client.tasks(status="pending,running"):
        client.cancel(task)
    until(lambda: client.gpus().idle == 4, what="the GPUs are free")


def node_of(cluster: CliCluster) -> str:
    return cluster.client().nodes().nodes[0].id


def test_a_booking_is_told_with_absolute_times_listed_and_cancelled(cluster: CliCluster) -> None:
    out = cluster.does("book", "-g", "3", "--from", "now+2h", "--for", "12h", "--note", "demo")
    assert f": 3 GPUs (3 on {node_of(cluster)}) from " in out
    assert out.endswith(", 12h00m.\n")
    number = out.split(":")[0]
    listed = cluster.does("bookings")
    assert number in listed
    assert "planned" in listed
    assert "demo" in listed
    told = json.loads(cluster.does("bookings", "--json"))["bookings"][0]
    assert (told["gpu_count"], told["seconds"], told["status"]) == (3, 43200.0, "planned")
    assert cluster.does("bookings", "cancel", number) == f"{number} was cancelled.\n"
    assert json.loads(cluster.does("bookings", "--json"))["total"] == 0


def test_a_long_task_waits_for_the_end_of_a_booking_and_a_short_one_does_not(cluster: CliCluster) -> None:
    told = json.loads(cluster.does("book", "-g", "4", "--from", "now+1h", "--for", "2h", "--json"))
    client = cluster.client()
    long = client.submit(["sleep", "60"], gpus=1, timeout="3h")
    short = client.submit(["sleep", "60"], gpus=1, timeout="10m")
    until(lambda: client.task(short).status == "running", what="the short task runs")
    assert client.task(long).reason_code == "Booked"
    assert told["id"] in cluster.does("explain", long.id)
    client.cancel_booking(told["id"])
    until(lambda: client.task(long).status == "running", what="the long task runs")


def test_a_task_of_a_booking_starts_when_it_begins_and_others_wait_until_its_end(
    cluster: CliCluster, tmp_path: Path
) -> None:
    client = cluster.client()
    told = json.loads(cluster.does("book", "-g", "4", "--from", "now+2s", "--for", "1h", "--json"))
    mine = cluster.does(
        "submit", "--json", "-g", "4", "--booking", told["id"], "--shell", f"while ! test -e {tmp_path}/end; do sleep 0.1; done"
    )  # fmt: skip
    task = json.loads(mine)["id"]
    assert client.task(task).booking == told["id"]
    until(lambda: client.task(task).status == "running", what="the task of the booking runs")
    other = client.submit(["true"], gpus=1, timeout="1s")
    assert client.bookings().bookings[0].status == "active"
    (tmp_path / "end").touch()
    client.wait(task, timeout=60)
    assert client.task(other).reason_code == "Booked"
    assert cluster.does("bookings", "cancel", told["id"]) == f"{told['id']} was ended.\n"
    assert client.wait(other, timeout=60).status == "success"


def test_a_lease_uses_a_booking(cluster: CliCluster) -> None:
    told = cluster.client().book(4, duration="1h")
    leased = json.loads(cluster.does("lease", "-g", "2", "--booking", told.id, "--json"))
    assert len(leased["gpus"]) == 2


def test_a_booking_that_preempts_requeues_a_task_that_allows_it(cluster: CliCluster) -> None:
    client = cluster.client()
    task = client.submit(["sleep", "100"], gpus=4, preemption="requeue")
    until(lambda: client.task(task).status == "running", what="the task runs")
    cluster.does("book", "-g", "4", "--for", "1h", "--preempt")
    until(lambda: client.task(task).status == "pending", what="the task is queued again")
    assert "booked" in (client.task(task).reason or "")


def test_a_task_in_the_way_is_named(cluster: CliCluster) -> None:
    client = cluster.client()
    task = client.submit(["sleep", "100"], gpus=4)
    until(lambda: client.task(task).status == "running", what="the task runs")
    done = cluster.call("book", "-g", "2", "--from", "now+1s", "--until", "now+1h")
    assert done.returncode == 0
    assert task.id in done.stderr
    assert "are waited for" in done.stderr
    until(lambda: "late" in cluster.does("bookings"), what="the booking is late")


def test_a_maintenance_window_cordons_its_node_and_opens_it_when_it_is_cancelled(cluster: CliCluster) -> None:
    node = node_of(cluster)
    out = cluster.does("book", "--maintenance", "--node", node, "--for", "1h", "--note", "new fan")
    assert f": maintenance ({node}) from " in out
    client = cluster.client()
    until(lambda: client.nodes().nodes[0].status == "draining", what="the node is drained")
    task = client.submit(["true"], cpu_count=1, gpu_count=0)
    assert client.task(task).reason_code == "UnderMaintenance"
    cluster.does("bookings", "cancel", out.split(":")[0])
    assert client.wait(task, timeout=60).status == "success"


def test_bookings_of_several_weeks_are_made_together_or_not_at_all(cluster: CliCluster) -> None:
    lines = cluster.does("book", "-g", "2", "--from", "fri 18:00", "--for", "12h", "--weekly", "3")
    assert lines.count("GPUs") == 3
    assert len(client := cluster.client().bookings().bookings) == 3
    assert all(one.gpu_count == 2 for one in client)
    refused = cluster.call("book", "-g", "3", "--from", "fri 18:00", "--for", "30d", "--weekly", "2")
    assert refused.returncode == 1
    assert "3 GPUs cannot be booked: 2 suitable GPUs" in refused.stderr
    assert len(cluster.client().bookings().bookings) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-g", "1"], "give the length with --for, or the end with --until"),
        (["-g", "1", "--for", "1h", "--until", "18:00"], "give the length with --for, or the end with --until"),
        (["-g", "1", "--from", "18", "--for", "1h"], "'18' is not a time"),
        (["-g", "1", "--from", "now+3h", "--until", "2020-01-01"], "is not after the begin"),
        (["--maintenance", "--for", "1h"], "needs at least one node"),
        (["--maintenance", "-g", "1", "--node", "n", "--for", "1h"], "omit the GPUs"),
        (["-g", "1", "--node", "nowhere", "--for", "1h"], "Node nowhere does not exist."),
        (["-g", "9", "--for", "1h"], "9 GPUs cannot be booked: 4 suitable GPUs"),
        (["-g", "T4:1", "--for", "1h"], "No node has a GPU of model T4"),
    ],
)
def test_a_wrong_booking_gets_a_sentence(cluster: CliCluster, words: list[str], said: str) -> None:
    done = cluster.call("book", *words)
    assert done.returncode in {1, 2}
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert cluster.client().bookings().total == 0


def test_an_unknown_booking_gets_a_sentence(cluster: CliCluster) -> None:
    assert "booking-99 does not exist" in cluster.call("bookings", "cancel", "99").stderr
    assert 'ids look like "booking-3"' in cluster.call("bookings", "cancel", "fri").stderr
    assert "booking-99 does not exist" in cluster.call("submit", "--booking", "99", "--", "true").stderr


def test_bookings_outlive_a_restart(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        booked = cluster.client().book(4, duration="1h")
        cluster.kill()
        cluster.up()
        client = cluster.client()
        [found] = client.bookings().bookings
        assert (found.id, found.status, found.ends_at) == (booked.id, "active", booked.ends_at)
        assert client.submit(["true"], gpus=1, booking=booked.id).booking == booked.id
        waits = client.submit(["true"], gpus=1)
        assert client.task(waits).reason_code == "Booked"
