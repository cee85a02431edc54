"""Models of transformers, built from their configurations with random weights: nothing is downloaded."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from gpuyard.learn.profiler.zoo import ProfiledModel

_SMALL = {"num_hidden_layers": 6, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}
_BASE = {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
_LARGE = {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
_LLAMA = {"vocab_size": 32_000, "max_position_embeddings": 4096}

CONFIGURATIONS: tuple[tuple[str, str, str, str, dict[str, Any], int], ...] = (
    ("bert-small", "bert", "BertConfig", "AutoModelForMaskedLM", _SMALL, 128),
    ("bert-base", "bert", "BertConfig", "AutoModelForMaskedLM", _BASE, 128),
    ("bert-base-512", "bert", "BertConfig", "AutoModelForMaskedLM", _BASE, 512),
    ("bert-large", "bert", "BertConfig", "AutoModelForMaskedLM", _LARGE, 256),
    ("roberta-base", "roberta", "RobertaConfig", "AutoModelForMaskedLM", _BASE | {"max_position_embeddings": 514}, 256),
    ("distilbert", "distilbert", "DistilBertConfig", "AutoModelForMaskedLM", {}, 128),
    ("electra-base", "electra", "ElectraConfig", "AutoModelForSequenceClassification", _BASE, 256),
    ("gpt2", "gpt2", "GPT2Config", "AutoModelForCausalLM", {}, 512),
    ("gpt2-medium", "gpt2", "GPT2Config", "AutoModelForCausalLM", {"n_layer": 24, "n_embd": 1024, "n_head": 16}, 512),
    ("gpt2-large", "gpt2", "GPT2Config", "AutoModelForCausalLM", {"n_layer": 36, "n_embd": 1280, "n_head": 20}, 256),
    ("opt-125m", "opt", "OPTConfig", "AutoModelForCausalLM", {}, 512),
    ("opt-1.3b", "opt", "OPTConfig", "AutoModelForCausalLM", {"num_hidden_layers": 24, "hidden_size": 2048, "ffn_dim": 8192, "num_attention_heads": 32}, 256),
    ("llama-160m", "llama", "LlamaConfig", "AutoModelForCausalLM", _LLAMA | {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "num_key_value_heads": 12, "intermediate_size": 3072}, 512),
    ("llama-1b", "llama", "LlamaConfig", "AutoModelForCausalLM", _LLAMA | {"num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 8192}, 512),
    ("qwen2-0.5b", "qwen2", "Qwen2Config", "AutoModelForCausalLM", {"vocab_size": 50_000, "num_hidden_layers": 24, "hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 4864}, 512),
    ("t5-small", "t5", "T5Config", "T5EncoderModel", {}, 256),
    ("t5-base", "t5", "T5Config", "T5EncoderModel", {"num_layers": 12, "d_model": 768, "num_heads": 12, "d_ff": 3072}, 256),
    ("mamba-130m", "mamba", "MambaConfig", "AutoModelForCausalLM", {"num_hidden_layers": 8, "hidden_size": 768}, 128),
)  # fmt: skip
"""Name, family, configuration, kind of model, options that differ from the configuration's defaults, tokens."""


class _Plain(nn.Module):
    """Wraps a model: only tokens in, only the first tensor out."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(input_ids=tokens, return_dict=False)[0]
        return out


def profiled_models() -> list[ProfiledModel]:
    """Return all language models."""
    return [
        ProfiledModel(f"transformers/{name}", family, "tokens", tokens, _builder(config, kind, options), _tokens(tokens), (1, 4, 16, 64))
        for name, family, config, kind, options, tokens in CONFIGURATIONS
    ]  # fmt: skip


def _builder(config: str, kind: str, options: dict[str, Any]) -> Callable[[], Any]:
    def build() -> Any:
        import transformers

        made = getattr(transformers, config)(**options, use_cache=False) if config != "DistilBertConfig" else transformers.DistilBertConfig(**options)  # fmt: skip
        wanted = getattr(transformers, kind)
        return _Plain(wanted.from_config(made) if kind.startswith("Auto") else wanted(made))

    return build


def _tokens(tokens: int) -> Callable[[int], tuple[Any, ...]]:
    return lambda batch: (torch.randint(30_000, (batch, tokens)),)
