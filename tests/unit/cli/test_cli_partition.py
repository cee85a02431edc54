"""`gpuyard partition`, and its Python front door: every option, what is printed, and what is refused."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuyard import cli
from gpuyard.learn.performance.partition import partition

pytestmark = pytest.mark.slow  # left out of `make quick`

Said = pytest.CaptureFixture[str]
Partition = Callable[..., int]
MODEL = """
from torch import nn
def deep():
    return nn.Sequential(*[nn.Linear(8192, 8192) for _ in range(8)])
class Both(nn.Module):
    def forward(self, x, y):
        return x @ y
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "a.py"
    path.write_text(MODEL)
    return path


@pytest.fixture
def divide(monkeypatch: pytest.MonkeyPatch) -> Partition:
    def called(*words: object) -> int:
        monkeypatch.setattr("sys.argv", ["gpuyard", "partition", *map(str, words)])
        return cli.main()

    return called


def as_json(divide: Partition, capsys: Said, *words: object) -> dict[str, Any]:
    assert divide(*words, "--json") == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_a_model_is_partitioned_and_the_fastest_plan_that_fits_comes_first(
    divide: Partition, model: Path, capsys: Said
) -> None:
    options = ("--input", "8192x8192", "--gpus", 4, "--gpu", "a100", "--micro-batches", 1, "--link", 1e5)
    told = as_json(divide, capsys, model, "deep", *options)
    assert (told["model"], told["batch"], told["gpu"], told["gpus"]) == ("deep", 8192, "A100-40GB-PCIe", 4)
    assert told["flops"] == (3 * 8 - 1) * 2 * 8192**3  # the input needs no gradient
    assert sorted(len(plan["stages"]) * plan["replicas"] for plan in told["plans"]) == [4, 4, 4]
    assert {plan["micro_batches"] for plan in told["plans"]} == {1}
    four = next(plan for plan in told["plans"] if len(plan["stages"]) == 4)
    assert [(stage["first"], stage["last"]) for stage in four["stages"]] == [
        ("0", "1"),
        ("2", "3"),
        ("4", "5"),
        ("6", "7"),
    ]
    assert told["plans"] == sorted(told["plans"], key=lambda plan: (not plan["fits"], plan["seconds"]))


def test_inference_computes_a_third_and_the_precision_is_used(divide: Partition, model: Path, capsys: Said) -> None:
    told = as_json(divide, capsys, model, "deep", "--input", "8x8192", "--inference", "--precision", "fp32")
    assert (told["flops"], told["training"], told["precision"]) == (8 * 2 * 8 * 8192**2, False, "fp32")


def test_a_model_may_have_several_inputs_and_be_in_a_module_of_a_folder(
    divide: Partition, model: Path, capsys: Said
) -> None:
    words = (model.parent, "a:Both", "--input", "4x8x16", "--input", "4x16x2", "--inference", "--gpus", 1)
    assert as_json(divide, capsys, *words)["flops"] == 2 * 4 * 8 * 16 * 2


def test_gpus_and_their_measured_peaks_can_be_given(
    divide: Partition, model: Path, tmp_path: Path, capsys: Said
) -> None:
    from gpuyard.learn.performance import gpu_specs

    head, *rows = Path(gpu_specs.__file__).with_name("data").joinpath("gpus.csv").read_text().splitlines()
    row = next(row for row in rows if row.startswith("H100-SXM"))
    (tmp_path / "specs.csv").write_text(f"{head}\nMine{row[row.index(',') :]}\n")
    words = (model, "deep", "--input", "8x8192", "--specs", tmp_path / "specs.csv", "--gpu", "Mine")
    assert as_json(divide, capsys, *words)["gpu"] == "Mine"
    assert divide(*words, "--calibration", tmp_path / "none.json") == 2
    assert "does not exist" in capsys.readouterr().err


def test_the_table_names_stages_and_shared_parameters(divide: Partition, model: Path, capsys: Said) -> None:
    assert divide(model, "deep", "--input", "64x8192", "--python", sys.executable, "--limit", 100, "--inference") == 0
    out = capsys.readouterr().out
    assert out.startswith("deep: 536.9 M parameters")
    assert "STAGES  REPLICAS  MICRO-BATCHES" in out
    assert "; inference with a batch of 64 in amp on 4 H100" in out
    assert "The best pipeline, " in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("Net", "--input", "1x1", "--gpu", "H1000"), "Unknown GPU 'H1000'; similar names: H100"),
        (("Net", "--input", "1x1", "--specs", "nowhere.csv"), "File nowhere.csv does not exist"),
        (
            ("Net", "--input", "1x1", "--precision", "int4"),
            "Unknown precision 'int4'; known precisions: fp32, tf32, bf16, amp,",
        ),
        (("Net",), "Missing option '--input'"),
        (("a b", "--input", "1x1"), "'a b' is not the name of a model"),
        (("deep", "--input", "1x0"), "'1x0' is not an input"),
        (
            ("deep", "--input", "7x8192", "--micro-batches", "5"),
            "A batch of 7 cannot be divided over 4 GPUs with 5 micro-batches",
        ),
        (("Net", "--input", "1x1", "--python", "/nowhere/python"), "/nowhere/python: No such file or directory."),
    ],
)
def test_invalid_models_are_reported_in_one_sentence(
    divide: Partition, model: Path, capsys: Said, words: tuple[str, ...], sentence: str
) -> None:
    assert divide(model, *words) == 2
    assert sentence in capsys.readouterr().err


def test_without_lightgbm_the_error_names_what_to_install(
    divide: Partition, model: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    assert divide(model, "deep", "--input", "1x1") == 2
    assert capsys.readouterr().err.endswith("needs LightGBM: pip install 'gpuyard[learn]'.\n")


def test_the_function_returns_what_the_command_prints(divide: Partition, model: Path, capsys: Said) -> None:
    found = partition(model, "deep", ["64x8192"], gpus=2, gpu="H200")
    assert (found.model, found.batch, found.gpus) == ("deep", 64, 2)
    assert found.best_pipeline is not None
    told = as_json(divide, capsys, model, "deep", "--input", "64x8192", "--gpus", 2, "--gpu", "H200")
    assert [plan["seconds"] for plan in told["plans"]] == [plan.seconds for plan in found.plans]


def test_ways_left_out_and_a_way_slower_than_one_gpu_are_reported(divide: Partition, model: Path, capsys: Said) -> None:
    assert divide(model, "deep", "--input", "8x8192", "--gpus", 3, "--gpu", "a100", "--link", 0.001) == 0
    out = capsys.readouterr().out
    assert "Omitted: 3 × 1 stage: 3 replicas do not divide a batch of 8." in out
    assert "The first way is slower than one GPU (speed-up 0." in out
