"""The commands against a real cluster: scheduler, agent, supervisor and tasks are real processes."""

import json
import re
import resource
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuyard.live.sdk import Task
from tests.acceptance.cli_cluster import GPUYARD, CliCluster, running_cluster
from tests.acceptance.waiting import until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def raw(cluster: CliCluster, path: str) -> str:
    with urllib.request.urlopen(cluster.url + path, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


# --- run --------------------------------------------------------------------------------------------------------------


def test_run_shows_the_output_and_the_allocated_gpus(cluster: CliCluster) -> None:
    out = cluster.does("run", "-g", "2", "-e", "COLOUR=blue", "--", "env")

    lines = dict(line.split("=", 1) for line in out.splitlines())
    assert lines["COLOUR"] == "blue"
    assert len(lines["CUDA_VISIBLE_DEVICES"].split(",")) == 2


@pytest.mark.parametrize(
    ("line", "code"), [("exit 0", 0), ("exit 1", 1), ("exit 77", 77), ("kill -9 $$", 137), ("kill -15 $$", 143)]
)
def test_run_returns_the_exit_code_of_the_task(cluster: CliCluster, line: str, code: int) -> None:
    done = cluster.call("run", "--shell", f"echo before; {line}")

    assert (done.returncode, done.stdout, done.stderr) == (code, "before\n", "")


def test_run_keeps_bytes_unchanged_and_both_outputs_in_order(cluster: CliCluster) -> None:
    line = r"printf 'one\n'; printf 'two\n' >&2; printf '\377\000\n'; printf 'last'"
    done = subprocess.run(
        [GPUYARD, "run", "--shell", line],
        env=cluster.env,
        capture_output=True,
        timeout=120,
        check=False,
        cwd=cluster.folder,
    )

    assert done.stdout == b"one\ntwo\n\xff\x00\nlast"
    assert done.returncode == 0


def test_a_run_that_times_out_exits_with_124(cluster: CliCluster) -> None:
    done = cluster.call("run", "--timeout", "0.3", "--", "sleep", "60")

    assert done.returncode == 124
    assert "ended as timeout" in done.stderr


def test_a_missing_command_is_reported_in_one_sentence(cluster: CliCluster) -> None:
    done = cluster.call("run", "--", "no-such-command")

    assert done.returncode == 1
    assert "no-such-command" in done.stderr
    assert done.stderr.count("\n") == 1


def test_run_follows_a_task_that_is_retried(cluster: CliCluster, tmp_path: Path) -> None:
    line = f"echo try; test -e {tmp_path}/second && exit 0; touch {tmp_path}/second; exit 5"

    assert cluster.does("run", "--retries", "1", "--shell", line) == "try\ntry\n"


def test_ctrl_c_cancels_the_task(cluster: CliCluster, tmp_path: Path) -> None:
    words = [GPUYARD, "run", "-n", "interrupted", "--shell", f"touch {tmp_path}/runs; exec sleep 100"]
    with subprocess.Popen(words, env=cluster.env, stderr=subprocess.PIPE, text=True, cwd=cluster.folder) as running:
        until((tmp_path / "runs").exists, what="the task runs")
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)

    assert running.returncode == 130
    assert "is being cancelled" in said
    assert "Traceback" not in said
    [task] = cluster.client().tasks(name="interrupted")
    assert task.status == "cancelled"


def test_run_as_json_prints_the_whole_task(cluster: CliCluster) -> None:
    done = cluster.call("run", "--json", "--shell", "echo quiet; exit 4")

    told = json.loads(done.stdout)
    assert done.returncode == 4
    assert (told["status"], told["exit_code"]) == ("failed", 4)


# --- waiting without a terminal ---------------------------------------------------------------------------------------


class Background:
    """A command without a terminal."""

    def __init__(self, cluster: CliCluster, errors: Path, *words: str) -> None:
        self._errors = errors
        with errors.open("w") as file:
            self.process = subprocess.Popen(
                [GPUYARD, *words], env=cluster.env, stdout=subprocess.PIPE, stderr=file, text=True, cwd=cluster.folder
            )

    @property
    def said(self) -> str:
        """On standard error, up to now."""
        return self._errors.read_text()

    def printed(self) -> str:
        """To its good end."""
        out, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0
        return out


