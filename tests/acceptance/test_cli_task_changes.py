"""boost, extend, clone, retry, wait and whoami against a real cluster."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli_cluster import CliCluster, running_cluster
from tests.acceptance.waiting import until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def ended(cluster: CliCluster, *words: str) -> str:
    """Submit a task, wait for its end, and return its id."""
    task = json.loads(cluster.does("submit", "--json", *words))["id"]
    cluster.client().wait(task, timeout=60)
    return str(task)


# --- boost and extend ---------------------------------------------------------------------------------------------------


def test_boost_raises_the_priority_of_several_tasks_and_stops_at_100(cluster: CliCluster) -> None:
    client = cluster.client()
    low = client.submit(["sleep", "60"], gpus=1, priority=20)
    high = client.submit(["sleep", "60"], gpus=1, priority=95)
    assert cluster.does("boost", low.id, high.id) == f"{low.id} has priority 30.\n{high.id} has priority 100.\n"
    assert cluster.does("boost", "--by", "25", low.id) == f"{low.id} has priority 55.\n"
    assert any(event.event == "PriorityChanged" for event in client.events(low))
    cluster.does("cancel", low.id, high.id)
    assert "has ended" in cluster.call("boost", low.id).stderr


def test_extend_gives_a_running_task_more_time(cluster: CliCluster, tmp_path: Path) -> None:
    client = cluster.client()
    task = client.submit(f"while ! test -e {tmp_path}/end; do sleep 0.1; done", timeout=5)
    until(lambda: client.task(task).status == "running", what="the task runs")
    said = cluster.does("extend", task.id, "--by", "1h")
    assert said.startswith(f"{task.id} has a timeout of 1h00m and is stopped at ")
    assert client.task(task).timeout == 3605
    assert cluster.does("extend", task.id, "--to", "2h", "--json").startswith("{")
    assert client.task(task).timeout == 7200
    assert any(event.event == "TaskExtended" for event in client.events(task))
    refused = cluster.call("extend", task.id, "--to", "1m")
    assert refused.returncode == 1
    assert "can only be raised" in refused.stderr
    (tmp_path / "end").touch()
    assert client.wait(task, timeout=60).status == "success"


def test_a_task_without_a_timeout_is_not_extended(cluster: CliCluster) -> None:
    client = cluster.client()
    task = client.submit(["sleep", "60"])
    done = cluster.call("extend", task.id, "--by", "1h")
    assert (done.returncode, done.stderr) == (1, f"gpuyard: {task.id} has no timeout, so it cannot be extended.\n")
    assert cluster.call("extend", task.id).returncode == 2
    client.cancel(task)


# --- clone and retry ----------------------------------------------------------------------------------------------------


def test_a_failed_task_is_retried_as_it_was(cluster: CliCluster) -> None:
    task = ended(
        cluster, "-g", "2", "-n", "first", "-e", "COLOR=blue", "--timeout", "1h", "--retries", "0", "-p", "70",
        "--shell", "echo $COLOR $GPUYARD_ARRAY_INDEX; exit 3",
    )  # fmt: skip
    said = cluster.does("retry", task)
    again = said.split()[0]
    assert said == f"{again} is {task} again.\n"
    client = cluster.client()
    one, two = client.task(task), client.wait(again, timeout=60)
    for field in ("command", "env", "gpu_count", "name", "timeout", "priority", "tenant_id", "work_dir", "task_class"):
        assert getattr(one, field) == getattr(two, field), field
    assert two.exit_code == 3
    assert b"blue" in b"".join(client.logs(again))


def test_a_clone_has_the_changes_that_were_asked_for(cluster: CliCluster) -> None:
    task = ended(cluster, "-g", "1", "-e", "COLOR=blue", "-e", "SIZE=2", "--shell", "echo $COLOR$SIZE")
    told = json.loads(cluster.does("clone", task, "-g", "2", "-e", "COLOR=red", "--timeout", "90s", "--json"))
    assert (told["gpu_count"], told["timeout"]) == (2, 90.0)
    client = cluster.client()
    client.wait(told["id"], timeout=60)
    assert b"".join(client.logs(told["id"])) == b"red2\n"
    assert client.task(task).gpu_count == 1


def test_shares_cpu_tasks_and_elements_of_arrays_are_cloned_as_they_are(cluster: CliCluster) -> None:
    client = cluster.client()
    share = client.submit(["true"], gpu_fraction=0.5, gpu_memory_mb=2000)
    cpus = client.submit(["true"], gpu_count=0, cpu_count=1)
    array = client.submit_all("echo $GPUYARD_ARRAY_INDEX; exit 1", array=3)
    client.wait([share, cpus, *array], timeout=60)
    again = client.clone(share)
    assert (again.gpu_count, again.gpu_fraction, again.gpu_memory_mb) == (0, 0.5, 2000)
    again = client.clone(cpus)
    assert (again.gpu_count, again.cpu_count) == (0, 1)
    element = cluster.does("retry", array[2].id).split()[0]
    client.wait(element, timeout=60)
    assert client.task(element).array_index == 2
    assert b"".join(client.logs(element)) == b"2\n"


def test_secrets_are_asked_for_again(cluster: CliCluster) -> None:
    done = cluster.call("submit", "--json", "--secret", "KEY", "--shell", "test $KEY = 17", env={"KEY": "17"})
    task = json.loads(done.stdout)["id"]
    client = cluster.client()
    assert client.wait(task, timeout=60).status == "success"
    refused = cluster.call("clone", task)
    assert refused.returncode == 2
    assert "KEY is not set in your environment" in refused.stderr
    again = json.loads(cluster.call("clone", task, "--json", env={"KEY": "17"}).stdout)["id"]
    assert client.wait(again, timeout=60).status == "success"


def test_retry_refuses_what_did_not_fail_and_names_clone(cluster: CliCluster) -> None:
    good, bad = ended(cluster, "--", "true"), ended(cluster, "--", "false")
    before = cluster.client().page().total
    done = cluster.call("retry", bad, good)
    assert (done.returncode, done.stderr) == (
        1,
        f"gpuyard: {good} succeeded; `gpuyard clone {good}` submits it again.\n",
    )
    assert cluster.client().page().total == before
    assert "did you mean 'gpuyard retry'?" in cluster.call("rerun", bad).stderr


def test_a_lease_is_not_cloned(cluster: CliCluster) -> None:
    client = cluster.client()
    with client.lease(1) as lease:
        done = cluster.call("clone", lease.id)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "is a lease" in done.stderr


# --- wait and whoami ------------------------------------------------------------------------------------------------------


def test_wait_returns_the_exit_code_of_a_task(cluster: CliCluster) -> None:
    task = cluster.client().submit("sleep 0.5; exit 7")
    done = cluster.call("wait", task.id)
    assert done.returncode == 7
    assert done.stdout.startswith(f"{task.id} ended as failed: ")


def test_wait_for_several_returns_the_code_of_the_first_that_failed(cluster: CliCluster) -> None:
    client = cluster.client()
    tasks = [client.submit(f"exit {code}", name="several") for code in (0, 5, 9)]
    done = cluster.call("wait", *(task.id for task in tasks))
    assert done.returncode == 5
    assert done.stdout.count("ended as") == 3
    assert cluster.does("wait", "--quiet", tasks[0].id) == ""
    assert json.loads(cluster.does("wait", "--json", tasks[0].id))["status"] == "success"


def test_wait_for_any_or_for_some_time(cluster: CliCluster) -> None:
    client = cluster.client()
    long, short = client.submit(["sleep", "60"], name="long"), client.submit(["true"])
    assert cluster.does("wait", "--any", long.id, short.id) == f"{short.id} ended as success.\n"
    done = cluster.call("wait", "--timeout", "0.3", "long")
    assert done.returncode == 124
    assert "has not ended within 0.3 s" in done.stderr
    client.cancel(long)
    assert cluster.call("wait", long.id).returncode == 130


def test_whoami_names_the_user_and_the_role(cluster: CliCluster) -> None:
    said = cluster.does("whoami")
    assert "role           admin" in said
    assert cluster.url in said
    assert json.loads(cluster.does("whoami", "--json"))["via"] == "local"
