"""Calibration from a minute of measurements."""

from pathlib import Path

import numpy as np
import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance.calibration import Correction, read_peaks


def test_near_a_slower_row_others_are_expected_to_be_slower() -> None:
    features = np.array([[0.0], [0.1], [0.2], [9.8], [9.9], [10.0]])
    wrong = np.array([0.5, 0.5, 0.5, -0.5, -0.5, -0.5])
    said = Correction.of(features, wrong, 0.8).at(np.array([[0.15], [9.85]]))
    assert said[0] > 0.3
    assert said[1] < -0.3


def test_far_from_every_measurement_most_of_the_mean_remains() -> None:
    correction = Correction.of(np.arange(20.0)[:, None], np.full(20, 0.4), 0.8)
    assert 0.2 < correction.at(np.array([[1e6]]))[0] < 0.4


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
