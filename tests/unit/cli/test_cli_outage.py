"""Commands while the scheduler is down: those attached to a task continue, others wait for a short time."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpuyard import cli
from gpuyard.cli.input import options
from gpuyard.cli.up import LOCK_FILE
from gpuyard.core.domain.values import TaskStatus
from gpuyard.live.control_plane.settings import StorageSection
from gpuyard.live.sdk import waiting
from gpuyard.live.sdk.tokens import store_token
from tests.ports import free_port
from tests.unit.live.sdk.fake_server import Answering, another_cluster, fake_server, refusal, task
from tests.unit.live.sdk.test_server_user import another_user_listens

pytestmark = pytest.mark.slow  # left out of `make quick`


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("GPUYARD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(options, "SERVICE_FOLDER", str(tmp_path / "service"))


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gpuyard", *words])
    return cli.main()


RUNNING = task(7, TaskStatus.RUNNING)
DONE = task(7, TaskStatus.SUCCESS, exit_code=0)


# --- attached to a task -----------------------------------------------------------------------------------------------


class Answers:
    """Accepts a task; after that something else answers at the address, for so many requests."""

    def __init__(self, then: bytes, strangers: int = 10_000) -> None:
        self.then = then
        self.strangers = strangers

    def __call__(self, line: Answering) -> None:
        if line.asked.method == "POST":
            line.say(RUNNING, 201)
        elif self.strangers > 0:
            self.strangers -= 1
            line.say(self.then)
        else:
            line.say(DONE)


def test_a_run_whose_scheduler_does_not_return_names_the_task_and_the_command_to_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "RESTART_SECONDS", 0.2)
    with fake_server(Answers(b"<html>hello</html>")) as server:
        assert call(monkeypatch, "run", "--server", server.url, "--", "true") == 75
        assert capsys.readouterr().err.endswith(
            f"task-7 continues; to follow it again, run: gpuyard logs -f --server {server.url} task-7\n"
        )


def test_a_run_whose_token_expires_names_the_task(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forgets(line: Answering) -> None:
        if line.asked.method == "POST":
            line.say(RUNNING, 201)
        else:
            line.say(refusal("InvalidToken", "This token expired."), 401)

    with fake_server(forgets) as server:
        monkeypatch.setenv("GPUYARD_SERVER", server.url)
        assert call(monkeypatch, "run", "--", "true") == 75
    expected = "gpuyard: This token expired. task-7 continues; to follow it again, run: gpuyard logs -f task-7\n"
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("words", [("run", "--", "true"), ("logs", "-f", "task-7")])
def test_another_task_under_the_same_number_is_not_followed_after_an_outage(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    def replaced(line: Answering) -> None:
        if len(server.asked) == 1:
            line.say(RUNNING, 201 if line.asked.method == "POST" else 200)
        else:
            another_cluster(line)

    with fake_server(replaced) as server:
        monkeypatch.setenv("GPUYARD_SERVER", server.url)
        assert call(monkeypatch, *words) == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert err.endswith(
        f"gpuyard: task-7 cannot be followed: the scheduler at {server.url} now has another task with this number: "
        "its data folder was replaced or restored. Its result is not available there.\n"
    )


def test_the_output_of_another_task_under_the_same_number_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The scheduler is replaced between the answer that the task ended and the request for its output."""
    ended = task(7, TaskStatus.SUCCESS, exit_code=0, attempts=1, started_at="2026-02-01T00:00:00.000000Z")

    def replaced(line: Answering) -> None:
        if line.asked.method == "POST":
            line.say(RUNNING, 201)
        elif line.asked.path.partition("?")[0].endswith("/task-7"):
            line.say(ended)
        else:
            another_cluster(line)

    with fake_server(replaced) as server:
        monkeypatch.setenv("GPUYARD_SERVER", server.url)
        assert call(monkeypatch, "run", "--", "true") == 1
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("words", [("run", "--", "true"), ("logs", "-f", "task-7")])
def test_a_task_the_scheduler_no_longer_knows_is_not_said_to_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    def forgets(line: Answering) -> None:
        if len(server.asked) == 1:
            line.say(RUNNING, 201 if line.asked.method == "POST" else 200)
        else:
            line.say(refusal("UnknownTask", "Task task-7 does not exist."), 404)

    with fake_server(forgets) as server:
        monkeypatch.setenv("GPUYARD_SERVER", server.url)
        assert call(monkeypatch, *words) == 1
    said = capsys.readouterr().err
    assert f"the scheduler at {server.url} no longer has it" in said
    assert "continues" not in said


