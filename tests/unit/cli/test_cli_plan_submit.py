"""`gpuyard plan submit`: a plan becomes requests for tasks."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuyard import cli
from gpuyard.plan.planner.plan_file import write_plan
from gpuyard.plan.planner.problem_file import problem_of
from tests.unit.live.sdk.fake_server import Answering, fake_server, refusal, task
from tests.unit.plan.planner.small_problems import instance, plan

WORKFLOW = (("a", "A", 5, ""), ("b", "B2", 5, "a"))
PLAN = plan((0, 3, 8), (0, 17, 22), (0, 8, 13), (0, 22, 27))


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GPUYARD_SERVER", "GPUYARD_TOKEN", "GPUYARD_CA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Two requests, each a call of A and then one of B on two GPUs; and a plan that does both of A first."""
    asked = instance(*WORKFLOW, requests=2)
    (tmp_path / "work.json").write_bytes(msgspec.json.encode(asked))
    (tmp_path / "plan.json").write_bytes(write_plan(problem_of(asked), PLAN, "by hand"))
    return [str(tmp_path / "work.json"), "--plan", str(tmp_path / "plan.json")]


def submitted(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[dict[str, Any]]:
    """The tasks that are asked for."""

    def accepts(line: Answering) -> None:
        count = len(line.asked.body["tasks"])
        line.say({"tasks": [task(place + 1) for place in range(count)]}, 201)

    with fake_server(accepts) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "plan", "submit", "--server", server.url, *words])
        assert cli.main() == 0
    [asked] = server.asked
    assert asked.path == "/api/v1/tasks:batch"
    tasks: list[dict[str, Any]] = asked.body["tasks"]
    return tasks


def test_a_session_is_a_task_with_its_model_and_dependencies(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = submitted(monkeypatch, *files, "-C", "/data", "--", "serve", "--model={model}", "{calls}")
    assert first == {
        "command": ["serve", "--model=A", "r0/a", "r1/a"],
        "name": "r0/a and 1 more",
        "model": "A",
        "project": "small",
        "priority": "low",
        "preemption": "requeue",
        "gpu_count": 1,
        "gpu_memory_mb": 23842,
        "estimated_seconds": 13.0,
        "work_dir": "/data",
    }
    assert (second["gpu_count"], second["depends_on"]) == (2, ["tasks[0]"])
    assert capsys.readouterr().out == "task-1\ntask-2\n"


def test_a_call_is_a_task_if_requested(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = submitted(monkeypatch, *files, "--task-unit", "call", "--", "serve {model} --for {request} > {node}.txt")
    assert [one["command"] for one in tasks] == [
        "serve A --for r0 > a.txt",
        "serve A --for r1 > a.txt",
        "serve B2 --for r0 > b.txt",
        "serve B2 --for r1 > b.txt",
    ]
    assert [one.get("depends_on") for one in tasks] == [None, None, ["tasks[0]"], ["tasks[1]"]]


def test_values_in_a_shell_line_are_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = msgspec.json.decode(msgspec.json.encode(instance(("a", "A", 5, ""), gpus=1)))
    asked["requests"][0]["id"] = "my $HOME {node}"
    (tmp_path / "work.json").write_text(json.dumps(asked))
    written = {"format": "planner-plan/1", "instance": "small", "tasks": [{"request": "my $HOME {node}", "node": "a", "gpus": [0], "start": 3, "end": 8}]}  # fmt: skip
    (tmp_path / "plan.json").write_text(json.dumps(written))
    words = [str(tmp_path / "work.json"), "--plan", str(tmp_path / "plan.json")]
    [one] = submitted(monkeypatch, *words, "--", "serve {calls} &> log")
    assert one["command"] == "serve 'my $HOME {node}/a' &> log"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--", "serve", "{model}"), "it does not contain {calls}"),
        (("--", "serve", "{request}"), "a session has several calls"),
        (("--task-unit", "call", "--", "serve", "{node}"), "neither {request} nor {calls}"),
        (("--task-unit", "model", "--", "serve", "{calls}"), "--task-unit"),
        ((), "COMMAND"),
    ],
)
def test_an_unusable_command_is_refused_before_anything_is_requested(
    files: list[str],
    words: tuple[str, ...],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpuyard", "plan", "submit", "--server", "http://127.0.0.1:1", *files, *words])
    assert cli.main() == 2
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)
    assert sentence in said.err


def test_a_key_that_was_used_before_is_shown_as_typed(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def knows(line: Answering) -> None:
        used = f"The Idempotency-Key {line.asked.headers['Idempotency-Key']!r} was already used with another body."
        line.say(refusal("KeyUsedBefore", used, "Idempotency-Key"), 409)

    with fake_server(knows) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "plan", "submit", "--server", server.url, *files, "--key", "k1", "--", "{calls}"])  # fmt: skip
        assert cli.main() != 0
    assert capsys.readouterr().err == "gpuyard: --key 'k1' was already used with another body.\n"


def test_a_plan_that_breaks_a_rule_is_not_submitted(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = json.loads(Path(files[2]).read_bytes())
    written["tasks"][0] |= {"start": 0, "end": 5}
    Path(files[2]).write_text(json.dumps(written))
    monkeypatch.setattr(sys, "argv", ["gpuyard", "plan", "submit", "--server", "http://127.0.0.1:1", *files, "--", "{calls}"])  # fmt: skip
    assert cli.main() == 2
    assert "plan.json: " in capsys.readouterr().err
