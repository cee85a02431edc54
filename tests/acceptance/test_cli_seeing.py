"""What people see of tasks and GPUs, in a real terminal: wide, narrow, dumb, and in a pipe."""

import json
import threading
from collections.abc import Iterator

import pytest

from gpuyard.cli.output.screen import cells
from tests.acceptance.cli_cluster import CliCluster, running_cluster
from tests.acceptance.terminal import all_of, exit_code, terminal, text_of
from tests.acceptance.waiting import until


def wait_for(seconds: float) -> None:
    threading.Event().wait(seconds)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    """Four GPUs: two tasks hold them, a sweep of five and a task that never fits wait, one has failed."""
    with running_cluster(tmp_path_factory.mktemp("seeing")) as made:
        client = made.client()
        failed = client.submit("echo before; echo what went wrong; exit 3", name="broken", gpu_count=0, cpu_count=1)
        assert client.wait(failed).status == "failed"
        for name in ("holds", "训练模型"):
            task = client.submit("echo started; sleep 600", name=name, gpu_count=2, timeout=3600)
            until(lambda task=task: client.task(task).status == "running")  # type: ignore[misc]
        client.sweep("echo {lr}; sleep 600", {"lr": [1, 2, 3, 4, 5]}, name="tune", timeout=600)
        client.submit("true", name="huge", gpu_count=64)
        yield made


# --- ps ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [200, 80, 60, 40])
def test_ps_fits_the_terminal(cluster: CliCluster, columns: int) -> None:
    with terminal(cluster, "ps", columns=columns) as child:
        shown = all_of(child)
    assert "\x1b[" in shown
    lines = text_of(shown).strip().splitlines()
    assert max(map(cells, lines)) <= columns
    words = [line.split() for line in lines]
    assert [word[0] for word in words] == ["ID", "task-3", "task-2", "task-4-8", "task-9"]
    assert [line for line in lines if "GPUs busy" in line or columns < 40]
    if columns >= 80:
        assert "tune[…]" in lines[3]
        assert "5 pending" in lines[3]
        assert "START" in lines[0]
    place = {cells(line[: line.index(word)]) for line, word in zip(lines, ("STATUS", "runn", "runn", "5 pend", "pend"), strict=True)}  # fmt: skip
    assert len(place) == 1, "two-cell letters keep the columns in line"


def test_the_calls_of_a_map_are_one_line_that_cancel_takes(cluster: CliCluster) -> None:
    client = cluster.client()
    results = client.map(wait_for, range(600, 602), cpu_count=1, return_exceptions=True)
    reader = threading.Thread(target=lambda: list(results), daemon=True)
    reader.start()
    until(lambda: len(list(client.tasks(query="wait_for[", status="running"))) == 2, what="all calls run")
    [line] = [line for line in cluster.does("ps").splitlines() if "wait_for" in line]
    assert "wait_for[…]" in line
    assert "2 running" in line
    calls = sorted(client.tasks(query="wait_for["), key=lambda task: task.number)
    assert [task.name for task in calls] == [f"wait_for[seconds={n}]" for n in range(600, 602)]
    shown = cluster.does("show", calls[0].id)
    assert "the Python function wait_for[seconds=600]" in shown
    assert "call_runner" not in shown
    assert cluster.does("cancel", "wait_for[…]").count("is being stopped") == 2
    assert {client.wait(task).status for task in calls} == {"cancelled"}
    [line] = [line for line in cluster.does("ps", "-a").splitlines() if "wait_for" in line]
    assert "2 cancelled" in line
    assert len([line for line in cluster.does("ps", "-a", "--unfold").splitlines() if "wait_for[" in line]) == 2


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_ps_has_no_color_where_it_is_not_wanted(cluster: CliCluster, env: dict[str, str]) -> None:
    with terminal(cluster, "ps", env=env) as child:
        assert "\x1b" not in all_of(child)
    assert "\x1b" not in cluster.does("ps")


def test_ps_in_a_pipe_is_complete(cluster: CliCluster) -> None:
    long = "a name that is much longer than a terminal of eighty columns would ever show in one of its lines"
    task = cluster.does("submit", "-n", long, "-g", "64", "--", "true").strip()
    assert long in cluster.does("ps")
    cluster.does("cancel", task)


def test_ps_mine_and_json(cluster: CliCluster) -> None:
    columns = ("--columns", "id,name,status")
    mine = cluster.does("ps", "--mine", *columns)
    assert mine == cluster.does("ps", "-u", cluster.client().task(2).user, *columns)
    assert "holds" in mine
    assert len(cluster.does("ps", "--user", "stranger").splitlines()) == 1
    told = json.loads(cluster.does("ps", "--json", "--sort", "queue"))
    assert [row["id"] for row in told["rows"]] == ["task-3", "task-2", "task-4", "task-9"]
    assert [task["id"] for task in json.loads(cluster.does("ps", "--json"))["tasks"]][:2] == ["task-9", "task-8"]


def test_ps_watch_shows_changes_in_place_until_ctrl_c(cluster: CliCluster) -> None:
    with terminal(cluster, "ps", "--watch", "--interval", "0.5", lines=12) as child:
        child.expect("2 running, 6 waiting")
        task = cluster.client().submit("true", name="newcomer", gpu_count=64)
        child.expect_exact("\x1b[H")
        child.expect("7 waiting")
        child.expect("newcomer")
        cluster.client().cancel(task)
        child.expect("6 waiting")
        child.sendintr()
        assert exit_code(child) == 0
        assert "Traceback" not in str(child.before)


def test_ps_watch_in_a_dumb_terminal_prints_one_table_after_the_other(cluster: CliCluster) -> None:
    with terminal(cluster, "ps", "-w", "--interval", "0.5", env={"TERM": "dumb"}) as child:
        child.expect("2 running, 6 waiting")
        child.expect("2 running, 6 waiting")
        assert "\x1b" not in str(child.before)
        child.sendintr()
        assert exit_code(child) == 0