@contextmanager
def made_to_wait(cluster: CliCluster, folder: Path, *words: str) -> Iterator[Background]:
    """A command that is started while all GPUs are in use; at the end of the block they are free."""
    with cluster.client().lease(gpus=4, wait_seconds=60):
        called = Background(cluster, folder / "errors", *words)
        try:
            yield called
        except BaseException:
            called.process.terminate()
            called.process.communicate(timeout=60)
            raise


def waiting(cluster: CliCluster, name: str) -> Task:
    """The task of this name, once it waits with a reason."""
    return until(
        lambda: next((task for task in cluster.client().tasks(name=name, status="pending") if task.reason), None),
        what=f"{name} waits",
    )


def test_a_task_that_waits_for_a_retry_shows_what_happened_and_why_it_waits(cluster: CliCluster) -> None:
    task = cluster.client().submit("exit 5", retries=9, name="flaky")
    until(lambda: cluster.client().task(task).attempts == 2, what="the second try")
    why = "It ended with exit code 5. The task waits for its retry delay before the next attempt."
    until(lambda: waiting(cluster, "flaky").reason == why, what="the reason of the wait")
    cluster.client().cancel(task)


def test_run_shows_why_it_waits_and_where_it_started(cluster: CliCluster, tmp_path: Path) -> None:
    with made_to_wait(cluster, tmp_path, "run", "-n", "later", "-g", "4", "--", "echo", "mine") as run:
        task = waiting(cluster, "later")
        until(lambda: run.said, 10, "it says that it waits")
        assert run.said == f"gpuyard: {task.id} waits. {task.reason}\n"
    assert run.printed() == "mine\n"
    [node] = cluster.client().nodes().nodes
    assert run.said.splitlines()[1:] == [f"gpuyard: {task.id} started on {node.id}."]


def test_lease_shows_why_it_waits_and_that_it_is_granted(cluster: CliCluster, tmp_path: Path) -> None:
    with made_to_wait(cluster, tmp_path, "lease", "-n", "soon", "-g", "4") as lease:
        task = waiting(cluster, "soon")
        until(lambda: lease.said, 10, "it says that it waits")
        assert lease.said == f"gpuyard: {task.id} waits. {task.reason}\n"
    assert lease.printed().splitlines() == [
        "export CUDA_VISIBLE_DEVICES=0,1,2,3;",
        f"export GPUYARD_LEASE_ID={task.id};",
    ]
    [node] = cluster.client().nodes().nodes
    assert lease.said.splitlines()[1:] == [
        f"gpuyard: {task.id} has its GPUs.",
        f"gpuyard: {task.id} holds 4 GPUs of node {node.id}, without a time limit. To give back: gpuyard lease release {task.id}",
    ]
    cluster.does("lease", "release", task.id)


def test_a_lease_is_released_when_its_process_is_terminated(cluster: CliCluster, tmp_path: Path) -> None:
    with made_to_wait(cluster, tmp_path, "lease", "-n", "forgotten", "-g", "4") as lease:
        task = waiting(cluster, "forgotten")
        lease.process.terminate()
        lease.process.communicate(timeout=60)
        assert lease.process.returncode == 130
        assert cluster.client().task(task).status == "cancelled"


@pytest.mark.parametrize("silently", ["--quiet", "--json"])
@pytest.mark.parametrize("words", [("run", "-g", "4", "true"), ("lease", "-g", "4")])
def test_waiting_can_be_silent(cluster: CliCluster, tmp_path: Path, words: tuple[str, ...], silently: str) -> None:
    verb, *more = words
    with made_to_wait(cluster, tmp_path, verb, silently, "-n", f"{verb} {silently}", *more) as called:
        task = waiting(cluster, f"{verb} {silently}")
    called.printed()
    cluster.client().cancel(task)
    assert called.said == ""


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_submit_prints_an_id_that_all_commands_accept(cluster: CliCluster) -> None:
    task = cluster.does("submit", "-n", "hello", "--", "echo", "hello world").strip()

    assert cluster.client().wait(task, timeout=60).status == "success"
    assert cluster.does("logs", task) == "hello world\n"
    row = next(line for line in cluster.does("ps", "-a", "--name", "hello").splitlines() if line.startswith(task))
    assert [row.split()[1], *row.split()[3:6]] == ["hello", "success", "50", "1"]
    shown = cluster.does("show", task)
    assert "hello world" in shown
    assert "success" in shown
    assert task not in cluster.does("ps").split()


