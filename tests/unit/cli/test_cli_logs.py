"""`gpuyard logs` when the node that has the output is not there yet."""

import sys
import time

import pytest

from gpuyard import cli
from gpuyard.cli import logs
from gpuyard.core.domain.values import TaskStatus
from gpuyard.live.sdk import waiting
from tests.unit.live.sdk.fake_server import Answering, fake_server, refusal, task

AWAY = refusal("NodeUnreachable", "Node box, which has the output of task-7, is not connected.")


class Restarted:
    """A scheduler whose node comes back after it was asked for output so often."""

    def __init__(self, away: int) -> None:
        self.away = away

    def __call__(self, line: Answering) -> None:
        if "/logs" not in line.asked.path:
            line.say(task(7, TaskStatus.SUCCESS, started_at="2026-01-01T00:00:00Z"))
        elif self.away > 0:
            self.away -= 1
            line.say(AWAY, 503)
        else:
            line.begin_stream()
            line.wfile.write(b"one\ntwo\n")


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.01)


@pytest.mark.parametrize(("words", "wrote"), [((), "one\ntwo\n"), (("--tail", "1"), "two\n")])
def test_a_node_that_has_not_reconnected_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], words: tuple[str, ...], wrote: str
) -> None:
    with fake_server(Restarted(3)) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "logs", "--server", server.url, "7", *words])
        assert cli.main() == 0
    out, err = capsysbinary.readouterr()
    assert out.decode().endswith(wrote)
    assert err.decode().count("Waiting for up to") == 1


def test_a_node_that_does_not_reconnect_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs, "NODE_SECONDS", 0.05)
    with fake_server(Restarted(1000)) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "logs", "--server", server.url, "7"])
        assert cli.main() == 1
    assert "is not connected" in capsys.readouterr().err


class Replaced:
    """A scheduler that stops in the middle of the output. Something else answers at its address so often, then it is back."""

    def __init__(self, strangers: int) -> None:
        self.strangers = strangers
        self.stopped = False

    def __call__(self, line: Answering) -> None:
        running = task(7, TaskStatus.RUNNING, started_at="2026-01-01T00:00:00Z", attempts=1)
        if not self.stopped:
            if "/logs" in line.asked.path:
                self.stopped = True
                line.begin_stream()
                line.wfile.write(b"one\n")
            else:
                line.say(running)
        elif self.strangers > 0:
            self.strangers -= 1
            line.say(b"<html>hello</html>")
        elif "/logs" in line.asked.path:
            line.begin_stream()
            line.wfile.write(b"two\n")
        else:
            line.say(task(7, TaskStatus.SUCCESS, started_at="2026-01-01T00:00:00Z", attempts=1, exit_code=0))


def test_followed_output_resumes_where_it_broke_off_when_the_scheduler_is_back(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    with fake_server(Replaced(4)) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "logs", "--server", server.url, "-f", "7"])
        assert cli.main() == 0
        assert "offset=4" in [asked.path for asked in server.asked if "/logs" in asked.path][-1]
    assert capsysbinary.readouterr().out == b"one\ntwo\n"


def test_output_that_cannot_be_followed_any_longer_names_the_command_to_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(waiting, "RESTART_SECONDS", 0.2)
    with fake_server(Replaced(10_000)) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "logs", "--server", server.url, "-f", "7"])
        assert cli.main() == 75
        assert capsys.readouterr().err.endswith(
            f" task-7 continues; to follow it again, run: gpuyard logs -f --server {server.url} task-7\n"
        )


def test_the_rest_of_an_attempt_that_ended_during_an_outage_is_printed_before_the_next(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    written = {"attempt=1": b"one\nrest\n", "attempt=2": b"two\n"}
    stopped = False

    def restarts(line: Answering) -> None:
        nonlocal stopped
        if "/events" in line.asked.path:
            line.say(refusal("NotReady", "not now"), 409)
        elif "/logs" in line.asked.path:
            line.begin_stream()
            query = line.asked.path.partition("?")[2].split("&")
            [offset] = [int(word.partition("=")[2]) for word in query if word.startswith("offset=")]
            [output] = [written[word] for word in query if word in written]
            line.wfile.write(output[offset:] if stopped else b"one\n")
            stopped = True
        elif stopped:
            line.say(task(7, TaskStatus.SUCCESS, started_at="2026-01-01T00:00:00Z", attempts=2, exit_code=0))
        else:
            line.say(task(7, TaskStatus.RUNNING, started_at="2026-01-01T00:00:00Z", attempts=1))

    with fake_server(restarts) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "logs", "--server", server.url, "-f", "7"])
        assert cli.main() == 0
    assert capsysbinary.readouterr().out == b"one\nrest\ntwo\n"


@pytest.mark.parametrize("option", ["--since=1h", "-t"])
def test_output_of_a_period_resumes_by_skipping_what_was_printed(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], option: str
) -> None:
    written = b"2026-01-01T00:00:00Z one\n2026-01-01T00:00:01Z two\n"
    stopped = False

    def restarts(line: Answering) -> None:
        nonlocal stopped
        if "/events" in line.asked.path:
            line.say(refusal("NotReady", "not now"), 409)
        elif "/logs" in line.asked.path:
            line.begin_stream()
            line.wfile.write(written if stopped else written[:30])
            stopped = True
        elif stopped:
            line.say(task(7, TaskStatus.SUCCESS, started_at="2026-01-01T00:00:00Z", attempts=1, exit_code=0))
        else:
            line.say(task(7, TaskStatus.RUNNING, started_at="2026-01-01T00:00:00Z", attempts=1))

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    with fake_server(restarts) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "logs", "--server", server.url, "-f", option, "7"])
        assert cli.main() == 0
        paths = [asked.path for asked in server.asked if "/logs" in asked.path]
    assert len(paths) == 2
    assert "offset" not in "".join(paths)
    assert capsysbinary.readouterr().out == (written.replace(b"Z ", b"+00:00 ") if option == "-t" else written)
