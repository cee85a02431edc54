"""Calibration from a minute of measurements."""

from pathlib import Path

import numpy as np
import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance.arrays import FloatArray, TextArray
from gpuyard.learn.performance.calibration import Correction, ErrorShares, MeasuredWork, error_shares, read_peaks


def no_words(count: int) -> FloatArray:
    return np.zeros((count, 1))


def one_family(count: int) -> TextArray:
    return np.full(count, "resnet")


def different(count: int) -> TextArray:
    return np.array([f"family {number}" for number in range(count)])


def correction(
    features: FloatArray, wrong: FloatArray, words: FloatArray | None = None, family: TextArray | None = None
) -> Correction:
    """Features as they are, and errors in units of their expected size."""
    named = no_words(len(wrong)) if words is None else words
    families = different(len(wrong)) if family is None else family
    return Correction.of(features, named, families, wrong, np.ones(features.shape[1]), ErrorShares())


def test_near_a_slower_row_others_are_expected_to_be_slower() -> None:
    features = np.array([[0.0], [0.1], [0.2], [9.8], [9.9], [10.0]])
    made = correction(features, np.array([1.0, 1.0, 1.0, -1.0, -1.0, -1.0]))
    said, _, _ = made.at(np.array([[0.15], [9.85]]), no_words(2), one_family(2))
    assert said[0] > 0.25
    assert said[1] < -0.25


def test_far_from_every_measurement_a_part_of_the_mean_remains() -> None:
    made = correction(np.arange(20.0)[:, None], np.full(20, 0.4))
    assert 0.1 < made.at(np.array([[1e6]]), no_words(1), one_family(1))[0][0] < 0.4


def test_rows_of_one_family_correct_it_more_than_other_families() -> None:
    made = correction(np.zeros((11, 1)), np.full(11, 1.0), family=one_family(11))
    said, _, _ = made.at(np.zeros((2, 1)), no_words(2), np.array(["resnet", "vit"]))
    assert said[0] > said[1] + 0.1


def test_a_range_narrows_for_the_measured_family_near_its_rows() -> None:
    made = correction(0.01 * np.arange(11.0)[:, None], np.full(11, 0.1), family=one_family(11))
    _, factor, measured = made.at(np.array([[0.05], [50.0]]), no_words(2), one_family(2))
    assert measured.all()
    assert factor[0] < 0.7
    assert 0.7 < factor[1] <= 1.0


@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("count", [5, 11, 200])
def test_rows_of_one_family_never_narrow_the_range_of_another(wrong: float, count: int) -> None:
    made = correction(np.zeros((count, 1)), np.full(count, wrong), family=one_family(count))
    _, factor, measured = made.at(np.zeros((1, 1)), no_words(1), np.array(["vit"]))
    assert not measured.any()
    assert factor[0] >= 1.0


@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0, 3.0])
def test_rows_of_another_kind_of_work_never_narrow_a_range(wrong: float) -> None:
    shown = np.zeros((40, 3))
    made = correction(0.01 * np.arange(40.0)[:, None], np.full(40, wrong), shown)
    said, factor, _ = made.at(np.array([[0.05], [0.05]]), np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]), one_family(2))
    assert abs(said[1]) < 0.7 * abs(said[0]) + 1e-9
    assert factor[1] >= 1.0


def test_rows_of_many_families_that_agree_narrow_the_range_of_others() -> None:
    made = correction(5.0 * np.arange(40.0)[:, None], np.random.default_rng(1).normal(0.0, 0.4, 40))
    assert made.at(np.array([[2.0]]), no_words(1), np.array(["new"]))[1][0] < 0.8


def test_a_range_is_widened_if_the_measured_rows_differ_more_than_expected() -> None:
    features, luck = np.arange(40.0)[:, None] * 5.0, np.random.default_rng(1)
    usual, wild = (correction(features, luck.normal(0.0, size, 40)) for size in (1.0, 3.0))
    assert 0.8 < usual.size < 1.3
    assert wild.size > 2.0
    assert wild.at(np.array([[2.0]]), np.ones((1, 1)), one_family(1))[1][0] > 1.5


def test_one_family_that_is_far_off_widens_the_ranges_of_others() -> None:
    made = correction(np.zeros((11, 1)), np.full(11, 4.0), family=one_family(11))
    assert made.at(np.full((1, 1), 9.0), no_words(1), np.array(["vit"]))[1][0] > 1.2


def gpus_with(
    offset: float, family: float, noise: float, count: int = 8
) -> tuple[list[MeasuredWork], list[FloatArray]]:
    """Errors on several GPUs, made of these parts, in 40 families of 20 rows."""
    luck = np.random.default_rng(3)
    names = np.repeat(different(40), 20)
    works, wrong = [], []
    for _ in range(count):
        own = luck.normal(0.0, 1.0, 40)
        works.append(MeasuredWork(luck.normal(0.0, 1.0, (800, 6)), no_words(800), names))
        wrong.append(offset * luck.normal() + family * np.repeat(own, 20) + noise * luck.normal(0.0, 1.0, 800))
    return works, wrong


def test_the_shares_of_errors_are_found_from_those_on_known_gpus() -> None:
    by_family, by_gpu = error_shares(*gpus_with(0.0, 1.0, 0.4), seed=1), error_shares(*gpus_with(1.0, 0.0, 0.4), seed=1)
    assert by_family.family > 0.5 > by_family.offset
    assert by_gpu.offset > 0.4 > by_gpu.family
    for one in (by_family, by_gpu):
        assert one.offset + one.family + one.local + one.noise == pytest.approx(1.0)
        assert min(one.offset, one.family, one.local) >= 0.0
        assert one.noise > 0.05


def test_without_known_gpus_the_shares_are_assumed() -> None:
    assert error_shares([], [], seed=1) == ErrorShares()


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