class Attached:
    """`gpuyard run` in another process, attached to task-7, whose scheduler has just stopped."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        accepted = threading.Event()

        def accepts(line: Answering) -> None:
            line.close_connection = True  # an open one would outlive the server
            if line.asked.method == "POST":
                line.say(RUNNING, 201)
            elif line.asked.path.partition("?")[0].endswith("/task-7"):
                line.say(RUNNING)
                accepted.set()
            else:
                line.say(refusal("NotReady", "not now"), 503)

        with fake_server(accepts, port):
            words = [sys.executable, "-m", "gpuyard.cli", "run", "--server", self.url, "--", "sleep", "100"]
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            assert accepted.wait(30)

    def says(self) -> str:
        """The next line on standard error."""
        assert self.process.stderr is not None
        return self.process.stderr.readline()


@pytest.fixture
def attached() -> Iterator[Attached]:
    made = Attached(free_port())
    with made.process:
        yield made
        if made.process.poll() is None:
            made.process.kill()


def test_a_run_continues_while_another_user_listens_at_the_schedulers_port(attached: Attached) -> None:
    port = int(attached.url.rpartition(":")[2])
    with another_user_listens(port):
        seen = next(line for line in iter(attached.says, "") if "nobody" in line)
        assert "belongs to the system user 'nobody'" in seen
        assert "task-7 continues; waiting for the scheduler for up to 120 s." in seen
        assert attached.process.poll() is None
    with fake_server(lambda line: line.say(DONE), port):
        attached.process.communicate(timeout=30)
    assert attached.process.returncode == 0


def test_a_task_cancelled_during_an_outage_is_cancelled_when_the_scheduler_is_back(attached: Attached) -> None:
    assert "(connection refused). task-7 continues" in attached.says()
    attached.process.send_signal(signal.SIGINT)
    assert "task-7 is being cancelled" in attached.says()

    def cancels(line: Answering) -> None:
        if line.asked.method == "DELETE":
            line.say({"id": "task-7", "task_id": "task-7", "status": "cancelled", "message": "It is cancelled."})
        elif "/events" in line.asked.path:
            line.say(refusal("NotReady", "not now"), 409)
        elif "DELETE" in [asked.method for asked in server.asked]:
            line.say(task(7, TaskStatus.CANCELLED))
        else:
            line.say(RUNNING)

    with ExitStack() as stack:
        server = stack.enter_context(fake_server(cancels, int(attached.url.rpartition(":")[2])))
        attached.process.communicate(timeout=30)
    assert attached.process.returncode == 130


# --- new calls --------------------------------------------------------------------------------------------------------


def test_the_folder_of_a_service_is_the_default_of_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert StorageSection().data_dir == options.SERVICE_FOLDER


def test_without_a_known_scheduler_the_answer_is_immediate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gpuyard.live.sdk.client.DEFAULT_SERVER", f"http://127.0.0.1:{free_port()}")
    began = time.monotonic()
    assert call(monkeypatch, "ps") == 1
    assert time.monotonic() - began < options.WAIT_SECONDS / 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("how", ["environment", "option", "login", "up", "killed", "service"])
def test_a_known_scheduler_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = ["submit", "--", "true"]
    folder = tmp_path / "gpuyard"
    folder.mkdir()
    match how:
        case "environment":
            monkeypatch.setenv("GPUYARD_SERVER", url)
        case "option":
            words[1:1] = ["--server", url]
        case _:
            monkeypatch.setattr("gpuyard.live.sdk.client.DEFAULT_SERVER", url)
    if how == "login":
        store_token(url, "gy_x")
    elif how == "up":  # stopped a moment ago
        (folder / LOCK_FILE).touch()
    elif how == "killed":
        (folder / LOCK_FILE).write_text("{}")
        os.utime(folder / LOCK_FILE, (0, 0))
    elif how == "service":
        (tmp_path / "service").mkdir()
    with ExitStack() as stack:
        later = fake_server(lambda line: line.say(task(), 201), port)
        starting = threading.Timer(0.2, lambda: stack.enter_context(later))
        starting.start()
        assert call(monkeypatch, *words) == 0
        starting.join()
    assert capsys.readouterr().out == "task-7\n"


def test_a_cluster_stopped_on_purpose_long_ago_is_not_waited_for(tmp_path: Path) -> None:
    from gpuyard.cli.up import was_up

    (tmp_path / LOCK_FILE).touch()
    assert was_up(tmp_path, 600)
    os.utime(tmp_path / LOCK_FILE, (0, 0))
    assert not was_up(tmp_path, 600)


def test_after_a_second_one_line_says_what_is_waited_for_and_then_the_error_comes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert call(monkeypatch, "nodes", "--server", url, "--wait-for-scheduler", "1.5") == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == (
        f"gpuyard: No scheduler answers at {url} (connection refused). "
        "Waiting for the scheduler for up to 1.5 s (--wait-for-scheduler)."
    )
    assert "`gpuyard up`" in second


@pytest.mark.parametrize(
    "words", [("--wait-for-scheduler", "0", "cordon", "n1"), ("cordon", "n1", "--wait-for-scheduler", "0")]
)
def test_zero_does_not_wait_and_works_before_and_after_a_command(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("GPUYARD_SERVER", f"http://127.0.0.1:{free_port()}")
    began = time.monotonic()
    assert call(monkeypatch, "nodes", *words) == 1
    assert time.monotonic() - began < options.WAIT_SECONDS / 2


def test_with_json_only_the_object_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUYARD_WAIT_FOR_SCHEDULER", "1.2")
    assert call(monkeypatch, "logs", "7", "--json", "--server", f"http://127.0.0.1:{free_port()}") == 1
    assert capsys.readouterr().err.count("\n") == 1
