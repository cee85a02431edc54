"""Operators of language models by token count and tensor-parallel degree, in fp16 (microsoft/vidur, MIT)."""

import numpy as np

from gpuyard.learn.performance.dataset import CsvColumns, ProfileRows, constant_column


def rows(columns: CsvColumns) -> list[ProfileRows]:
    """Each operator as a product, or as a pass over memory, of the part that one GPU has."""
    number = {
        name: columns.numbers(name, above=0)
        for name in ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size")
    }
    tokens, parts = columns.numbers("num_tokens", above=0), columns.numbers("num_tensor_parallel_workers", above=0)
    op, model = columns.texts("op"), columns.texts("model")
    gated = np.char.lower(columns.texts("use_gated_mlp")) == "true"
    width, wide, head = number["n_embd"], number["n_expanded_embd"] / parts, number["n_embd"] / number["n_head"]
    mine, kv = width / parts, np.maximum(number["n_kv_head"] / parts, 1) * head
    up = wide * np.where(gated, 2, 1)
    zero = np.zeros(len(tokens))
    n = np.select(
        [op == "attn_pre_proj", op == "attn_post_proj", op == "mlp_up_proj", op == "mlp_down_proj"],
        [mine + 2 * kv, width, up, width],
        zero,
    )
    k = np.select(
        [op == "attn_pre_proj", op == "attn_post_proj", op == "mlp_up_proj", op == "mlp_down_proj"],
        [width, mine, width, wide],
        zero,
    )
    passes = np.select(
        [op == "add", op == "emb", op == "attn_rope", op == "mlp_act"],
        [3 * width, 2 * width, 2 * (mine + kv), up + wide],
        2 * width,
    )
    return [
        ProfileRows(
            "vidur_layers",
            columns.texts("gpu"),
            model,
            constant_column("fp16", len(columns)),
            columns.numbers("latency_ms", above=0),
            {
                "tokens": tokens,
                "n": n,
                "k": k,
                "passes": np.where(n > 0, n + k, passes),
                "width": width,
                "parts": parts,
            },
            {"op": op},
        )
    ]
