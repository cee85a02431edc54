"""`gpuyard logs` when the node that has the output is not there yet."""

import sys

import pytest

from gpuyard import cli
from gpuyard.cli import logs_of
from gpuyard.domain.values import TaskStatus
from tests.unit.sdk.partner import Answering, partner, refusal, task

AWAY = refusal("NodeUnreachable", "Node box, which has the output of task-7, is not connected at the moment.")


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
    monkeypatch.setattr(logs_of, "LOOK_SECONDS", 0.01)


@pytest.mark.parametrize(("words", "wrote"), [((), "one\ntwo\n"), (("--tail", "1"), "two\n")])
def test_a_node_that_is_not_back_yet_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes], words: tuple[str, ...], wrote: str
) -> None:
    with partner(Restarted(3)) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "logs", "--server", server.url, "7", *words])
        assert cli.main() == 0
    out, err = capsysbinary.readouterr()
    assert out.decode().endswith(wrote)
    assert err.decode().count("Waiting for it") == 1


def test_a_node_that_does_not_come_back_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs_of, "NODE_SECONDS", 0.05)
    with partner(Restarted(1000)) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "logs", "--server", server.url, "7"])
        assert cli.main() == 1
    assert "is not connected at the moment" in capsys.readouterr().err


def test_output_that_breaks_off_before_the_task_has_ended_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stops(line: Answering) -> None:
        if "/logs" in line.asked.path:
            line.begin_stream()
            line.wfile.write(b"tick\n")
        else:
            line.say(task(7, TaskStatus.RUNNING, started_at="2026-01-01T00:00:00Z"))

    with partner(stops) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "logs", "--server", server.url, "-f", "7"])
        assert cli.main() == 1
    assert "Go on with: gpuyard logs -f 7" in capsys.readouterr().err