def test_json_output_equals_the_api_answer(cluster: CliCluster) -> None:
    task = json.loads(cluster.does("submit", "--json", "--", "true"))["task_id"]
    cluster.client().wait(task, timeout=60)

    assert cluster.does("show", task, "--json").strip() == raw(cluster, f"/api/v1/tasks/{task}")
    assert cluster.does("explain", task, "--json").strip() == raw(cluster, f"/api/v1/tasks/{task}/explain")
    assert cluster.does("ps", "-a", "-n", "2", "--json").strip() == raw(cluster, "/api/v1/tasks?limit=2")
    assert cluster.does("quota", "--json").strip() == raw(cluster, "/api/v1/quota")
    assert json.loads(cluster.does("gpus", "--json"))["total"] == 4
    assert [node["status"] for node in json.loads(cluster.does("nodes", "--json"))["nodes"]] == ["online"]


def test_an_array_prints_all_its_ids(cluster: CliCluster) -> None:
    ids = cluster.does("submit", "--array", "3", "--shell", "echo $GPUYARD_ARRAY_INDEX").split()

    assert len(ids) == 3
    cluster.client().wait(ids, timeout=60)
    assert [cluster.does("logs", task) for task in ids] == ["0\n", "1\n", "2\n"]


def test_why_a_task_waits_is_explained_and_it_can_be_cancelled(cluster: CliCluster) -> None:
    task = cluster.does("submit", "-g", "64", "--", "true").strip()

    told = cluster.does("explain", task)
    assert f"{task} is pending." in told
    assert "64" in told
    assert task in cluster.does("ps")
    assert task in cluster.does("cancel", task)
    assert cluster.client().task(task).status == "cancelled"
    assert "had already ended" in cluster.does("cancel", task)


def test_tasks_are_named_by_name_range_and_filter(cluster: CliCluster) -> None:
    sent = [
        cluster.does("submit", "-g", "64", "-n", name, "--", "true").strip() for name in ("one", "two", "two", "three")
    ]
    assert json.loads(cluster.does("show", "one", "--json"))["id"] == sent[0]
    done = cluster.call("cancel", "two")
    assert (done.returncode, "2 open tasks are called two" in done.stderr) == (2, True), done.stderr
    first, last = (int(task.removeprefix("task-")) for task in (sent[0], sent[1]))
    assert cluster.does("hold", f"{first}-{last}") == f"{sent[0]} is on hold.\n{sent[1]} is on hold.\n"
    assert cluster.does("cancel", "--name", "two", "--yes").count("\n") == 2
    assert cluster.does("cancel", "--mine", "--name", "three").count("\n") == 1
    assert [cluster.client().task(task).status for task in sent] == ["pending", "cancelled", "cancelled", "cancelled"]
    cluster.does("cancel", "one")


def test_one_unknown_id_does_not_prevent_cancelling_the_others(cluster: CliCluster) -> None:
    task = cluster.does("submit", "-g", "64", "--", "true").strip()

    done = cluster.call("cancel", "task-999999", task)
    assert done.returncode == 1
    assert "task-999999" in done.stderr
    assert cluster.client().task(task).status == "cancelled"


