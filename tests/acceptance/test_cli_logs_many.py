"""`gpuyard logs` of several tasks in a real terminal: names before lines, search, Ctrl-C, and a restart of the scheduler."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.acceptance.cli_cluster import CliCluster
from tests.acceptance.terminal import all_of, exit_code, terminal, text_of
from tests.acceptance.waiting import until
from tests.ports import free_port


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    """A cluster at a fixed address, with two ended tasks: `a` has three lines and `b` one."""
    made = CliCluster(tmp_path_factory.mktemp("logs"))
    try:
        restart(made, free_port())
        client = made.client()
        client.wait(
            [
                client.submit("echo one; echo Two here; echo three", name="a", gpu_count=0, cpu_count=1),
                client.submit("printf 'two without end'", name="b", gpu_count=0, cpu_count=1),
            ]
        )
        yield made
    finally:
        made.end()


def restart(cluster: CliCluster, port: int) -> None:
    cluster.up("--http-address", f"127.0.0.1:{port}")


def port_of(cluster: CliCluster) -> int:
    return int(cluster.url.rpartition(":")[2])


def gate(folder: Path, name: str) -> tuple[str, Path]:
    """A command that writes a line, waits for a file, and writes another one."""
    opened = folder / f"open-{name}"
    return f"echo {name} begins; until [ -e {opened} ]; do sleep 0.05; done; echo {name} ends", opened


def test_lines_of_several_tasks_stand_behind_their_names(cluster: CliCluster) -> None:
    assert cluster.does("logs", "a", "b") == "a | one\na | Two here\na | three\nb | two without end\n"
    assert cluster.does("logs", "1-2", "-n", "1") == "a | three\nb | two without end\n"
    with terminal(cluster, "logs", "a", "b") as child:
        shown = all_of(child)
    assert "\x1b[36ma\x1b[0m | one" in shown
    assert "\x1b[32mb\x1b[0m | two" in shown
    with terminal(cluster, "logs", "a", "b", env={"TERM": "dumb"}) as child:
        assert "\x1b" not in all_of(child)


def test_one_task_is_still_printed_byte_for_byte(cluster: CliCluster) -> None:
    assert cluster.does("logs", "b") == "two without end"


def test_grep_finds_lines_in_every_task(cluster: CliCluster) -> None:
    assert cluster.does("logs", "a", "b", "--grep", "TWO") == "a | Two here\nb | two without end\n"
    assert cluster.does("logs", "a", "b", "--grep", "Two", "--case") == "a | Two here\n"
    assert cluster.does("logs", "a", "-g", "two", "-C", "1") == "one\nTwo here\nthree\n--\n"
    assert cluster.does("logs", "a", "-g", "e", "-n", "2") == "Two here\nthree\n"
    followed = cluster.does("logs", "-f", "a", "b", "-g", "t")
    assert sorted(followed.splitlines()) == sorted(cluster.does("logs", "a", "b", "-g", "t").splitlines())
    found = [json.loads(line) for line in cluster.does("logs", "1", "2", "-g", "two", "--json").splitlines()]
    assert found == [
        {"task_id": "task-1", "line": "Two here"},
        {"task_id": "task-2", "line": "two without end"},
    ]
    with terminal(cluster, "logs", "a", "-g", "two") as child:
        assert "\x1b[1;31mTwo\x1b[0m here" in all_of(child)


STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d ")


def test_output_is_found_by_its_time_and_lines_begin_with_it(cluster: CliCluster) -> None:
    client = cluster.client()
    command, door = gate(cluster.folder, "t")
    task = client.submit(f"printf '5%%\\r10%%\\n'; {command}", name="t", gpu_count=0, cpu_count=1)
    began = datetime.now(UTC)
    until(lambda: list(cluster.folder.rglob(f"{task.number}.1.*.times")), what="the supervisor notes the time")
    noted = datetime.now(UTC)
    until(lambda: datetime.now(UTC).second != noted.second, what="the next second begins")
    between = datetime.now(UTC)
    with terminal(cluster, "logs", "-f", "-t", "--since", "1h", task.id) as child:
        child.expect("t begins")
        door.touch()
        child.expect("t ends")
        assert exit_code(child) == 0
    assert b"".join(client.logs(task, since=between)) == b"t ends\n"
    assert b"".join(client.logs(task, until=between - timedelta(hours=1))) == b""
    assert cluster.does("logs", task.id, "--since", "1h", "-g", "ends") == "t ends\n"
    assert [one.text for one in client.search_logs(task, "t", since=between).matches] == ["t ends"]
    lines = cluster.does("logs", "-t", task.id).splitlines()
    assert [STAMP.sub("", line) for line in lines] == ["10%", "t begins", "t ends"]
    times = [datetime.fromisoformat(line.partition(" ")[0]) for line in lines]
    assert began - timedelta(seconds=2) <= times[0] <= times[1] <= noted < times[2] <= datetime.now(UTC)
    told = [json.loads(line) for line in cluster.does("logs", "-t", "--json", task.id).splitlines()]
    assert [one["line"] for one in told] == ["5%\r10%", "t begins", "t ends"]
    assert [datetime.fromisoformat(one["at"]) for one in told] == times
    several = cluster.does("logs", "-t", "a", task.id, "-n", "1").splitlines()
    assert [STAMP.sub("", line) for line in several] == ["a | three", "t | t ends"]
    assert all(STAMP.search(line) for line in several)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a", "b", "--attempt", "1"), "it is of one task"),
        (("a", "--case"), "it needs --grep"),
        (("a", "-C", "2"), "it needs --grep"),
        (("a", "-f", "-g", "x", "-C", "2"), "it cannot be combined with -f"),
        (("a", "-g", ""), "not empty"),
        (("a", "-t", "-g", "x"), "it cannot be combined with --grep"),
        (("a", "-f", "--until", "10m"), "it cannot be combined with -f"),
        (("a", "-n", "2", "--until", "10m"), "it cannot be combined with --tail"),
        (("a", "--since", "tomorrow"), "it is in the future"),
        (("a", "--since", "soon"), "'soon' is not such a time: it must be a time, such as 10m, 14:30"),
        (("a", "--since", "10m", "--until", "20m"), "'20m' is not after the begin"),
        (("1-40",), "at most 32 tasks at once"),
        ((), "name a task"),
        (("nope",), "no task with the id or name nope"),
    ],
)
def test_wrong_combinations_are_refused(cluster: CliCluster, words: tuple[str, ...], said: str) -> None:
    done = cluster.call("logs", *words)
    assert done.returncode in {1, 2}
    assert said in done.stderr
    assert done.stdout == ""


def test_followed_tasks_survive_a_restart_of_the_scheduler(cluster: CliCluster) -> None:
    client = cluster.client()
    doors = {}
    for name in ("x", "y"):
        command, doors[name] = gate(cluster.folder, name)
        client.submit(command, name=name, gpu_count=0, cpu_count=1)
    until(lambda: len(list(client.tasks(status="running"))) == 2)
    with terminal(cluster, "logs", "-f", "x", "y") as child:
        child.expect("begins")
        child.expect("begins")
        port = port_of(cluster)
        cluster.kill()
        child.expect("waiting for the scheduler")
        doors["x"].touch()
        restart(cluster, port)
        child.expect("x ends")
        doors["y"].touch()
        child.expect("y ends")
        rest = text_of(all_of(child))
        assert "begins" not in rest, "nothing is printed twice"
        assert exit_code(child) == 0


def test_ctrl_c_leaves_and_the_tasks_go_on(cluster: CliCluster) -> None:
    client = cluster.client()
    command, door = gate(cluster.folder, "z")
    task = client.submit(command, name="z", gpu_count=0, cpu_count=1)
    with terminal(cluster, "logs", "-f", "a", "z") as child:
        child.expect("z begins")
        child.sendintr()
        assert exit_code(child) == 130
        assert "Traceback" not in str(child.before)
    assert client.task(task).status == "running"
    door.touch()
    assert client.wait(task, check=True).succeeded
