"""Which GPU model a user means."""

import pytest

from gpuyard.core.domain.gpu_names import closest_gpu_name, matching_gpu_names

KNOWN = frozenset(
    (
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA GeForce RTX 3090",
        "NVIDIA H200",
        "RTX4090",
        "NVIDIA L40S",
        "Tesla V100S-PCIE-32GB",
    )
)


@pytest.mark.parametrize(
    ("asked", "model"),
    [
        ("RTX4090", "RTX4090"),
        ("rtx4090", "RTX4090"),
        ("RTX 4090", "RTX4090"),
        ("4090", "RTX4090"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("nvidia_geforce_rtx_4090", "RTX4090"),
        ("rtx 3090", "NVIDIA GeForce RTX 3090"),
        ("rtx_3090", "NVIDIA GeForce RTX 3090"),
        ("a100", "NVIDIA A100-SXM4-80GB"),
        ("a100-80g", "NVIDIA A100-SXM4-80GB"),
        ("A100_80GB", "NVIDIA A100-SXM4-80GB"),
        ("nvidia_a100-sxm4-80gb", "NVIDIA A100-SXM4-80GB"),
        ("h200", "NVIDIA H200"),
        ("l40s", "NVIDIA L40S"),
        ("v100s", "Tesla V100S-PCIE-32GB"),
    ],
)
def test_lowercase_and_partial_names_match_the_model_that_has_them(asked: str, model: str) -> None:
    assert matching_gpu_names(asked, KNOWN) == (model,)


@pytest.mark.parametrize(
    "asked",
    [
        "H2",
        "H20",
        "409",
        "rtx",
        "nvidia",
        "",
        "-",
        "V100",
        "A10",
        "L4",
        "L40",
        "a100-40g",
        "80GB A100",
        "A1",
        "ü",
        "NVIDIA GeForce",
    ],
)
def test_parts_of_words_and_names_without_a_number_match_none(asked: str) -> None:
    assert matching_gpu_names(asked, KNOWN) == ()


def test_a_name_that_several_models_have_means_all_of_them() -> None:
    known = (
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA A100-PCIE-40GB",
        "NVIDIA GeForce RTX 3090",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA A10",
    )
    assert matching_gpu_names("a100", known) == ("NVIDIA A100-PCIE-40GB", "NVIDIA A100-SXM4-80GB")
    assert matching_gpu_names("a100-80gb", known) == ("NVIDIA A100-SXM4-80GB",)
    assert matching_gpu_names("rtx 3090", known) == ("NVIDIA GeForce RTX 3090",)
    assert matching_gpu_names("rtx3090ti", known) == ("NVIDIA GeForce RTX 3090 Ti",)
    assert matching_gpu_names("a10", known) == ("NVIDIA A10",)


def test_an_unknown_name_has_a_nearest_name() -> None:
    assert closest_gpu_name("rtx4080", KNOWN) == "RTX4090"
    assert closest_gpu_name("zzz", KNOWN) is None
