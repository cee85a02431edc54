"""`gpuyard submit --sweep`: what is sent, what is printed, and when it asks."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuyard import cli
from tests.unit.cli.plain_environment import without_usual_variables
from tests.unit.live.sdk.fake_server import Answering, fake_server, task


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUYARD_WAIT_FOR_SCHEDULER", "0")
    for name in ("GPUYARD_SERVER", "GPUYARD_TOKEN", "GPUYARD_CA", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    without_usual_variables(monkeypatch)


def accepts(line: Answering) -> None:
    """Accept a batch, and say of any task that it runs."""
    if line.path.endswith("tasks:batch"):
        line.say(
            {"tasks": [task(number, name=one["name"]) for number, one in enumerate(line.asked.body["tasks"], 1)]}, 201
        )
    else:
        line.say(task(1))


def swept(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[dict[str, Any]]:
    """The tasks that are sent in one batch."""
    with fake_server(accepts) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "submit", "--server", server.url, *words])
        assert cli.main() == 0
    (batch,) = (asked for asked in server.asked if asked.method == "POST")
    assert batch.path == "/api/v1/tasks:batch"
    tasks: list[dict[str, Any]] = batch.body["tasks"]
    assert len({one.pop("submit_process")["host"] for one in tasks}) == 1
    return tasks


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["gpuyard", "submit", "--server", "http://127.0.0.1:1", *words])
    assert cli.main() == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_a_sweep_is_one_batch_with_all_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--sweep", "lr=1e-3,1e-4", "--sweep", "seed=0..1", "-g", "A100:2", "-e", "RUN={seed}", "--secret", "KEY")
    monkeypatch.setenv("KEY", "hush")
    tasks = swept(monkeypatch, *words, "--", "python", "train.py", "--lr", "{lr}")
    assert [one["name"] for one in tasks] == [
        f"train[lr={lr},seed={seed}]" for lr in ("1e-3", "1e-4") for seed in (0, 1)
    ]
    assert tasks[1] == {
        "command": ["python", "train.py", "--lr", "1e-3"], "gpu_count": 2, "gpu_model": ["A100"], "name": "train[lr=1e-3,seed=1]",
        "env": {"RUN": "1", "GPUYARD_PARAM_LR": "1e-3", "GPUYARD_PARAM_SEED": "1"}, "secrets": {"KEY": "hush"},
        "work_dir": tasks[0]["work_dir"],
    }  # fmt: skip
    assert capsys.readouterr().out.split() == ["task-1", "task-2", "task-3", "task-4"]


def test_side_by_side_and_in_a_shell_line(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--zip", "--sweep", "a=x y,z", "--sweep", "b=1..2", "--shell", "echo {a} | tee out-{b}")
    assert [one["command"] for one in swept(monkeypatch, *words)] == ["echo 'x y' | tee out-1", "echo z | tee out-2"]


def test_more_than_a_hundred_need_a_yes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    many = ("--sweep", "i=1..101", "--", "echo", "{i}")
    assert "101 tasks; confirm with --yes" in refused(monkeypatch, capsys, *many)
    assert len(swept(monkeypatch, "--yes", *many)) == 101


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--sweep", "lr=1", "--", "t", "{lrr}"), "did you mean {lr}"),
        (("--sweep", "lr=1", "--", "t"), "lr is not used"),
        (("--sweep", "lr=range(3)", "--", "t", "{lr}"), "lr=0..2"),
        (("--sweep", "i=1", "--array", "3", "--", "t", "{i}"), "add the numbers to the sweep"),
        (("--zip", "--", "t"), "it needs --sweep"),
        (("--array", "1-20%4", "--", "t"), "--sweep i=1..20"),
    ],
)
def test_wrong_sweeps_are_one_sentence_and_nothing_is_sent(
    words: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in refused(monkeypatch, capsys, *words)


def test_an_array_may_be_written_from_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_server(lambda line: line.say({"tasks": [task()]}, 201)) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "submit", "--server", server.url, "--array", "0-19", "true"])
        assert cli.main() == 0
    assert server.asked[0].body["array"] == {"count": 20}


def test_a_task_file_is_one_batch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tasks.yaml").write_text("tasks: [{name: b, command: y, depends_on: a}, {name: a, command: x}]")
    tasks = swept(monkeypatch, "-g", "2", "tasks.yaml")
    assert [(one["name"], one["gpu_count"], one.get("depends_on")) for one in tasks] == [
        ("a", 2, None),
        ("b", 2, ["tasks[0]"]),
    ]


def test_a_file_that_is_a_program_is_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd.yaml").write_text("#!/bin/sh\necho hi\n")
    with fake_server(lambda line: line.say(task(), 201)) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "submit", "--server", server.url, "./odd.yaml"])
        assert cli.main() == 0
    assert server.asked[0].body["command"] == ["./odd.yaml"]
    assert "begins with #!" in capsys.readouterr().err


def test_wrong_use_of_a_task_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tasks.yaml").write_text("comand: x")
    assert "tasks.yaml, line 1: 'comand' is not a key of a task; did you mean command?" in refused(
        monkeypatch, capsys, "tasks.yaml"
    )
    assert "no arguments" in refused(monkeypatch, capsys, "tasks.yaml", "more")
    assert "into the task file" in refused(monkeypatch, capsys, "--sweep", "a=1", "tasks.yaml")
    assert "No such file" in refused(monkeypatch, capsys, "missing.yml")


def test_a_dry_run_prints_the_commands_without_a_scheduler(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["gpuyard", "submit", "--server", "http://127.0.0.1:1", "--dry-run"]
    monkeypatch.setattr(sys, "argv", [*words, "--sweep", "s=a b,c", "--", "t", "{s}"])
    assert cli.main() == 0
    out, err = capsys.readouterr()
    assert out == "t[s=a b]  t 'a b'\nt[s=c]  t c\n"
    assert "Where it would start is not known" in err

    monkeypatch.setattr(sys, "argv", [*words, "--json", "--", "t"])
    assert cli.main() == 0
    assert json.loads(capsys.readouterr().out)["tasks"][0]["command"] == ["t"]
