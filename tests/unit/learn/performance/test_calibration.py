"""Calibration from a minute of measurements."""

from pathlib import Path

import numpy as np
import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance.arrays import FloatArray
from gpuyard.learn.performance.calibration import Correction, read_peaks


def no_words(count: int) -> FloatArray:
    return np.zeros((count, 1))


def correction(features: FloatArray, wrong: FloatArray, words: FloatArray | None = None) -> Correction:
    """Features as they are, and errors of the expected size."""
    named = no_words(len(wrong)) if words is None else words
    return Correction.of(features, named, wrong, np.full(len(wrong), 0.3), np.ones(features.shape[1]))


def test_near_a_slower_row_others_are_expected_to_be_slower() -> None:
    features = np.array([[0.0], [0.1], [0.2], [9.8], [9.9], [10.0]])
    made = correction(features, np.array([0.5, 0.5, 0.5, -0.5, -0.5, -0.5]))
    said, _ = made.at(np.array([[0.15], [9.85]]), no_words(2))
    assert said[0] > 0.2
    assert said[1] < -0.2


def test_far_from_every_measurement_a_part_of_the_mean_remains() -> None:
    made = correction(np.arange(20.0)[:, None], np.full(20, 0.4))
    assert 0.1 < made.at(np.array([[1e6]]), no_words(1))[0][0] < 0.4


def test_a_range_narrows_near_measured_rows_and_hardly_far_from_them() -> None:
    made = correction(np.full((11, 1), 1.0) + 0.01 * np.arange(11.0)[:, None], np.full(11, 0.1))
    _, factor = made.at(np.array([[1.05], [50.0]]), no_words(2))
    assert factor[0] < 0.6
    assert factor[1] > 0.8


def test_rows_of_another_kind_neither_correct_much_nor_narrow_a_range() -> None:
    shown = np.column_stack([np.zeros(11), np.zeros(11), np.zeros(11)])
    made = correction(0.01 * np.arange(11.0)[:, None], np.full(11, 0.4), shown)
    said, factor = made.at(np.array([[0.05], [0.05]]), np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]))
    assert said[0] > 0.3
    assert abs(said[1]) < 0.06
    assert factor[1] > 0.95


def test_a_range_is_widened_if_the_measured_rows_differ_more_than_expected() -> None:
    features, luck = np.arange(40.0)[:, None] * 5.0, np.random.default_rng(1)
    usual, wild = (correction(features, luck.normal(0.0, size, 40)) for size in (0.3, 0.9))
    assert usual.widen < 1.3
    assert wild.widen > 2.0


def test_few_rows_that_agree_do_not_narrow_ranges_elsewhere() -> None:
    made = correction(np.arange(5.0)[:, None], np.zeros(5))
    assert made.widen == 1.0


def test_peaks_are_read_as_the_profiler_writes_them(tmp_path: Path) -> None:
    one = tmp_path / "peaks.json"
    one.write_text(
        '{"gpu": "NVIDIA H200", "fp32_tflops": 50.1, "bf16_tflops": 700, "fp16_tflops": null, "copy_gb_s": 4100}'
    )
    assert read_peaks(one) == {"NVIDIA H200": {"fp32_tflops": 50.1, "bf16_tflops": 700.0, "copy_gb_s": 4100.0}}
    table = tmp_path / "peaks.csv"
    table.write_text("gpu,fp32_tflops,copy_gb_s\nT4,4.2,240\nP4,2.7,\n")
    assert read_peaks(table) == {"T4": {"fp32_tflops": 4.2, "copy_gb_s": 240.0}, "P4": {"fp32_tflops": 2.7}}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"fp32_tflops": 1}', "entry 1: gpu is missing"),
        ('[{"gpu": "T4", "copy_gb_s": "fast"}]', "entry 1: copy_gb_s must be a number above 0, not 'fast'"),
        ('[{"gpu": "T4", "copy_gb_s": [1]}]', r"entry 1: copy_gb_s must be a number above 0, not '\[1\]'"),
        ("{", "is neither JSON nor a table"),
        ("[" * 100_000, "it is nested too deeply"),
        ("gpu\n" + "x" * 200_000, "is neither JSON nor a table: field larger than field limit"),
        *((text, "peaks.json contains no GPU") for text in ("", "[]", "x", '"x"', "gpu,fp32_tflops")),
    ],
)
def test_invalid_peaks_are_refused(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "peaks.json").write_text(text)
    with pytest.raises(WrongInput, match=sentence):
        read_peaks(tmp_path / "peaks.json")
