"""Durations, sizes and numbers of GPUs as people write them."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.input.quantities import gpu_mebibytes_in, gpus_in, mebibytes_in, seconds_in


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (90, 90), (0.5, 0.5), ("90", 90), ("1.5", 1.5), ("90s", 90), ("30m", 1800), ("2h", 7200), ("1h30m", 5400),
        ("1d", 86400), ("2 hours", 7200), ("1 day 2 hours", 93600), ("1 H 30 Min", 5400), ("500ms", 0.5), ("1w", 604800),
        ("2:00:00", 7200), ("00:00:02", 2), ("100:00:00", 360000), ("1-12", 129600), ("1-12:30", 131400),
        ("1-00:00:01", 86401), (" 2h ", 7200),
    ],
)  # fmt: skip
def test_a_duration_has_one_meaning(text: object, seconds: float) -> None:
    assert seconds_in(text) == seconds


@pytest.mark.parametrize("text", ["2:00", "90:30", "0:05"])
def test_hours_and_minutes_are_refused_with_both_readings(text: str) -> None:
    first, second = (int(part) for part in text.split(":"))
    with pytest.raises(ValueError, match=f"write {first}h{second}m or {first}m{second}s"):
        seconds_in(text)


@pytest.mark.parametrize(
    "text",
    ["", "soon", "0", "0s", "-5", "-1h", "1h-", "2x", "1e3", "nan", "inf", "1:2:3", "1:60:00", "1:00:60", "1-2:3", "1 2",
     "h", "1h 30", "9" * 400, "1:00:00:00", "٣", "2 fortnights", True, None, [], float("nan"), float("inf"), 1e10],
)  # fmt: skip
def test_anything_else_is_not_a_duration(text: object) -> None:
    with pytest.raises(ValueError, match=r"\w+"):
        seconds_in(text)


@pytest.mark.parametrize(
    ("text", "mebibytes"),
    [
        (8192, 8192), ("8192", 8192), ("8G", 8192), ("8GB", 8192), ("8GiB", 8192), ("8g", 8192), ("8 gb", 8192),
        ("0.5T", 524288), ("800M", 800), ("8.5G", 8704), ("1k", 1), ("0", 0), (".5g", 512), ("16MiB", 16),
    ],
)  # fmt: skip
def test_a_size_has_one_meaning(text: object, mebibytes: int) -> None:
    assert mebibytes_in(text) == mebibytes


@pytest.mark.parametrize(
    "text", ["", "G", "8X", "-8G", "8GBB", "1e3", "8 G B", "1.5", "9" * 200, True, None, 1.5, "8,5G"]
)
def test_anything_else_is_not_a_size(text: object) -> None:
    with pytest.raises(ValueError, match=r"\w+"):
        mebibytes_in(text)


@pytest.mark.parametrize(
    ("asked", "reported"),
    [("24G", 24564), ("24GB", 23034), ("16G", 15360), ("80G", 81559), ("40GiB", 40960), ("48g", 46068)],
)
def test_the_size_on_the_box_accepts_the_gpu(asked: str, reported: int) -> None:
    assert gpu_mebibytes_in(asked) <= reported


def test_the_tolerance_does_not_accept_the_next_smaller_gpu_and_mebibytes_are_exact() -> None:
    assert gpu_mebibytes_in("24G") > 20475  # an RTX A4500 with 20 GB
    assert gpu_mebibytes_in("80G") > 49140
    assert (gpu_mebibytes_in("24576"), gpu_mebibytes_in("24576M"), gpu_mebibytes_in(24576)) == (24576, 24576, 24576)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("2", (2, None)), (2, (2, None)), ("0", (0, None)), ("A100:2", (2, "A100")), ("2:A100", (2, "A100")),
        ("A100", (1, "A100")), ("4090:2", (2, "4090")), ("1g.10gb:3", (3, "1g.10gb")), ("RTX 4090:1", (1, "RTX 4090")),
    ],
)  # fmt: skip
def test_gpus_are_a_number_a_model_or_both(text: object, gpus: tuple[int, str | None]) -> None:
    assert gpus_in(text) == gpus


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0.5", "--fraction"), ("two", "a number of GPUs"), ("", "a number"), ("A100:", "a number"), (":2", "a number"),
        ("A100:80GB:2", "--gpu-memory"), ("H100,A100", "--any-of"), ("-1", "a number"), ("A100:x", "a number"),
        (True, "a number"), (1.5, "a number"),
    ],
)  # fmt: skip
def test_other_forms_are_refused_with_a_sentence(text: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        gpus_in(text)


@given(st.text(max_size=30), st.sampled_from([seconds_in, mebibytes_in, gpu_mebibytes_in, gpus_in]))
def test_any_text_is_a_quantity_or_is_refused(text: str, read: Callable[[object], object]) -> None:
    try:
        value = read(text)
    except ValueError:
        return
    assert value is not None
