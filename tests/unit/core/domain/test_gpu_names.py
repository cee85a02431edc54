"""Which GPU model a user means."""

import pytest

from gpuyard.core.domain.gpu_names import closest_gpu_name, resolve_gpu_name

KNOWN = frozenset(("NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 3090", "NVIDIA H200", "RTX4090"))


@pytest.mark.parametrize(
    ("asked", "model"),
    [
        ("RTX4090", "RTX4090"),
        ("rtx4090", "RTX4090"),
        ("RTX 4090", "RTX4090"),
        ("4090", "RTX4090"),
        ("rtx 3090", "NVIDIA GeForce RTX 3090"),
        ("a100", "NVIDIA A100-SXM4-80GB"),
        ("h200", "NVIDIA H200"),
    ],
)
def test_lowercase_and_partial_names_match_the_one_model_that_has_them(asked: str, model: str) -> None:
    assert resolve_gpu_name(asked, KNOWN) == model


@pytest.mark.parametrize("asked", ["H2", "409", "rtx", "nvidia", "", "-", "V100"])
def test_half_words_and_ambiguous_names_match_none(asked: str) -> None:
    assert resolve_gpu_name(asked, KNOWN) is None


def test_an_unknown_name_has_a_nearest_name() -> None:
    assert closest_gpu_name("rtx4080", KNOWN) == "RTX4090"
    assert closest_gpu_name("zzz", KNOWN) is None
