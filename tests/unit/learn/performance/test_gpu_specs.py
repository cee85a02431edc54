"""GPUs by name, with the figures of their data sheets."""

from pathlib import Path

import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance.gpu_specs import read_specs, shipped
from tests.unit.learn.performance.synthetic_rows import SPEC_COLUMNS, SPECS, write, write_specs


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("H200-SXM", "H200-SXM"),
        ("NVIDIA H200", "H200-SXM"),
        ("h200", "H200-SXM"),
        ("V100", "V100-PCIe-32GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("Tesla V100-PCIE-16GB", "V100-PCIe-16GB"),
        ("RTX 4090", "RTX4090"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("L4", "L4"),
        ("A100-80GB", "A100-80GB-PCIe"),
    ],
)
def test_a_gpu_is_found_by_common_and_driver_names(said: str, meant: str) -> None:
    assert shipped().find(said).gpu == meant


def test_an_unknown_gpu_is_answered_with_the_nearest_names() -> None:
    with pytest.raises(WrongInput, match=r"Unknown GPU 'RTX4091'; similar names: RTX4090"):
        shipped().find("RTX4091")


def test_a_gpu_unlike_any_other_is_answered_with_where_the_names_are_listed() -> None:
    with pytest.raises(
        WrongInput, match=r"^Unknown GPU 'foo'; no known name is similar; .* performance.md .* \(--specs\).$"
    ):
        shipped().find("foo")


@pytest.mark.parametrize(
    ("said", "boards"),
    [
        ("A100", ["A100-40GB-PCIe", "A100-40GB-SXM", "A100-80GB-PCIe", "A100-80GB-SXM"]),
        ("nvidia h100", ["H100-PCIe", "H100-SXM"]),
        ("A100-80GB", ["A100-80GB-PCIe", "A100-80GB-SXM"]),
        ("H200", ["H200-SXM"]),
        ("A100-40GB-SXM", []),
        ("L4", []),
        ("foo", []),
    ],
)
def test_a_short_name_is_shared_by_the_boards_that_it_begins(said: str, boards: list[str]) -> None:
    assert shipped().sharing(said) == boards


@pytest.mark.parametrize(("said", "near"), [("H2", "H200-SXM"), ("L40", "L40S"), ("A1", "A10"), ("RTX", "RTX5090")])
def test_half_words_and_ambiguous_prefixes_name_no_gpu(said: str, near: str) -> None:
    with pytest.raises(WrongInput, match=f"Unknown GPU '{said}'; similar names: .*{near}"):
        shipped().find(said)


def test_a_power_capped_board_does_not_sustain_its_peak() -> None:
    t4, v100 = shipped().find("T4"), shipped().find("V100")
    assert t4.sustained_tflops("fp32") < 0.6 * t4.tflops("fp32")
    assert v100.sustained_tflops("fp32") > 0.95 * v100.tflops("fp32")


def test_a_measurement_replaces_the_sustained_rate_and_not_the_peak_of_the_data_sheet() -> None:
    measured = shipped().with_peaks({"Tesla T4": {"fp32_tflops": 3.8, "copy_gb_s": 255.0}}).find("T4")
    assert measured.tflops("fp32") == 8.1
    assert measured.sustained_tflops("fp32") == pytest.approx(3.8 / 0.95)
    assert measured.mem_bw_gbs == pytest.approx(255.0 / 0.85)


def test_boards_may_share_a_chip_and_chips_of_one_generation_differ() -> None:
    h200, h100, b200, rtx5090, a30, a100 = (
        shipped().find(n) for n in ("H200", "H100", "B200", "RTX5090", "A30", "A100")
    )
    assert h200.has_same_chip_as(h100)
    assert not b200.has_same_chip_as(rtx5090)
    assert not a30.has_same_chip_as(a100)


def test_a_number_format_a_gpu_lacks_is_computed_in_the_next_wider_one() -> None:
    p100 = shipped().find("P100")
    assert p100.tflops("bf16") == p100.tflops("fp16")
    assert p100.tflops("tf32") == p100.fp32_tflops


def test_a_specs_file_survives_a_round_trip(tmp_path: Path) -> None:
    assert read_specs(write_specs(tmp_path / "gpus.csv")).gpus == SPECS.gpus


def test_specs_without_a_column_or_with_invalid_values_are_refused_with_the_place(tmp_path: Path) -> None:
    short = write(tmp_path / "short.csv", SPEC_COLUMNS[:-1], [])
    with pytest.raises(WrongInput, match=r"short.csv has no column tdp_w"):
        read_specs(short)
    wrong = write(tmp_path / "wrong.csv", SPEC_COLUMNS, [["x", 1, 1, "fast", 1, 1, 1, 1]])
    with pytest.raises(WrongInput, match=r"wrong.csv, line 2: .*fp32_tflops"):
        read_specs(wrong)
    nothing = write(tmp_path / "nothing.csv", SPEC_COLUMNS, [["x", 1, 1, 0, 1, 1, 1, 1]])
    with pytest.raises(WrongInput, match=r"line 2: fp32_tflops of x must be above 0"):
        read_specs(nothing)


def test_two_gpus_communicate_over_nvlink_or_pcie_in_one_direction() -> None:
    specs = shipped()
    assert [specs.find(name).link_gbs for name in ("H200", "A100-80GB-SXM", "T4", "L4", "RTX5090")] == [
        450,
        300,
        12.5,
        25,
        50,
    ]
