"""Rooflines: what a GPU needs at best, and what is assumed of it and of its host before measurements."""

from pathlib import Path

import numpy as np

from gpuyard.learn.performance.dataset import ProfileRows, read
from gpuyard.learn.performance.gpu_specs import shipped
from gpuyard.learn.performance.rooflines import ROOFLINES
from gpuyard.learn.performance.rooflines.chips import GpuColumns
from tests.unit.learn.performance.synthetic_rows import write

STEP = ("model", "family", "kind", "size", "mode", "batch", "precision", "compiled", "gpu", "torch", "step_ms", "memory_reserved_mib", "utilization")  # fmt: skip
RESNET = ("torchvision/resnet50", "resnet", "image", 224, "infer")


def base(rows: ProfileRows) -> np.ndarray:
    return ROOFLINES[rows.kind].features(rows, GpuColumns.of(rows, shipped()))[0]


def steps(folder: Path, batch: int, launches: list[object], precision: str = "fp32") -> ProfileRows:
    lines = [(*RESNET, batch, precision, "false", "H200", "2.11", 5.0, 900.0, 0.4, us) for us in launches]
    return read(write(folder / "steps.csv", (*STEP, "launch_us"), lines))[0]


def test_a_small_step_waits_for_its_host_and_a_large_one_does_not(tmp_path: Path) -> None:
    quick, slow = base(steps(tmp_path, 1, [6.6, 13.2]))
    assert slow > 1.3 * quick
    quick, slow = base(steps(tmp_path, 512, [6.6, 13.2]))
    assert slow < 1.05 * quick


def test_an_unmeasured_host_is_assumed_to_be_like_ours(tmp_path: Path) -> None:
    unsaid, ours = base(steps(tmp_path, 1, ["", 6.6]))
    assert unsaid == ours


def test_a_file_without_the_host_column_is_read(tmp_path: Path) -> None:
    line = (*RESNET, 1, "fp32", "false", "H200", "2.11", 5.0, 900.0, 0.4)
    alone = read(write(tmp_path / "rows.csv", STEP, [line]))[0]
    assert base(alone) == base(steps(tmp_path, 1, [""]))


def test_casts_are_launched_too(tmp_path: Path) -> None:
    assert base(steps(tmp_path, 1, [""], "amp")) > 1.2 * base(steps(tmp_path, 1, [""]))


def test_memory_is_predicted_from_the_structure_of_a_model(tmp_path: Path) -> None:
    line = (*RESNET, 4, "fp32", "false", "H200", "2.11", 5.0, 900.0, 0.4)
    memory = read(write(tmp_path / "rows.csv", STEP, [line]))[1]
    told = ROOFLINES["memory"].features(memory, GpuColumns.of(memory, shipped()))[1]
    assert told["operations"][0] > 100
    assert 0.1 < told["of_convolution"][0] < 0.9
    assert told["of_attention"][0] == 0.0
