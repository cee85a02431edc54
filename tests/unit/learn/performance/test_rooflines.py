"""What a GPU needs at best, and what is known of it and of its host before it is measured."""

from pathlib import Path

import numpy as np
import pytest

from gpuyard.learn.performance.dataset import Rows, read
from gpuyard.learn.performance.gpu_specs import shipped
from gpuyard.learn.performance.rooflines import ROOFLINES, matmul
from gpuyard.learn.performance.rooflines.chips import Chips
from tests.unit.learn.performance.worlds import write

STEP = ("model", "family", "kind", "size", "mode", "batch", "precision", "compiled", "gpu", "torch", "step_ms", "memory_reserved_mib", "utilisation")  # fmt: skip
RESNET = ("torchvision/resnet50", "resnet", "image", 224, "infer")


def base(rows: Rows) -> np.ndarray:
    return ROOFLINES[rows.kind].features(rows, Chips.of(rows, shipped()))[0]


def steps(folder: Path, batch: int, launches: list[object], precision: str = "fp32") -> Rows:
    lines = [(*RESNET, batch, precision, "false", "H200", "2.11", 5.0, 900.0, 0.4, us) for us in launches]
    return read(write(folder / "steps.csv", (*STEP, "launch_us"), lines))[0]


def test_a_small_step_waits_for_its_host_and_a_large_one_does_not(tmp_path: Path) -> None:
    quick, slow = base(steps(tmp_path, 1, [6.6, 13.2]))
    assert slow > 1.3 * quick
    quick, slow = base(steps(tmp_path, 512, [6.6, 13.2]))
    assert slow < 1.05 * quick


def test_a_host_nobody_has_measured_is_one_like_ours(tmp_path: Path) -> None:
    unsaid, ours = base(steps(tmp_path, 1, ["", 6.6]))
    assert unsaid == ours


def test_a_file_without_the_column_of_the_host_is_read_all_the_same(tmp_path: Path) -> None:
    line = (*RESNET, 1, "fp32", "false", "H200", "2.11", 5.0, 900.0, 0.4)
    alone = read(write(tmp_path / "rows.csv", STEP, [line]))[0]
    assert base(alone) == base(steps(tmp_path, 1, [""]))


def test_casts_are_launched_too(tmp_path: Path) -> None:
    assert base(steps(tmp_path, 1, [""], "amp")) > 1.2 * base(steps(tmp_path, 1, [""]))


def test_a_pass_that_takes_numbers_one_by_one_waits_for_cycles_and_not_for_memory(tmp_path: Path) -> None:
    columns = "gpu model op n_head n_kv_head n_embd n_expanded_embd vocab_size use_gated_mlp num_tokens num_tensor_parallel_workers latency_ms"
    lines = [
        (gpu, "llama", op, 32, 32, 4096, 11008, 32000, "true", 16384, 1, 1.0)
        for op in ("add", "emb")
        for gpu in ("A40", "A100-80GB-SXM")
    ]
    add_a40, add_a100, emb_a40, emb_a100 = base(read(write(tmp_path / "ops.csv", columns.split(), lines))[0])
    assert add_a40 > 2.5 * add_a100  # by their bandwidth
    assert 0.85 < emb_a40 / emb_a100 < 1.2  # both have as many cycles


def test_what_is_left_over_of_the_last_square_and_of_the_last_pack_of_channels_is_told(tmp_path: Path) -> None:
    columns = [
        "gpu",
        "B",
        "Input_Channel",
        "Output_Channel",
        "Kernel_Size",
        "Input_Size",
        "Stride",
        "Padding",
        "latency_ms",
    ]
    lines = [("T4", 8, 64, 128, 3, 12, 1, 1, 1.0), ("T4", 8, 65, 128, 3, 13, 1, 1, 1.0)]
    (rows,) = read(write(tmp_path / "conv.csv", columns, lines))
    told = ROOFLINES[rows.kind].features(rows, Chips.of(rows, shipped()))[1]
    assert told["square_4"].tolist() == pytest.approx([1.0, 16**2 / 13**2])
    assert told["into_32"].tolist() == [1.0, 96 / 65]
    assert told["out_64"].tolist() == [1.0, 1.0]


def test_a_round_that_is_not_full_takes_as_long_as_a_full_one(tmp_path: Path) -> None:
    tiles = 2 * 108  # of 128 × 128, two rounds of an A100's processors
    columns = ("gpu", "op", "B", "M", "N", "K", "latency_ms")
    lines = [("A100-40GB-PCIe", "linear", 1, 128 * count, 128, 8192, 1.0) for count in (tiles, tiles + 1)]
    even, more = base(read(write(tmp_path / "products.csv", columns, lines))[0])
    assert more > 1.05 * even


def test_a_deep_product_with_a_small_result_is_shared_by_many_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = ("gpu", "op", "B", "M", "N", "K", "latency_ms")
    lines = [("A100-40GB-PCIe", "linear", 1, m, 256, 65536, 1.0) for m in (256, 13_824)]
    rows = read(write(tmp_path / "products.csv", columns, lines))[0]
    small, large = base(rows)
    monkeypatch.setattr(matmul, "PARTS", (1,))
    small_alone, large_alone = base(rows)
    assert small_alone > 1.5 * small
    assert large_alone < 1.1 * large


def test_memory_is_told_what_a_model_is_made_of(tmp_path: Path) -> None:
    line = (*RESNET, 4, "fp32", "false", "H200", "2.11", 5.0, 900.0, 0.4)
    memory = read(write(tmp_path / "rows.csv", STEP, [line]))[1]
    told = ROOFLINES["memory"].features(memory, Chips.of(memory, shipped()))[1]
    assert told["operations"][0] > 100
    assert 0.1 < told["of_convolution"][0] < 0.9
    assert told["of_attention"][0] == 0.0
