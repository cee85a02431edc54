"""Limits on how many tasks of an array or sweep run at once, and dependencies by name, against a real cluster."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.live.sdk import Client, Refused, Task
from tests.acceptance.cli_cluster import CliCluster, running_cluster
from tests.acceptance.waiting import until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def client(cluster: CliCluster) -> Iterator[Client]:
    client = cluster.client()
    yield client
    for task in list(client.tasks(status="pending,running")):
        client.cancel(task)
    until(lambda: not client.page(status="pending,running").total, what="all tasks have ended")


def running(client: Client, tasks: list[Task]) -> list[str]:
    now = [client.task(task) for task in tasks]
    return [task.id for task in now if task.status == "running"]


def holds(client: Client, tasks: list[Task], count: int) -> None:
    """Wait until exactly so many tasks run."""
    until(lambda: len(running(client, tasks)) == count, what=f"{count} tasks run")


def submitted(client: Client, out: str) -> list[Task]:
    return [client.task(word) for word in out.split()]


# --- limits -------------------------------------------------------------------------------------------------------------


def test_an_array_with_a_percent_sign_runs_so_many_at_once_and_explain_says_why_the_others_wait(
    cluster: CliCluster, client: Client
) -> None:
    tasks = submitted(client, cluster.does("submit", "-n", "slow", "--array", "6%2", "--", "sleep", "60"))
    holds(client, tasks, 2)
    assert running(client, tasks) == [tasks[0].id, tasks[1].id]
    assert client.task(tasks[3]).max_running == 2
    told = cluster.does("explain", tasks[3].id)
    assert "is limited to 2 running tasks; running now: 2." in " ".join(told.split())
    assert f"gpuyard max-running {tasks[3].id} N" in " ".join(told.split())
    client.cancel(tasks[0])
    until(lambda: running(client, tasks) == [tasks[1].id, tasks[2].id], what="the next one runs")


def test_the_limit_is_changed_and_removed_by_name_and_by_id(cluster: CliCluster, client: Client) -> None:
    tasks = client.submit_all(["sleep", "60"], array=4, max_running=1, name="changing")
    holds(client, tasks, 1)
    said = cluster.does("max-running", "changing", "3")
    assert said.endswith("is changed: at most 3 tasks of its array or sweep run at the same time.\n")
    holds(client, tasks, 3)
    client.cancel(tasks[0])
    until(lambda: client.task(tasks[0]).status == "cancelled", what="the first one has ended")
    assert json.loads(cluster.does("max-running", tasks[0].id, "0", "--json"))["id"] in {tasks[0].id, tasks[1].id}
    assert client.task(tasks[3]).max_running is None
    holds(client, tasks, 3)


def test_an_array_or_sweep_without_a_limit_gets_one(cluster: CliCluster, client: Client) -> None:
    full = client.submit(["sleep", "60"], gpus=4)
    until(lambda: client.task(full).status == "running", what="the GPUs are in use")
    array = client.submit_all(["sleep", "60"], array=3, name="late")
    sweep = client.sweep(["sleep", "{s}"], {"s": [60, 61, 62]}, name="wide")
    assert client.set_max_running(array[1], 1).max_running == 1
    cluster.does("max-running", "wide", "2")
    assert [client.task(task).max_running for task in (*array, *sweep)] == [1, 1, 1, 2, 2, 2]
    client.cancel(full)
    holds(client, array, 1)
    holds(client, sweep, 2)
    alone = client.submit(["sleep", "60"])
    refused = cluster.call("max-running", alone.id, "2")
    assert refused.returncode == 1
    assert f"{alone.id} is not part of an array or sweep, so max_running has no meaning for it." in refused.stderr


def test_a_sweep_and_a_task_file_have_limits(cluster: CliCluster, client: Client, tmp_path: Path) -> None:
    words = ("submit", "--sweep", "s=60..63", "--max-running", "2", "--", "sleep", "{s}")
    tasks = submitted(client, cluster.does(*words))
    holds(client, tasks, 2)
    assert json.loads(cluster.does(*words[:5], "--dry-run", "--json", *words[5:]))["limits"] == [
        {"first": 0, "count": 4, "max_running": 2}
    ]
    for task in tasks:
        client.cancel(task)
    file = tmp_path / "tasks.yaml"
    file.write_text(
        "tasks:\n"
        "  - {name: one, command: sleep 60}\n"
        "  - {name: many, command: 'sleep {s}', sweep: {s: [60, 61, 62]}, max_running: 1}\n"
        "  - {name: copies, command: sleep 60, array: {count: 3, max_running: 1}}\n"
    )
    made = submitted(client, cluster.does("submit", str(file)))
    assert [client.task(task).max_running for task in made] == [None, 1, 1, 1, 1, 1, 1]
    holds(client, made, 3)


def test_wrong_limits_are_refused_with_the_way_out(cluster: CliCluster, client: Client) -> None:
    for words, sentence in (
        (("--max-running", "2", "--", "true"), "it needs --array or --sweep"),
        (("--array", "4%2", "--max-running", "3", "--", "true"), "--array says that at most 2 run at once; give the limit only once"),
        (("--array", "4%0", "--", "true"), "20%4 to run at most 4 at the same time"),
        (("--array", "4%x", "--", "true"), "20%4 to run at most 4 at the same time"),
    ):  # fmt: skip
        done = cluster.call("submit", *words)
        assert done.returncode != 0
        assert sentence in " ".join(done.stderr.split()), done.stderr
    with pytest.raises(Refused, match=r"The limit is for tasks\[0\] to tasks\[2\], but the batch has 2 tasks"):
        client.submit_together([{"command": "true"}] * 2, limits=[{"first": 0, "count": 3, "max_running": 1}])
    with pytest.raises(Refused, match=r"tasks\[1\] has another limit on running tasks already"):
        client.submit_together(
            [{"command": "true"}] * 2,
            limits=[{"first": 0, "count": 2, "max_running": 1}, {"first": 1, "count": 1, "max_running": 1}],
        )
    assert not client.page(status="pending,running").total


def test_a_job_script_with_a_percent_sign_runs_so_many_at_once(
    cluster: CliCluster, client: Client, tmp_path: Path
) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --array=1-4%1\n#SBATCH --gres=gpu:1\nsleep 60\n")
    done = cluster.call("submit", str(script))
    assert done.returncode == 0, done.stderr
    assert "4 tasks, at most 1 at once, each" in done.stderr
    tasks = submitted(client, done.stdout)
    tasks = [client.task(tasks[0].number + place) for place in range(4)]
    holds(client, tasks, 1)
    assert {client.task(task).max_running for task in tasks} == {1}


# --- after --------------------------------------------------------------------------------------------------------------


def test_after_takes_the_name_of_a_task_an_array_and_a_sweep(cluster: CliCluster, client: Client) -> None:
    held = client.submit(["sleep", "60"], gpus=4)
    array = client.submit_all("true", array=3, name="parts")
    sweep = client.sweep(["echo", "{s}"], {"s": [1, 2]}, name="grid")
    (task,) = submitted(
        client, cluster.does("submit", "--after", "parts", "--after-any", f"grid,{held.id}", "--", "true")
    )
    assert task.depends_on == [each.id for each in array]
    assert task.after_any == [*(each.id for each in sweep), held.id]
    again = cluster.does("clone", task.id, "--after", "parts").split()[0]
    assert client.task(again).depends_on == [each.id for each in array]
    single = client.submit("true", depends_on=array[0])
    assert single.depends_on == [array[0].id]
    client.cancel(held)
    assert client.wait(task, timeout=60).status == "success"


def test_after_refuses_names_that_mean_nothing_or_several_things(cluster: CliCluster, client: Client) -> None:
    client.submit(["sleep", "60"], gpus=4)
    for _ in range(2):
        client.submit_all("true", array=2, name="same")
    before = client.page().total
    for words in (("submit",), ("submit", "--dry-run"), ("run",)):
        done = cluster.call(*words, "--after", "nobody", "--", "true")
        assert done.returncode == 2
        assert "there is no task, array or sweep with the id or name 'nobody'" in " ".join(done.stderr.split())
        done = cluster.call(*words, "--after", "same", "--", "true")
        assert done.returncode == 2
        assert "2 tasks, arrays or sweeps that have not ended are called same" in " ".join(done.stderr.split())
    assert client.page().total == before


def test_a_task_file_may_wait_for_tasks_that_were_submitted_before(
    cluster: CliCluster, client: Client, tmp_path: Path
) -> None:
    client.submit(["sleep", "60"], gpus=4)
    array = client.submit_all("true", array=2, name="earlier")
    file = tmp_path / "tasks.yaml"
    file.write_text("name: report\ncommand: 'true'\ndepends_on: earlier\n")
    (task,) = submitted(client, cluster.does("submit", str(file)))
    assert task.depends_on == [each.id for each in array]
    file.write_text("name: report\ncommand: 'true'\ndepends_on: [earlyer]\n")
    done = cluster.call("submit", str(file))
    assert done.returncode != 0
    assert "there is no task 'earlyer'; name a task of this file, or one that was submitted before." in done.stderr