def test_tasks_are_held_released_suspended_resumed_and_given_a_priority(cluster: CliCluster) -> None:
    waits = cluster.does("submit", "-g", "64", "--", "true").strip()
    assert cluster.does("hold", waits) == f"{waits} is on hold.\n"
    assert cluster.client().task(waits).reason_code == "OnHold"
    assert cluster.does("release", waits) == f"{waits} is released.\n"
    assert cluster.client().task(waits).reason_code == "NodeTooSmall"
    assert cluster.does("priority", waits, "70") == f"{waits} has priority 70.\n"
    assert cluster.client().task(waits).priority == 70
    assert json.loads(cluster.does("priority", "--json", waits, "71"))["priority"] == 71

    runs = cluster.does("submit", "--preemption", "suspend", "--", "sleep", "100").strip()
    until(lambda: cluster.client().task(runs).status == "running", what="the task runs")
    assert cluster.does("suspend", runs) == f"{runs} is being suspended.\n"
    until(lambda: cluster.client().task(runs).status == "suspended", what="the task is suspended")
    assert cluster.does("resume", runs) == f"{runs} continues as soon as its GPUs are free.\n"
    until(lambda: cluster.client().task(runs).status == "running", what="the task runs again")

    done = cluster.call("hold", "task-999999", waits)
    assert done.returncode == 1
    assert "task-999999" in done.stderr
    assert done.stdout == f"{waits} is on hold.\n"


