"""The model zoo: every own model is built and run once on torch's meta device."""

import pytest

pytest.importorskip("torch")

import torch

from gpuyard.learn.profiler.sweep import MODES, PRECISIONS, configurations
from gpuyard.learn.profiler.zoo import ProfiledModel, own, profiled_models

OWN = list(own.profiled_models())
RUN = [subject for subject in OWN if subject.family != "recurrent" or subject.name.endswith("-256x1")]
"""Without memory, PyTorch goes through a recurrent net step by step, which takes seconds."""
KINDS = {"image", "tokens", "vector", "sequence", "latent"}


def test_names_are_unique_and_show_the_origin_of_a_model() -> None:
    names = [subject.name for subject in OWN]
    assert len(names) == len(set(names))
    assert set(names) <= set(profiled_models())
    assert all(name.split("/")[0] in {"own", "torchvision", "transformers"} for name in profiled_models())


@pytest.mark.parametrize("subject", RUN, ids=[subject.name for subject in RUN])
def test_a_model_takes_a_batch_and_returns_a_result_per_sample(subject: ProfiledModel) -> None:
    assert subject.kind in KINDS
    assert list(subject.batches) == sorted(set(subject.batches))
    with torch.device("meta"), torch.inference_mode():
        model, inputs = subject.build(), subject.inputs(3)
        assert {one.shape[0] for one in inputs} == {3}
        assert model.eval()(*inputs).shape[0] == 3


def test_causal_attention_does_not_look_ahead() -> None:
    torch.manual_seed(1)
    causal, open_ = own.Attention(64, causal=True), own.Attention(64, causal=False)
    tokens = torch.randn(1, 5, 64)
    changed = tokens.clone()
    changed[0, 4] += 1.0
    with torch.inference_mode():
        assert torch.allclose(causal(tokens)[0, :4], causal(changed)[0, :4])
        assert not torch.allclose(open_(tokens)[0, :4], open_(changed)[0, :4])


def test_the_denoiser_receives_the_noise_level_of_its_input() -> None:
    torch.manual_seed(1)
    denoiser = own.Denoiser(64, 1)
    latent, noise = torch.randn(1, 4, 16, 16), torch.randn(1, 128)
    with torch.inference_mode():
        assert not torch.allclose(denoiser(latent, noise), denoiser(latent, noise + 1.0))
        assert denoiser(latent, noise).shape == latent.shape


def test_every_combination_is_measured_once_bf16_last_and_batches_from_small_to_large() -> None:
    subject = OWN[0]
    every = configurations(subject)
    assert len(set(every)) == len(every) == len(MODES) * len(PRECISIONS) * len(subject.batches)
    precisions = [one.precision for one in every]
    assert precisions == sorted(precisions, key=lambda precision: precision == "bf16")
    some = configurations(subject, precisions=["fp32"], modes=["infer"], batches=[8, 1, 4])
    assert [one.batch for one in some] == [1, 4, 8]


def test_options_may_come_from_a_one_shot_iterator() -> None:
    subject = OWN[0]
    lazy = configurations(subject, iter(MODES), iter(PRECISIONS), iter((1, 2)))
    assert lazy == configurations(subject, MODES, PRECISIONS, (1, 2))


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_a_sample_has_about_the_requested_size(part: float) -> None:
    every = [one for subject in OWN for one in configurations(subject)]
    chosen = [one for subject in OWN for one in configurations(subject, part=part)]
    assert len(chosen) == pytest.approx(part * len(every), abs=0.05 * len(every))


def test_compiled_models_are_separate_configurations_of_which_the_same_sample_is_measured() -> None:
    subject = OWN[0]
    plain, compiled = (configurations(subject, part=0.5, compiled=it) for it in (False, True))
    assert [(one.mode, one.batch, one.precision) for one in plain] == [(c.mode, c.batch, c.precision) for c in compiled]
    assert not set(plain) & set(compiled)
