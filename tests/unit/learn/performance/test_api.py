"""Predictions from Python, as a notebook asks for them."""

import json
from math import nan
from pathlib import Path
from typing import Any

import pytest

import gpuyard
from gpuyard.cli import main
from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.precision import PRECISIONS
from gpuyard.core.domain.workload import WorkloadSpec
from gpuyard.learn.performance import query
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


@pytest.mark.parametrize("name", ["model", "specs", "calibration"])
def test_files_that_cannot_be_read_are_refused_in_one_short_line(name: str, tmp_path: Path) -> None:
    long = tmp_path / "long"
    long.write_text("gpu," + "x" * 200_000)
    cases = {
        "/proc/self/mem": "/proc/self/mem: Input/output error",
        str(long): f"{long} ",
        "a\nb": r"File a\nb does not exist",
        "x" * 3000: f"File {'x' * 200}… does not exist",
    }
    for path, sentence in cases.items():
        with pytest.raises(WrongInput) as error:
            gpuyard.predict(RESNET, "H200", **{name: path})  # type: ignore[arg-type]
        assert str(error.value).startswith(sentence)


def test_a_long_name_of_a_gpu_is_shortened() -> None:
    with pytest.raises(WrongInput, match=r"^Unknown GPU 'x{60}…'; "):
        gpuyard.predict(RESNET, "x" * 3000)


@pytest.mark.parametrize("batch", [0, nan, 1.5, "64", 10**12, 10**400, True])
def test_a_batch_that_can_not_be_meant_is_refused_alike_wherever_it_is_given(batch: Any) -> None:
    given: list[tuple[Any, Any]] = [(RESNET, batch), ({**RESNET, "batch": batch}, None)]
    given.append((WorkloadSpec(model="resnet50", batch=batch), None))
    for workload, argument in given:
        with pytest.raises(WrongInput, match=r"^batch is .*; it must be a whole number from 1 to 10,000,000\.$"):
            gpuyard.predict(workload, "H200", batch=argument)


@pytest.mark.parametrize(
    ("workload", "gpus", "more", "sentence"),
    [
        (None, "H200", {}, "workload is null; it must be the path of a file."),
        ([], "H200", {}, "workload is a list; it must be the path of a file."),
        (RESNET, None, {}, "gpus is null; it must be a list of names"),
        (RESNET, ["H200", 5], {}, r"gpus\[1\] is 5; it must be text."),
        (RESNET, "H200", {"precision": "fp8"}, 'precision is "fp8"; it must be "amp", .* or "tf32".'),
        (RESNET, "H200", {"model": 5}, "model is 5; it must be the path of a file."),
        (RESNET, "H200", {"specs": 5}, "specs is 5; it must be the path of a file."),
        (RESNET, "H200", {"calibration": 5}, "calibration is 5; it must be the path of a file."),
    ],
)
def test_arguments_of_a_wrong_type_are_reported_in_one_sentence(
    workload: Any, gpus: Any, more: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(WrongInput, match=sentence):
        gpuyard.predict(workload, gpus, **more)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("model: resnet50\nbatch: 1:30\n", 'line 2: batch is "1:30"; it must be a whole number from 1 to 10,000,000.'),
        ("model: resnet50\n\nbtach: 5\n", 'line 3: Unknown name "btach" in the file; did you mean "batch"?'),
        ('{"model": "resnet50",\n "batch": 0}', "line 2: batch is 0; it must be a whole number from 1 to 10,000,000."),
        ("model: resnet50\nmodel: vgg\n", "line 2: model is given twice, first in line 1; remove one of them."),
    ],
)
def test_errors_in_a_task_file_name_the_line(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(text)
    with pytest.raises(WrongInput) as error:
        gpuyard.predict(file, "H200")
    assert str(error.value) == f"{file}, {sentence}"


def test_the_help_lists_every_precision(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert tuple(query.PRECISIONS) == PRECISIONS
    for command in ("predict", "partition"):
        monkeypatch.setattr("sys.argv", ["gpuyard", command, "--help"])
        monkeypatch.setenv("COLUMNS", "500")
        assert main() == 0
        printed = capsys.readouterr().out
        assert all(name in printed for name in PRECISIONS)