def test_logs_show_the_tail_and_follow_to_the_end(cluster: CliCluster, tmp_path: Path) -> None:
    line = f"seq 5000; touch {tmp_path}/half; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo last"
    task = cluster.does("submit", "--shell", line).strip()
    until((tmp_path / "half").exists, what="half of the output")

    assert cluster.does("logs", task, "--tail", "2") == "4999\n5000\n"
    assert cluster.does("logs", task, "--tail", "0") == ""
    words = [GPUYARD, "logs", "-f", "--tail", "1", task]
    with subprocess.Popen(words, env=cluster.env, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "5000\n"
        (tmp_path / "go").touch()
        assert following.stdout.read() == "last\n"
        assert following.wait(60) == 0
    as_json = cluster.does("logs", task, "--tail", "2", "--json").splitlines()
    assert [json.loads(one) for one in as_json] == [{"line": "5000"}, {"line": "last"}]


def test_logs_of_a_task_that_has_not_started_show_why(cluster: CliCluster) -> None:
    waits = cluster.client().submit("true", gpu_count=64)
    reason = cluster.client().task(waits).reason

    done = cluster.call("logs", waits.id)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"gpuyard: {waits.id} has not started. {reason}\n"
    assert cluster.call("logs", waits.id, "--json").stderr == ""
    cluster.client().cancel(waits)
    assert cluster.call("logs", waits.id).stderr == f"gpuyard: {waits.id} never started. It was cancelled.\n"


def test_followed_logs_show_at_once_that_the_task_waits(cluster: CliCluster, tmp_path: Path) -> None:
    first = cluster.client().submit(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done")
    task = cluster.client().submit("echo now", depends_on=[first])
    following = Background(cluster, tmp_path / "errors", "logs", "-f", task.id)
    until(lambda: following.said, what="it says that the task waits")
    (tmp_path / "go").touch()

    assert following.printed() == "now\n"
    assert following.said.startswith(
        f"gpuyard: {task.id} has not started. The task waits for {first.id} to end (see gpuyard explain {first.id})."
    )


def test_logs_of_a_task_that_wrote_nothing_are_empty(cluster: CliCluster) -> None:
    task = cluster.client().wait(cluster.client().submit("true"), timeout=60)

    done = cluster.call("logs", task.id)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_logs_of_a_wrong_node_name_the_right_one(cluster: CliCluster) -> None:
    task = cluster.client().wait(cluster.client().submit("true"), timeout=60)

    done = cluster.call("logs", task.id, "--node", "nowhere")
    assert done.returncode == 1
    assert done.stderr == f"gpuyard: {task.id} did not run on node nowhere; it ran on {task.node_id}.\n"


def test_a_secret_reaches_only_the_task(cluster: CliCluster) -> None:
    done = cluster.call("submit", "--secret", "API_KEY", "--shell", 'echo "${#API_KEY}"', env={"API_KEY": "hushhush"})
    task = done.stdout.strip()
    cluster.client().wait(task, timeout=60)

    assert cluster.does("logs", task) == "8\n"
    assert "hushhush" not in cluster.does("show", task, "--json")


def test_wrong_requests_show_the_message_of_the_scheduler(cluster: CliCluster) -> None:
    for words, part in (
        (("submit", "-p", "101", "true"), "priority"),
        (("submit", "--preemption", "maybe", "true"), "preemption"),
        (("submit", "--after", "task-999999", "true"), "999999"),
        (("submit", "--cpus", "-1", "true"), "--cpus is -1;"),
        (("show", "task-999999"), "does not exist"),
        (("show", "seven"), "no task with the id or name seven"),
        (("logs", "task-999999"), "does not exist"),
        (("ps", "-s", "runing"), "running"),
        (("nodes", "cordon", "nowhere"), "nowhere"),
        (("ps", "--token", "gy_wrong"), "token"),
    ):
        done = cluster.call(*words)
        assert done.returncode == 1, words
        assert done.stdout == "", words
        assert part in done.stderr, words
        assert done.stderr.startswith("gpuyard: "), words
        assert done.stderr.count("\n") == 1, words


def test_with_json_an_error_equals_the_api_answer(cluster: CliCluster) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        raw(cluster, "/api/v1/tasks/task-999999")
    with refused.value as answer:
        said = answer.read().decode()
    done = cluster.call("show", "task-999999", "--json")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said + "\n")


# --- the cluster ------------------------------------------------------------------------------------------------------


def test_a_lease_names_its_gpus_until_it_is_released(cluster: CliCluster) -> None:
    script = 'eval $("$0" lease -g 2 --timeout 10m) && sh -c \'echo "$CUDA_VISIBLE_DEVICES $GPUYARD_LEASE_ID"\''
    done = subprocess.run(
        ["sh", "-c", script, GPUYARD], env=cluster.env, capture_output=True, text=True, timeout=60, check=True
    )
    devices, lease = done.stdout.split()
    assert len(devices.split(",")) == 2
    assert f"gpuyard: {lease} holds 2 GPUs of node " in done.stderr
    assert lease in cluster.does("lease", "list")
    released = cluster.call("lease", "release", env={"GPUYARD_LEASE_ID": lease})
    assert released.stdout in {f"{lease} was released.\n", f"{lease} is being released.\n"}, released.stderr
    assert cluster.client().wait(lease, timeout=60).ended
    assert cluster.does("lease", "release", lease) == f"{lease} had already ended (cancelled); nothing was changed.\n"
    unknown = cluster.call("lease", "release", "task-9999", lease)
    assert (unknown.returncode, "task-9999" in unknown.stderr, lease in unknown.stdout) == (1, True, True)
    assert "name a lease, such as task-7" in cluster.call("lease", "release").stderr
    row = next(line for line in cluster.does("ps", "-a").splitlines() if line.startswith(f"{lease} "))
    assert " cancelled " in row
    told = cluster.does("ps", "-a", "--columns", "id,why")
    assert re.search(rf"^{lease} +The lease was released\.", told, re.MULTILINE), told


def test_an_expired_lease_is_reported(cluster: CliCluster) -> None:
    lease = cluster.does("lease", "--timeout", "0.5").split("GPUYARD_LEASE_ID=")[1].rstrip(";\n")

    assert cluster.client().wait(lease, timeout=60).reason == "The lease reached its timeout."


def test_a_lease_that_is_not_granted_in_time_is_given_up(cluster: CliCluster) -> None:
    done = cluster.call("lease", "-g", "64", "--wait", "0.2", "-n", "impatient")

    assert done.returncode == 1
    assert "did not get its GPUs" in done.stderr
    [lease] = cluster.client().tasks(name="impatient")
    assert lease.status == "cancelled"


def test_a_cordoned_node_gets_nothing_new(cluster: CliCluster) -> None:
    [node] = cluster.client().nodes().nodes
    assert "cordoned" in cluster.does("nodes", "cordon", node.id)
    task = cluster.does("submit", "--", "true").strip()
    assert cluster.client().task(task).status == "pending"
    assert "cordoned" in cluster.does("nodes")
    cluster.does("nodes", "uncordon", node.id)
    assert cluster.client().wait(task, timeout=60).succeeded


def test_quota_is_shown_and_changed(cluster: CliCluster) -> None:
    assert "borrow" in cluster.does("quota")
    try:
        assert "50%" in cluster.does("quota", "--online", "0.5", "--mode", "strict")
        assert "strict" in cluster.does("quota", "--mode", "strict")
        assert cluster.client().quota().online_percent == 0.5
    finally:
        cluster.does("quota", "--online", "0.7", "--mode", "borrow")


def test_limits_of_a_tenant(cluster: CliCluster) -> None:
    assert "2 GPUs" in cluster.does("tenants", "set", "vision", "--max-gpus", "2", "--max-by-model", "RTX4090=1")
    told = cluster.does("tenants", "set", "lab", "--gpu-hours", "2")
    assert told.strip() == "lab may use all GPUs, 2 GPU-hours in 30d."
    assert "vision" in cluster.does("tenants")
    done = cluster.call("submit", "-t", "vision", "-g", "3", "--", "true")
    assert done.returncode == 1
    assert "vision" in done.stderr


def test_a_user_logs_in_works_and_is_disabled(cluster: CliCluster) -> None:
    assert "alice" in cluster.does("users", "add", "alice", "--tenant", "sound", given="correct horse\n")
    assert "alice" in cluster.does("users")
    assert (
        cluster.does("users", "add", "root2", "--role", "admin", given="correct horse\n")
        == "root2 is an admin of default.\n"
    )
    cluster.does("users", "remove", "root2")
    wrong = cluster.call("login", "alice", given="wrong\n")
    assert wrong.returncode == 1
    said = cluster.does("login", "alice", given="correct horse\n")
    assert "member of sound" in said
    assert "correct horse" not in said
    [kept] = Path(cluster.env["XDG_CONFIG_HOME"]).rglob("tokens")
    assert kept.stat().st_mode & 0o777 == 0o600
    try:
        task = json.loads(cluster.does("submit", "--json", "-g", "64", "--", "true"))
        assert (task["tenant_id"], task["user"]) == ("sound", "alice")
        assert cluster.call("users").returncode == 1
        changed = cluster.does("users", "passwd", "alice", given="a new horse\ncorrect horse\n")
        assert changed.startswith("alice has a new password")
        assert "member of sound" in cluster.does("login", "alice", given="a new horse\n")
        longer = cluster.call("tokens", "create", "ci", "--lifetime", "30d")
        assert longer.returncode == 1
        assert longer.stderr.startswith("gpuyard: --lifetime is longer than that of your login")
        assert "`gpuyard tokens create --password`" in longer.stderr
        cluster.does("tokens", "create", "ci", "--lifetime", "30d", "--password", given="a new horse\n")
        cluster.does("cancel", task["id"])
    finally:
        cluster.does("login", "--forget")
    cluster.does("users", "passwd", "alice", given="another horse\n")
    token = json.loads(cluster.does("tokens", "create", "ci", "-u", "alice", "--lifetime", "1h", "--json"))
    assert cluster.call("ps", "--token", token["token"]).returncode == 0
    assert token["id"] in cluster.does("tokens")
    cluster.does("tokens", "revoke", token["id"])
    shut_out = cluster.call("ps", "--token", token["token"])
    assert shut_out.returncode == 1
    assert "revoked" in shut_out.stderr
    assert "alice" in cluster.does("users", "remove", "alice")


# --- speed ------------------------------------------------------------------------------------------------------------


def seconds_of(words: list[str], cluster: CliCluster) -> float:
    """Of a processor, the best of several: what it costs, not what the machine does beside it. Compiled files are kept, as usual."""
    env = {name: value for name, value in cluster.env.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times = []
    for _ in range(10):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, env=env, capture_output=True, timeout=60, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def test_help_and_ps_answer_fast(cluster: CliCluster) -> None:
    nothing = seconds_of([sys.executable, "-c", "pass"], cluster)

    assert seconds_of([GPUYARD, "--help"], cluster) - nothing < 0.3
    assert seconds_of([GPUYARD, "ps"], cluster) - nothing < 0.3


def test_json_and_pipes_never_load_rich() -> None:
    look = "import sys; sys.argv = ['gpuyard', 'ps', '--server', 'http://127.0.0.1:1']; from gpuyard import cli; cli.main(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)

    assert "gpuyard.live.sdk.client" in loaded.stdout.split()
    assert not {"rich", "yaml", "grpc", "gpuyard.core.engine", "gpuyard.live.control_plane"} & set(
        loaded.stdout.split()
    )
