"""Whole language models in fp32 (sitar-lab/NeuSight, MIT)."""

import numpy as np

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance.dataset import CsvColumns, ProfileRows, constant_column, missing_column
from gpuyard.learn.performance.operation_profile import OperationProfile, OperationProfiles

SHAPES = {
    "bert_large": (24, 1024, 30_522),
    "gpt2_large": (36, 1280, 50_257),
    "gpt3_xl": (24, 3072, 50_257),
    "gpt3_27": (32, 2560, 50_257),
    "opt_13": (24, 2048, 50_272),
    "switchxl4": (66, 2048, 32_128),
}
"""Layers, width and vocabulary of the measured models. Switch has an encoder and a decoder, with attention to both."""


def models(columns: CsvColumns) -> list[ProfileRows]:
    """Return rows of whole language models; those not in `SHAPES` are left out, as the file has no widths."""
    model, mode = columns.texts("model"), columns.texts("mode")
    tokens = columns.numbers("seqlen", above=0)
    known = np.array([name in SHAPES for name in model.tolist()])
    works: dict[tuple[str, str, float], OperationProfile] = {}
    keys = [
        key for key, k in zip(zip(model.tolist(), mode.tolist(), tokens.tolist(), strict=True), known, strict=True) if k
    ]
    for name, how, length in keys:
        if (name, how, length) not in works:
            works[name, how, length] = transformer(*SHAPES[name], length).times(3.0 if how == "train" else 1.0)
    option = columns.texts("option")
    every = ProfileRows(
        "network",
        columns.texts("gpu"),
        np.char.partition(model, "_")[:, 0],
        constant_column("fp32", len(columns)),
        columns.numbers("measured_ms", above=0),
        {
            "batch": columns.numbers("batch", above=0),
            "torch": np.full(len(columns), 201.0),
            "launch_us": missing_column(len(columns)),
        },
        {
            "source": constant_column("neusight", len(columns)),
            "mode": np.where(mode == "train", "train", "infer"),
            "compiled": np.where(option == "fusion", "yes", "no"),
            "layout": constant_column("nchw", len(columns)),
            "numbers": constant_column("fp32", len(columns)),
            "model": np.char.add(np.char.add(model, " "), option),
        },
    )
    single = known & np.isin(option, ("", "fusion"))
    if not single.any():
        raise WrongInput(f"{columns.path} has no model of known size on one GPU; known models: {', '.join(SHAPES)}")
    kept = [works[key] for key, one in zip(keys, single[known], strict=True) if one]
    return [every.take(single).of(OperationProfiles.of(kept))]


def transformer(layers: float, width: float, words: float, tokens: float) -> OperationProfile:
    """Return the profile of a sample through an eager transformer: products, scores, passes over activations."""
    t, w = tokens, width
    scores = t * t * (w / 64)
    one = [
        ("matmul", 4, 2 * t * w * 4 * w, 4 * t * w * 8, 16 * w * w),
        ("matmul", 2, 2 * t * w * 8 * w, 4 * t * w * 10, 32 * w * w),
        ("matmul", 2, 4 * t * t * w, 4 * (4 * t * w + 2 * scores), 0.0),
        ("light", 4, 0.0, 4 * scores * 8, 0.0),
        ("norm", 2, 0.0, 4 * t * w * 4, 0.0),
        ("light", 12, 0.0, 4 * t * w * 30, 0.0),
    ]
    groups = [(kind, n * layers, f * layers, b * layers, p * layers) for kind, n, f, b, p in one]
    head = ("matmul", 1, 2 * t * w * words, 4 * t * (w + words), 4 * w * words)
    return OperationProfile.of([*groups, head])
