"""Packets between two schedulers, or a scheduler and its database, are lost in silence and in one direction only."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpuyard.live.sdk import Client
from tests.acceptance.pair import HOSTS, STORE, Pair
from tests.netns import Network, why_no_network
from tests.postgres_server import NoPostgres, PostgresServer

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_no_network()), reason=why_no_network())]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Pair]]:
    """Start two schedulers and a node, each in a network namespace."""
    with ExitStack() as stack:

        def started(storage: str) -> Pair:
            network = Network(HOSTS)
            stack.callback(network.end)
            database = ""
            if storage == "database":
                pytest.importorskip("psycopg", reason="psycopg is missing; install the extra dev.")
                try:
                    server = PostgresServer(network=network, host=STORE)
                    stack.callback(server.stop)
                    server.start()
                except NoPostgres as missing:
                    pytest.skip(str(missing))
                database = server.url_in_network("cuts")
            pair = Pair(tmp_path, database, network)
            stack.callback(pair.end)
            pair.start(pair.a, "master")
            pair.until(pair.a.leads, "the first scheduler leads")
            pair.start(pair.b)
            pair.start_agent("node-1")
            pair.until(pair.b.follows, "the second scheduler follows")
            pair.ready(1)
            pair.until_complete()
            return pair

        yield started


def one_leads(pair: Pair) -> bool:
    return sorted(scheduler.health()["role"] for scheduler in (pair.a, pair.b)) == ["master", "standby"]


def succeeded(client: Client, tasks: list[str]) -> bool:
    return all(client.task(task).status == "success" for task in tasks)


@pytest.mark.parametrize(("storage", "other", "leads"), [("replication", "b", "a"), ("database", STORE, "b")])
def test_packets_from_the_leader_are_lost_and_one_scheduler_goes_on_with_all_tasks(
    start: Callable[[str], Pair], storage: str, other: str, leads: str
) -> None:
    """Without a database the leader keeps the votes and goes on alone; without its database it must not lead."""
    pair = start(storage)
    assert pair.network is not None
    client = pair.client()
    tasks = [client.submit("true", gpu_count=1).id]
    running = client.submit("sleep 8", gpu_count=1)
    pair.until(lambda: client.task(running.id).status == "running", "the task runs")
    epoch = pair.a.health()["epoch"]
    pair.network.cut("a", [other], "out")
    expected = pair.a if leads == "a" else pair.b
    pair.until(lambda: expected.leads() and expected.health()["epoch"] >= epoch + (leads == "b"), "one goes on")
    tasks += [client.wait(client.submit("true", gpu_count=1)).id for _ in range(3)]
    if leads == "b":
        assert not pair.a.leads()
    pair.network.heal()
    pair.until(lambda: one_leads(pair), "one leads and the other one follows")
    pair.until_complete()
    tasks.append(client.wait(client.submit("true", gpu_count=1)).id)
    assert succeeded(client, tasks)
    ended = client.wait(running.id)
    assert (ended.status, ended.attempts) == ("success", 1)
    assert one_leads(pair)