# --- gpus and nodes ---------------------------------------------------------------------------------------------------


def test_gpus_lists_who_holds_what(cluster: CliCluster) -> None:
    user = cluster.client().task(2).user
    with terminal(cluster, "gpus", columns=100) as child:
        lines = text_of(all_of(child)).strip().splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.split()[0].rpartition("/")[2] for line in lines[1:]] == ["0", "1", "2", "3"]
    assert sum("task-2" in line and user in line for line in lines) == 2
    assert cluster.does("gpus", "-s", "idle").count("\n") == 1
    assert cluster.does("gpus", "-u", user).count("\n") == 5
    assert f"held by: {user} 4" in cluster.does("gpus", "--map")


def test_gpus_watch_ends_with_ctrl_c(cluster: CliCluster) -> None:
    with terminal(cluster, "gpus", "--map", "-w", "--interval", "0.5") as child:
        child.expect("held by")
        child.expect("held by")
        child.sendintr()
        assert exit_code(child) == 0


def test_a_drain_says_why_and_waits_for_the_tasks(cluster: CliCluster) -> None:
    client = cluster.client()
    [node] = [one.id for one in client.nodes().nodes]
    with terminal(cluster, "nodes", "drain", node, "--wait", "--reason", "new fan") as child:
        child.expect("still has 2 tasks: task-2, task-3")
        child.sendintr()
        assert exit_code(child) == 130
    assert "draining" in cluster.does("nodes")
    assert "new fan" in cluster.does("nodes")
    assert "new fan" in cluster.does("gpus", "--map")
    cluster.does("nodes", "uncordon", node)
    assert "new fan" not in cluster.does("nodes")


def test_a_drain_that_is_ended_by_others_is_noticed(cluster: CliCluster) -> None:
    client = cluster.client()
    [node] = [one.id for one in client.nodes().nodes]
    with terminal(cluster, "nodes", "drain", node, "--wait", env={"TERM": "dumb"}) as child:
        child.expect("still has 2 tasks")
        client.uncordon(node)
        child.expect("is online again: the drain was ended by somebody else")
        assert exit_code(child) == 1


# --- show and explain -------------------------------------------------------------------------------------------------


def test_show_tells_the_story_of_a_failed_task(cluster: CliCluster) -> None:
    with terminal(cluster, "show", "broken") as child:
        shown = all_of(child)
    assert "\x1b[31mAttempt 1 failed with exit code 3." in shown
    lines = text_of(shown).splitlines()
    assert [line.split()[0] for line in lines if "The task was submitted." in line]
    assert lines[-3:] == ["Its output:", "  before", "  what went wrong"]
    assert cluster.does("explain", "broken").splitlines()[-1] == "  what went wrong"


def test_a_task_that_took_too_long_says_what_its_timeout_was(cluster: CliCluster) -> None:
    client = cluster.client()
    task = client.submit("echo still busy; exec sleep 60", gpu_count=0, cpu_count=1, timeout=0.5)
    assert client.wait(task).status == "timeout"
    assert cluster.does("explain", task.id).splitlines() == [
        f"{task.id} has timed out. It ran longer than its timeout of 0.5 s.",
        "Its output:",
        "  still busy",
    ]


# --- top --------------------------------------------------------------------------------------------------------------


def test_top_in_a_real_terminal_shows_filters_and_cancels(cluster: CliCluster) -> None:
    client = cluster.client()
    doomed = client.submit("true", name="doomed", gpu_count=64)
    with terminal(cluster, "top", columns=130, lines=35) as child:
        child.expect("4 of 4 GPUs busy")
        child.expect("doomed")
        child.send("/doom\r")
        child.expect(r"line 1 of 1 +filter: doom")  # its line is there; keys for a line do nothing before
        child.send("e")
        child.expect("64 GPUs of one model")
        child.send("\x1b")
        child.expect("filter: doom")
        child.send("c")
        child.expect(f"Cancel the task: {doomed.id}")
        child.send("y")
        child.expect("1 task was cancelled")
        child.send("q")
        assert exit_code(child) == 0
        assert "Traceback" not in str(child.before)
    assert client.task(doomed).status == "cancelled"


def test_top_ends_with_ctrl_c_and_restores_the_terminal(cluster: CliCluster) -> None:
    with terminal(cluster, "top", columns=60, lines=15) as child:
        child.expect("running")
        child.sendintr()
        rest = all_of(child)
        assert exit_code(child) == 0
    assert "\x1b[?1049l" in rest, "it leaves the alternate screen"
    assert "\x1b[?25h" in rest, "it shows the cursor"


def test_top_prints_once_where_it_cannot_draw(cluster: CliCluster) -> None:
    for done in (cluster.does("top"), cluster.does("top", "--once")):
        assert "2 running" in done
        assert "tune[…]" in done
    with terminal(cluster, "top", env={"TERM": "dumb"}) as child:
        shown = all_of(child)
    assert "\x1b" not in shown
    assert "2 running" in shown
    assert json.loads(cluster.does("top", "--json"))["gpus"]["busy"] == 4
    assert cluster.does("top", "-q", "tune", "-u", cluster.client().task(2).user).count("tune") == 1
    assert "tune" not in cluster.does("top", "-t", "nobody")


def test_top_of_a_wrong_address_is_a_sentence(cluster: CliCluster) -> None:
    with terminal(cluster, "top", "--server", "http://127.0.0.1:9") as child:
        shown = all_of(child)
        assert exit_code(child) == 1
    assert "gpuyard: " in shown
    assert "Traceback" not in shown
