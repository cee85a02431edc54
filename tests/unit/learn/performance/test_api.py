"""Predictions from Python, as a notebook asks for them."""

import json
from pathlib import Path

import pytest

import gpuyard
from gpuyard.cli import main
from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance.api import describe_workload

pytest.importorskip("lightgbm")

RESNET = {"model": "resnet50", "mode": "train", "batch": 64, "precision": "amp"}


def test_python_and_the_command_line_predict_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "task.yaml"
    file.write_text("\n".join(f"{name}: {value}" for name, value in RESNET.items()))
    found = gpuyard.predict(RESNET, gpus=("H200", "A100"), batch=32)
    assert gpuyard.predict(file, gpus="H200, A100", batch=32) == found
    monkeypatch.setattr(
        "sys.argv", ["gpuyard", "predict", "--task", str(file), "--gpu", "H200,A100", "--batch", "32", "--json"]
    )
    assert main() == 0
    printed = json.loads(capsys.readouterr().out)
    assert [one["step_ms"] for one in printed["gpus"]] == [one.step_ms for one in found]
    assert printed["work"]["batch"] == 32
    assert found[0].step_ms < found[1].step_ms


def test_a_workload_described_once_is_predicted_with_other_sizes() -> None:
    workload = describe_workload(RESNET)
    small, large = (gpuyard.predict(workload, "H200", batch=batch)[0] for batch in (16, 256))
    assert small.step_ms < large.step_ms


@pytest.mark.parametrize(
    ("workload", "gpus", "sentence"),
    [
        ({"modle": "resnet50"}, "H200", "modle"),
        (RESNET, " , ", "No GPU is given"),
        (RESNET, "H20", "H20"),
        ("nowhere.yaml", "H200", "File nowhere.yaml does not exist"),
    ],
)
def test_a_wrong_question_is_reported_in_one_sentence(workload: object, gpus: str, sentence: str) -> None:
    with pytest.raises(WrongInput, match=sentence):
        gpuyard.predict(workload, gpus)  # type: ignore[arg-type]  # what a notebook may do
