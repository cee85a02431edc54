"""A terminal and a shell across the loss of the scheduler that leads: the client goes on at the other one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuyard.live.sdk import connect
from tests.acceptance.cli_cluster import GPUYARD
from tests.acceptance.pair import Pair
from tests.acceptance.terminals import BASH, PROMPT, Person, at_terminal, environment
from tests.acceptance.waiting import until

pytestmark = pytest.mark.slow
COUNT = 300


@pytest.fixture(params=["database", "replication"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """Two schedulers, the first of which leads, and a node."""
    if request.param == "database":
        pytest.importorskip("psycopg", reason="psycopg is missing; install the extra dev.")
    made = Pair(tmp_path, request.getfixturevalue("postgres").url() if request.param == "database" else "")
    try:
        made.start(made.a, "master")
        made.until(made.a.leads, "the first scheduler leads")
        made.start(made.b)
        made.start_agent("node-1")
        made.until(made.b.follows, "the second scheduler follows")
        made.ready(1)
        made.until_complete()
        yield made
    finally:
        made.end()


@contextmanager
def person(pair: Pair, *words: str) -> Iterator[Person]:
    """Someone who knows both schedulers."""
    env = {**environment(pair), "GPUYARD_SERVER": pair.addresses}
    with at_terminal(GPUYARD, *words, env=env, folder=pair.folder) as one:
        yield one


def test_a_terminal_goes_on_at_the_scheduler_that_takes_over(pair: Pair) -> None:
    with person(pair, "run", "-g", "1", "--pty", *BASH) as one:
        one.sees(PROMPT)
        one.types("count=1; echo beg''un")
        one.sees("begun")
        pair.kill(pair.a.process)
        one.types("count=$((count+1)); echo typed-while-nobody-led=$count")
        one.sees("while-nobody-led=2\r\n")
        assert pair.b.leads()
        one.types("echo count=$count; exit 6")
        one.sees("count=2\r\n")
        assert one.ends() == 6, pair.logs()
    client = pair.client()
    (task,) = client.tasks()
    assert (task.status, task.attempts) == ("failed", 1)
    assert b"".join(client.logs(task)).count(b"nobody-led=2") == 1


def test_keys_and_output_around_a_take_over_arrive_once_and_in_order(pair: Pair) -> None:
    """The leader is killed in the middle of what is typed, while the program prints without a pause."""
    line = (
        "stty -echo; (i=0; while [ ! -e typed ]; do i=$((i+1)); echo line-$i; done; echo lines=$i=) & "
        f"echo ready; head -n {COUNT} > typing; mv typing typed; wait; echo all-typed"
    )
    with person(pair, "run", "-g", "1", "--pty", "--", "sh", "-c", line) as one:
        one.sees("ready")
        for number in range(COUNT):
            one.types(str(number))
            if number == COUNT // 2:
                pair.kill(pair.a.process)
        last = int(one.sees_like(r"lines=(\d+)=").group(1))
        one.sees("all-typed")
        assert one.ends() == 0, pair.logs()
    assert (pair.folder / "typed").read_text().split() == [str(number) for number in range(COUNT)]
    client = pair.client()
    (task,) = client.tasks()
    shown = b"".join(client.logs(task)).decode()
    assert [word for word in shown.split() if word.startswith("line-")] == [f"line-{n + 1}" for n in range(last)]


def test_a_shell_goes_on_at_the_scheduler_that_takes_over_and_runs_once(pair: Pair) -> None:
    client = pair.client()
    task = client.submit("exec sleep 600", gpus=1, work_dir=str(pair.folder))
    pair.until(lambda: client.task(task).status == "running", "the task runs")
    line = "echo ran >> runs; echo begun; read word; echo got=$word; while [ ! -e go ]; do sleep 0.05; done; exit 7"
    with person(pair, "shell", task.id, "sh", "-c", line) as one:
        one.sees("begun")
        one.types("before")
        one.sees("got=before\r\n")
        pair.kill(pair.a.process)
        (pair.folder / "go").touch()  # it ends while no scheduler leads
        assert one.ends() == 7, pair.logs()
    assert (pair.folder / "runs").read_text() == "ran\n"
    until(pair.b.leads)
    with connect(pair.b.url) as other:
        assert other.task(task).status == "running"
        other.cancel(task)
