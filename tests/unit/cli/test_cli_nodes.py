"""`gpuyard nodes unknown-attempts` and `stop-unknown-attempt`: attempts that a node runs and the scheduler does not know."""

import json
import sys
from collections.abc import Iterator

import pytest

from gpuyard import cli
from gpuyard.live.wire.answers import NodeAnswer, NodeList, UnknownAttemptAnswer
from tests.unit.live.sdk.fake_server import Answering, FakeServer, fake_server


def node(name: str, *unknown: UnknownAttemptAnswer) -> NodeAnswer:
    return NodeAnswer(
        id=name, status="online", gpus=0, gpus_idle=0, gpu_models={}, cpus=8, memory_mb=1024, labels={}, tasks=[],
        last_seen=None, version=None, address=None, cpu_percent=None, memory_used_mb=None, load=None, disk_free_mb=None,
        supervisor_silent_seconds=None, devices=[], unknown_attempts=list(unknown),
    )  # fmt: skip


NODES = NodeList(
    [
        node(
            "n1",
            UnknownAttemptAnswer("task-7", 1),
            UnknownAttemptAnswer("task-7", 2),
            UnknownAttemptAnswer("task-9", 1),
        ),
        node("n2"),
    ],
    2,
)


def answers(line: Answering) -> None:
    line.say(NODES if line.asked.method == "GET" else {"message": "It is being ended."})


class Call:
    """`gpuyard nodes` with these words: exit code, standard output, standard error."""

    def __init__(self, server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.server, self._monkeypatch, self._capsys = server, monkeypatch, capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["gpuyard", "nodes", *words])
        code = cli.main()
        return code, *self._capsys.readouterr()


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    with fake_server(answers) as server:
        monkeypatch.setenv("GPUYARD_SERVER", server.url)
        yield Call(server, monkeypatch, capsys)


def test_strays_are_counted_in_the_list_of_nodes_and_listed_by_a_command(call: Call) -> None:
    assert "online, 3 unknown attempts" in call()[1]
    code, out, _ = call("unknown-attempts")
    assert (code, [line.split() for line in out.splitlines()]) == (
        0,
        [["NODE", "TASK", "ATTEMPT"], ["n1", "task-7", "1"], ["n1", "task-7", "2"], ["n1", "task-9", "1"]],
    )
    assert json.loads(call("unknown-attempts", "n1", "--json")[1])["unknown_attempts"][2] == {
        "node_id": "n1",
        "task_id": "task-9",
        "attempt": 1,
    }
    assert json.loads(call("unknown-attempts", "n2", "--json")[1]) == {"unknown_attempts": [], "total": 0}
    assert call("unknown-attempts", "n3") == (1, "", "gpuyard: Node n3 does not exist; see `gpuyard nodes`.\n")


@pytest.mark.parametrize(
    ("words", "stopped"),
    [(("7",), ["task-7/1", "task-7/2"]), (("task-7", "2"), ["task-7/2"]), (("task-9",), ["task-9/1"])],
)
def test_a_stray_is_ended_by_its_task_and_attempt(call: Call, words: tuple[str, ...], stopped: list[str]) -> None:
    assert call("stop-unknown-attempt", "n1", *words) == (0, "It is being ended.\n" * len(stopped), "")
    posted = [asked.path for asked in call.server.asked if asked.method == "POST"]
    assert posted == [f"/api/v1/nodes/n1/unknown_attempts/{one}/stop" for one in stopped]


def test_an_unknown_stray_is_reported_in_one_sentence(call: Call) -> None:
    code, _, said = call("stop-unknown-attempt", "n1", "8")
    assert (code, said) == (1, "gpuyard: n1 has no unknown attempt of task-8; see `gpuyard nodes unknown-attempts`.\n")
