"""`gpuyard train policy`, and the use of the model it wrote."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuyard import cli

JOBS = "submit_s,duration_s,gpu_num,user\n" + "".join(f"{60 * n},{50 + 37 * n % 900},1,u{n % 3}\n" for n in range(80))
SMALL = ("--jobs", 20, "--members", 1, "--validation-workloads", 2)


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    monkeypatch.setattr("sys.argv", ["gpuyard", *map(str, words)])
    code = cli.main()
    return code, capsys.readouterr()


DQN = ("--episodes", 6, "--training-steps", 20)
EVOLUTION = ("--method", "evolution", "--generations", 1, "--population", 4, "--generation-workloads", 1)
REGRESSION = ("--method", "regression", "--episodes", 6)


@pytest.mark.slow
@pytest.mark.parametrize("method", [DQN, EVOLUTION, REGRESSION], ids=["dqn", "evolution", "regression"])
def test_a_model_is_trained_written_and_used(
    method: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, card, curves, jobs = (tmp_path / name for name in ("m.npz", "card.md", "curves.png", "jobs.csv"))
    jobs.write_text(JOBS)
    files = ("--out", model, "--card", card, "--curves", curves, "--trace", jobs)
    code, out = said(monkeypatch, capsys, "train", "policy", *files, *SMALL, *method, "--json")
    assert code == 0, out.err
    told = json.loads(out.out)
    assert told["bytes"] == model.stat().st_size
    assert "lab, three models, jobs of jobs" in told["validation"] or told["margin"] > 1
    assert "The guard was evaluated on: lab, two models" in out.err
    assert (
        f"`gpuyard train policy --out m.npz --trace jobs.csv --jobs 20 --members 1 --validation-workloads 2 {method[0]} {method[1]}"
        in card.read_text()
    )
    assert curves.read_bytes().startswith(b"\x89PNG")
    played = ("simulate", "--trace", jobs, "--cluster", "1x2", "--policy", "srtf,dqn", "--json")
    code, out = said(monkeypatch, capsys, *played, "--policy-model", model)
    assert code == 0, out.err
    assert json.loads(out.out)["policies"]["dqn"]["preemptions"] == 0


def test_the_shipped_model_is_small_and_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpuyard.learn.policy_network import DEFAULT

    assert DEFAULT.stat().st_size <= 200_000
    jobs = tmp_path / "jobs.csv"
    jobs.write_text(JOBS)
    code, out = said(monkeypatch, capsys, "simulate", "--trace", jobs, "--cluster", "1x2", "--policy", "dqn", "--json")
    assert code == 0, out.err


@pytest.mark.slow  # imports torch
def test_the_command_knows_the_options_of_each_method() -> None:
    from gpuyard.cli.train.policy import METHODS
    from gpuyard.learn.training.train import OPTIONS

    assert METHODS == OPTIONS


def test_a_scheduler_with_an_invalid_model_does_not_start_and_says_why(tmp_path: Path) -> None:
    model, settings = tmp_path / "broken.npz", tmp_path / "scheduler.yaml"
    model.write_text("nothing")
    settings.write_text(
        "server: {http_address: '127.0.0.1:0', grpc_address: '127.0.0.1:0'}\n"
        f"scheduler: {{algorithm: dqn, policy_model: {model}}}\nstorage: {{data_dir: {tmp_path / 'data'}}}\n"
    )
    server = [sys.executable, "-m", "gpuyard.cli", "server", "--config", str(settings)]
    done = subprocess.run(server, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "broken.npz: this is not a policy model, or the file is truncated or damaged" in done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("train", "policy", "--out", "nowhere/m.npz"), "Folder nowhere does not exist."),
        (("train", "policy", "--out", "m.npz", "--trace", "missing.csv"), "File missing.csv does not exist."),
        (("train", "policy", "--out", "m.npz", "--method", "magic"), "--method: magic is not known; choose dqn, evolution or regression."),
        (("train", "policy", "--out", "m.npz", "--generations", "3"), "--generations is an option of --method evolution."),
        (("train", "policy", "--out", "m.npz", "--method", "evolution", "--training-steps", "30"), "--training-steps is an option of --method dqn."),
        (("train", "policy", "--out", "m.npz", "--method", "evolution", "--episodes", "30"), "--episodes is an option of --method dqn and regression."),
        (("simulate", "--generate", "9", "--cluster", "1x2", "--policy", "dqn", "--policy-model", "no.npz"), "Cannot read no.npz"),
        (("simulate", "--generate", "9", "--cluster", "1x2", "--policy", "fifo", "--policy-model", "no.npz"), "dqn is not among the policies"),
    ],
)  # fmt: skip
def test_invalid_input_is_one_sentence(
    words: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out = said(monkeypatch, capsys, *words)
    assert code == 2
    assert sentence in out.err
    assert list(tmp_path.iterdir()) == []


def test_without_torch_the_error_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    code, out = said(monkeypatch, capsys, "train", "policy", "--out", tmp_path / "m.npz")
    assert code == 2
    assert "Training needs torch: pip install 'gpuyard[learn,profile,simulate]'." in out.err
