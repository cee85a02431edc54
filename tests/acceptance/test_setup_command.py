"""A setup command: it runs before the command in the same shell, and its failure is the reason why a task failed."""

import json
from collections.abc import Iterator

import pytest

from gpuyard.live.sdk import ClusterError, Task
from tests.acceptance.cli_cluster import CliCluster
from tests.acceptance.waiting import until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    made = CliCluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.up()
        yield made
    finally:
        made.end()


def printed(cluster: CliCluster, task: Task) -> str:
    return b"".join(cluster.client().logs(task)).decode()


def test_what_the_setup_does_reaches_the_command_with_its_arguments_as_they_are(cluster: CliCluster) -> None:
    setup = "echo ready; export FOUND='it is'; cd sub"
    (cluster.folder / "sub").mkdir()
    done = cluster.call(
        "run", "--setup", setup, "--", "sh", "-c", 'echo "$FOUND" "$1"; basename "$PWD"; exit 3', "sh", "a  b; $x"
    )
    assert (done.returncode, done.stdout) == (3, "ready\nit is a  b; $x\nsub\n")
    assert cluster.does("run", "--setup", "A=1", "--shell", "echo shell $A && echo two").splitlines() == [
        "shell",
        "two",
    ]


@pytest.mark.parametrize(
    ("setup", "code"), [("echo missing; exit 7", 7), ("false", 1), ("no-such-program", 127), ("if", 2), ("exit 0", 1)]
)
def test_a_failed_setup_is_the_reason(cluster: CliCluster, setup: str, code: int) -> None:
    client = cluster.client()
    task = client.wait(client.submit("echo never", gpus=1, setup=setup), timeout=60)
    assert (task.status, task.exit_code, task.setup) == ("failed", code, setup)
    assert task.reason == f"It ended with exit code {code}. The setup command failed, so the command was not started."
    assert "never" not in printed(cluster, task)
    assert cluster.does("logs", task.id).endswith(f"gpuyard: The setup command failed with exit code {code}.\n")


def test_a_failed_command_is_not_a_failed_setup(cluster: CliCluster) -> None:
    client = cluster.client()
    words = "echo 'gpuyard: The setup command failed with exit code 4.'; exit 5"
    for setup in ("true", None):
        task = client.wait(client.submit(words, gpus=1, setup=setup), timeout=60)
        assert (task.status, task.exit_code) == ("failed", 5)
        assert "setup" not in (task.reason or "")
    without = client.wait(client.submit(words.replace("exit 5", "exit 4"), gpus=1), timeout=60)
    assert "setup" not in (without.reason or "")


def test_a_setup_can_be_stopped_and_times_out(cluster: CliCluster) -> None:
    client = cluster.client()
    late = client.submit("echo never", gpus=1, setup="sleep 300", timeout=1)
    assert client.wait(late, timeout=60).status == "timeout"
    task = client.submit("echo never", gpus=1, setup="echo ready; sleep 300")
    until(lambda: "ready" in printed(cluster, client.task(task.id)), what="the setup runs")
    client.cancel(task)
    over = client.wait(task, timeout=60)
    assert (over.status, printed(cluster, over).splitlines()[0]) == ("cancelled", "ready")
    assert "never" not in printed(cluster, over)


def test_in_task_files_job_scripts_and_copies_of_the_code(cluster: CliCluster) -> None:
    (cluster.folder / "tasks.yaml").write_text(
        "defaults: {setup: echo from file, gpus: 1}\ntasks:\n  - command: [echo, one]\n  - {command: echo two, setup: echo own}\n"
    )
    tasks = cluster.client().wait(cluster.does("submit", "tasks.yaml").split(), timeout=60)
    assert [printed(cluster, task) for task in tasks] == ["from file\none\n", "own\ntwo\n"]
    (cluster.folder / "job.sh").write_text("#!/bin/bash\n#SBATCH -J job\necho script $PREPARED\n")
    said = cluster.does("submit", "--setup", "export PREPARED=yes", "job.sh")
    assert printed(cluster, cluster.client().wait(said.strip(), timeout=60)) == "script yes\n"
    code = cluster.folder / "code"
    code.mkdir()
    (code / "train.py").write_text("import made; print(made.value)")
    words = ("--snapshot", "-C", str(code), "--setup", "echo value = 5 > made.py", "--", "python3", "train.py")
    assert cluster.does("run", *words) == "5\n"
    assert not (code / "made.py").exists()


def test_a_lease_has_no_setup_and_an_empty_one_is_refused(cluster: CliCluster) -> None:
    done = cluster.call("submit", "--setup", "", "--", "true")
    assert done.returncode != 0
    assert "setup" in done.stderr
    body = cluster.call("submit", "--json", "--setup", "true", "--", "true")
    assert json.loads(body.stdout)["setup"] == "true"
    client = cluster.client()
    with pytest.raises(ClusterError, match="setup is given, but the task has no command"):
        client.submit_together([{"gpus": 1, "setup": "true"}])
