"""Transformers by their configuration: the names people type, and `config.json` files.

A transformer is described by a dozen numbers, which its `config.json` contains. From them the operations of a step are
counted here without PyTorch and without the network: `data/models.csv` has these numbers for well-known models by their
Hugging Face name, and other models are read from a file or folder. The passes over activations that PyTorch makes
between matrix products depend on how the layers are written; `STYLES` has them for the five ways in use, read from
models of each style that were counted on PyTorch's `meta` device.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.error_location import shortened
from gpuyard.input.files import LARGEST_TEXT_BYTES, is_folder, read_file, shown_path
from gpuyard.learn.performance.operation_profile import OperationProfile

SHIPPED = Path(__file__).parent / "data" / "models.csv"
FP32_BYTES = 4.0
LEAST_PART = 3
"""Letters of a name from which models that contain it are offered."""
LARGEST_PARAMETERS = 1e14
"""No model that runs today has a hundredth of this; a configuration above it is an error."""


@dataclass(frozen=True, slots=True)
class Style:
    """How the layers of a model are written in PyTorch: passes over activations of one layer in inference."""

    is_causal: bool
    is_gated: bool
    """Whether the feed-forward part has three weights instead of two."""
    has_biases: bool
    """Whether linear layers have biases, norms are layer norms in one kernel, and positions are learned."""
    light_kernels: float
    passes: float
    """Reads and writes of activations as wide as the model, outside of products, norms and attention."""
    wide_passes: float
    """The same for activations as wide as the feed-forward part."""
    kept_wide: float
    """Activations as wide as the feed-forward part that are kept for the backward pass."""


STYLES = {
    "bert": Style(False, False, True, 4.6, 9.0, 2.0, 2.0),
    "gpt2": Style(True, False, True, 13.2, 11.0, 20.0, 5.0),
    "opt": Style(True, False, True, 5.8, 11.0, 2.0, 1.0),
    "t5": Style(False, False, False, 25.4, 41.0, 2.0, 1.0),
    "llama": Style(True, True, False, 40.0, 56.0, 8.0, 4.0),
}
KEPT = 10.0
"""Activations as wide as the model that a layer keeps for the backward pass."""
LOSS_PASSES = 14.0
"""Passes over the logits in training: loss, its gradient, casts."""
TRAINING_LIGHT = 2.4
"""Passes over activations in training, forward and backward, over those of inference."""
TRAINING_KERNELS = 14.0
"""Additional small kernels for each layer in training if it has biases: their gradients."""


class TransformerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers that determine the cost of a transformer."""

    name: str
    family: str
    style: str
    layers: int
    """Layers of the encoder, or of the only stack."""
    width: int
    heads: int
    kv_heads: int
    head_width: int
    feed_forward: int
    vocabulary: int
    positions: int
    """Longest input."""
    decoder_layers: int = 0
    """Layers of a decoder that attends to the encoder; 0 if there is only one stack."""
    encoder_tokens: int = 0
    """Fixed length of the encoder's input; 0 if it is that of the tokens."""
    experts: int = 1
    """Feed-forward parts of a layer, each `feed_forward` wide, of which a token uses some."""
    experts_used: int = 1
    shared: int = 0
    """Width of the feed-forward part that every token uses beside its experts."""
    dense_layers: int = 0
    """Layers with one feed-forward part, `dense_feed_forward` wide, in place of experts."""
    dense_feed_forward: int = 0
    gated: bool = False
    """Whether the feed-forward part has three weights although that is not the style."""
    embedding: int = 0
    """Width of the embeddings if they are projected to that of the layers; 0 if they are not."""
    tied: bool = False
    """Whether input and output embeddings are one matrix."""
    quantized: str = ""
    """How its weights are quantized, as its configuration says; empty if they are not."""

    @property
    def is_decoder(self) -> bool:
        """Whether it generates token by token from one stack of layers: what inference engines serve."""
        return STYLES[self.style].is_causal and not self.decoder_layers

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward part has three weights instead of two."""
        return STYLES[self.style].is_gated or self.gated

    @property
    def learns_positions(self) -> bool:
        """Whether each position has an embedding of its own."""
        return STYLES[self.style].has_biases and self.family not in _ROTARY

    @property
    def wide(self) -> float:
        """Width of all feed-forward parts of a layer together, on average over the layers."""
        return self._mean_width(self.experts)

    @property
    def wide_used(self) -> float:
        """Width of the feed-forward parts of a layer that a token uses, on average over the layers."""
        return self._mean_width(self.experts_used)

    def _mean_width(self, experts: int) -> float:
        dense = self.dense_layers / self.layers
        return dense * self.dense_feed_forward + (1 - dense) * (experts * self.feed_forward + self.shared)

    @property
    def parameters(self) -> float:
        """All parameters."""
        style, layers, embedding = STYLES[self.style], self.layers + self.decoder_layers, self.embedding or self.width
        projected = self.width * self.head_width * (2 * self.heads + 2 * self.kv_heads)
        feed = (3 if self.is_gated else 2) * self.width * self.wide
        router = self.width * self.experts if self.experts > 1 else 0
        biases = 10 * self.width + self.feed_forward if style.has_biases else 2 * self.width
        stacks = 2 if self.decoder_layers and not self.encoder_tokens else 1  # each has its own table of positions
        tables = self.vocabulary * embedding * (1 if self.tied else 2)
        tables += stacks * self.positions * self.width if self.learns_positions else 0
        tables += 2 * embedding * self.width if self.embedding else 0
        return layers * (projected + feed + router + biases) + self.decoder_layers * projected + tables

    def profile(self, mode: str, tokens: int) -> OperationProfile:
        """Return the operations of a step with one sample of so many tokens, in fp32."""
        _Counting.check(self, tokens)
        return _Counting(self, mode == "train").profile(float(tokens))


@dataclass(frozen=True, slots=True)
class _Counting:
    """Counts the groups of operations of one model."""

    config: TransformerConfig
    is_training: bool

    @staticmethod
    def check(config: TransformerConfig, tokens: int) -> None:
        if tokens > config.positions:
            raise WrongInput(f"{config.name} takes at most {config.positions:,} tokens; size is {tokens:,}")

    def profile(self, tokens: float) -> OperationProfile:
        config, b = self.config, FP32_BYTES
        encoded = float(config.encoder_tokens or tokens)
        groups = self._layers(config.layers, encoded, encoded, crossed=False)
        if config.decoder_layers:
            groups += self._layers(config.decoder_layers, tokens, encoded, crossed=True)
        logits = tokens * config.vocabulary
        groups.append(
            self._product(1, 2 * logits * config.width, b * (tokens * config.width + logits), b * config.vocabulary * config.width)
        )  # fmt: skip
        if self.is_training:
            groups.append(("light", 10.0, 0.0, LOSS_PASSES * b * logits, 0.0))
        kept = sum(
            self._kept(count, length) for count, length in ((config.layers, encoded), (config.decoder_layers, tokens))
        )
        widest = max(logits, encoded * config.feed_forward)
        return OperationProfile.of(
            groups,
            (kept + b * logits) if self.is_training else 0.0,
            (3.0 if self.is_training else 2.0) * b * widest,
            b * config.parameters,
        )

    def _layers(self, count: int, tokens: float, others: float, *, crossed: bool) -> list[tuple[Any, ...]]:
        """Return the groups of a stack; with `crossed`, each layer also attends to the `others` of the encoder."""
        config, b = self.config, FP32_BYTES
        style = STYLES[config.style]
        width, inner, kv = config.width, config.heads * config.head_width, config.kv_heads * config.head_width
        blocks = [(tokens, tokens)] + ([(tokens, others)] if crossed else [])
        found: list[tuple[Any, ...]] = []
        for asks, keys in blocks:
            weights = width * (2 * inner + 2 * kv)
            flops = 2 * (asks * width * 2 * inner + keys * width * 2 * kv)
            moved = b * (asks * (2 * width + 2 * inner) + keys * 2 * (width + kv))
            found.append(self._product(4 * count, flops * count, moved * count, b * weights * count))
            pairs = asks * keys * (0.5 if style.is_causal and keys == asks else 1.0)
            ways = (3.0, 3.5, 2.75) if self.is_training else (1.0, 1.0, 1.0)
            found.append(
                ("attention", ways[0] * count, ways[1] * 4 * pairs * inner * count, ways[2] * b * 2 * (asks + keys) * inner * count, 0.0)
            )  # fmt: skip
        products = 3 if config.is_gated else 2
        moved = b * tokens * products * (width * config.experts_used + config.wide_used)
        flops = 2 * tokens * products * width * config.wide_used
        kept = b * products * width * config.wide
        found.append(self._product(products * config.experts * count, flops * count, moved * count, kept * count))
        if style.has_biases:
            norms = (2.0, 2.5) if self.is_training else (1.0, 1.0)
            found.append(("norm", norms[0] * 2 * count, 0.0, norms[1] * 4 * b * tokens * width * count, 0.0))
        passes = b * tokens * (style.passes * width + style.wide_passes * config.wide_used)
        kernels_light = style.light_kernels
        if self.is_training:
            passes, kernels_light = TRAINING_LIGHT * passes, TRAINING_LIGHT * kernels_light
            kernels_light += TRAINING_KERNELS if style.has_biases else 0.0
        found.append(("light", kernels_light * count, 0.0, passes * count, 0.0))
        return found

    def _product(self, kernels: float, flops: float, moved: float, weights: float) -> tuple[Any, ...]:
        ways = 3.0 if self.is_training else 1.0
        return ("matmul", ways * kernels, ways * flops, ways * moved, ways * weights)

    def _kept(self, count: int, tokens: float) -> float:
        config = self.config
        wide = STYLES[config.style].kept_wide * config.wide_used
        return FP32_BYTES * count * tokens * (KEPT * config.width + wide)


@cache
def shipped() -> Mapping[str, TransformerConfig]:
    """Return the models that ship with gpuyard, by their name in small letters."""
    with SHIPPED.open(encoding="utf-8", newline="") as file:
        known = [msgspec.convert(line, TransformerConfig, strict=False) for line in csv.DictReader(file)]
    return {one.name.lower(): one for one in known}


def find(name: str) -> TransformerConfig | None:
    """Find a model by its Hugging Face name: with or without its owner, in capital or small letters.

    `Meta-`, `-hf` and the owner may be left out: `llama-7b`, `meta-llama/Llama-3-8B`, `Mistral-7B-v0.1`.
    """
    models = shipped()
    if name.lower() in models:
        return models[name.lower()]
    return _by_short_name().get(_short(name))


@cache
def _by_short_name() -> Mapping[str, TransformerConfig]:
    found: dict[str, TransformerConfig] = {}
    for one in shipped().values():
        found.setdefault(_short(one.name), one)
    return found


def _short(name: str) -> str:
    """Return a name without its owner and without what does not change the layers: `Meta-`, `-Instruct`, `-chat`, `-hf`."""
    return re.sub(r"^meta-|-hf$|-(?:instruct|chat)(?=-|$)", "", name.lower().rstrip("/").rpartition("/")[2])


QUANTIZED = re.compile(
    r"[-_.](?:gptq|awq|gguf|ggml|exl2|bnb|hqq|fp8|nf4|int[48]|[48]-?bit|w\d+a\d+|q\d(?:_\w+)?)(?=[-_.]|$)"
)
"""Parts of a name that say that the weights of a model are quantized."""


def without_quantization(name: str) -> TransformerConfig | None:
    """Return the known model whose quantized weights have this name; None if it does not say so, or is unknown."""
    short = _short(name)
    found = QUANTIZED.search(short)
    return find(QUANTIZED.sub("", short)) if found else None


def similar(name: str) -> list[str]:
    """Return names of known models that are similar to this one: first those that contain it."""
    short, known = _short(name), _by_short_name()
    inside = [one for one in known if len(short) >= LEAST_PART and short in one]
    near = [*inside, *get_close_matches(short, known, n=3, cutoff=0.6)]
    return [known[one].name for one in dict.fromkeys(near)][:3]


_KEYS = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers"),
    "width": ("hidden_size", "n_embd", "n_embed", "d_model", "dim"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_width": ("head_dim", "d_kv"),
    "feed_forward": (
        "intermediate_size",
        "ffn_dim",
        "n_inner",
        "d_ff",
        "hidden_dim",
        "encoder_ffn_dim",
        "ffn_hidden_size",
    ),
    "vocabulary": ("vocab_size",),
    "positions": ("max_position_embeddings", "n_positions", "max_target_positions", "seq_length", "n_ctx"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_used": ("num_experts_per_tok",),
    "embedding": ("embedding_size", "word_embed_proj_dim"),
}
"""Names of the same number in the configurations of different models, in the order in which they are looked for."""
_STYLE_OF = {
    "gpt2": "gpt2", "gpt_neo": "gpt2", "gptj": "gpt2", "gpt_neox": "gpt2", "gpt_bigcode": "gpt2", "phi": "gpt2",
    "falcon": "gpt2", "bloom": "gpt2", "opt": "opt", "t5": "t5", "mt5": "t5", "starcoder2": "gpt2",
    "bert": "bert", "roberta": "bert", "xlm-roberta": "bert", "distilbert": "bert", "electra": "bert", "mpnet": "bert",
    "camembert": "bert", "whisper": "bert", "bart": "bert", "mbart": "bert",
    **dict.fromkeys(
        ("llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma", "gemma2", "phi3", "stablelm", "olmo", "cohere",
         "internlm2", "granite", "deepseek", "smollm3", "qwen2_moe", "qwen3_moe"), "llama"),
}  # fmt: skip
"""Types of models whose parameters were compared with those that the maker of one of them states."""
_FAMILY_OF = {"mistral": "llama", "xlm-roberta": "roberta"}
"""Models with the layers of another family."""
_ROTARY = frozenset({"gptj", "gpt_neox", "phi", "falcon", "bloom", "starcoder2"})
"""Families with biases whose positions are not learned."""
_UNTIED = frozenset(
    ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "phi", "phi3", "stablelm", "olmo", "internlm2",
     "granite", "deepseek", "gptj", "gpt_neox", "mt5")
)  # fmt: skip
"""Types whose output embeddings are a matrix of their own unless tie_word_embeddings says otherwise."""
_CROSSED = frozenset({"t5", "mt5", "whisper", "bart", "mbart"})
_HEAD_WIDTH = {"gemma": 256, "gemma2": 256, "qwen3": 128, "qwen3_moe": 128, "t5": 64, "mt5": 64}
"""Where head_dim is missing and not the width of the model by its heads."""
_LEARNED_POSITIONS, _ENDLESS = 1_024, 1_000_000
"""The longest input where the configuration does not have it: with learned positions, and without."""


def read_config(path: Path) -> TransformerConfig:
    """Read a `config.json` in the form of Hugging Face, or a folder that contains one."""
    file = path / "config.json" if is_folder(path) else path
    if file != path and not file.exists():
        raise WrongInput(f"{shown_path(path)} is a folder without config.json")
    try:
        said = msgspec.json.decode(read_file(file, largest=LARGEST_TEXT_BYTES))
    except OSError as error:
        raise WrongInput(f"{shown_path(file)}: {error.strerror}") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise WrongInput(f"{shown_path(file)} is not JSON: {error}") from None
    if not isinstance(said, dict):
        raise WrongInput(f"{shown_path(file)} does not contain one JSON object")
    kind = said.get("model_type")
    if not isinstance(kind, str) or kind not in _STYLE_OF:
        given = "is missing" if kind is None else f"{shortened(str(kind))!r} is not supported"
        raise WrongInput(f"{shown_path(file)}: model_type {given}; supported types: {', '.join(sorted(_STYLE_OF))}")
    config = _of_json(said, kind, file)
    _check(config, file)
    return config


def _check(config: TransformerConfig, file: Path) -> None:
    """Raise `WrongInput` if no model can have these numbers together."""
    if config.kv_heads > config.heads or config.heads % config.kv_heads:
        raise WrongInput(
            f"{shown_path(file)}: num_key_value_heads is {config.kv_heads:,}; it must divide the {config.heads:,} heads"
        )
    if config.experts_used > config.experts:
        raise WrongInput(
            f"{shown_path(file)}: num_experts_per_tok is {config.experts_used:,}, but there are {config.experts:,} experts"
        )
    if config.parameters > LARGEST_PARAMETERS:
        raise WrongInput(
            f"{shown_path(file)} describes {config.parameters:.1e} parameters; at most {LARGEST_PARAMETERS:.0e} are possible"
        )


def _of_json(said: dict[str, Any], kind: str, file: Path) -> TransformerConfig:
    numbers = {name: _number(said, keys, file) for name, keys in _KEYS.items()}
    width, heads = numbers["width"], numbers["heads"]
    for name in ("layers", "width", "heads", "vocabulary"):
        if numbers[name] is None:
            raise WrongInput(f"{shown_path(file)} has none of the keys {', '.join(_KEYS[name])}")
    assert width is not None
    assert heads is not None
    head_width = numbers["head_width"] or _HEAD_WIDTH.get(kind)
    if head_width is None and width % heads:
        raise WrongInput(
            f"{shown_path(file)}: the width {width:,} is not a multiple of the {heads:,} heads, and head_dim is missing"
        )
    if numbers["experts_used"] and not numbers["experts"]:
        raise WrongInput(
            f"{shown_path(file)} has num_experts_per_tok and none of the keys {', '.join(_KEYS['experts'])}"
        )
    style, layers = _STYLE_OF[kind], numbers["layers"] or 0
    crossed = bool(said.get("is_encoder_decoder")) or kind in _CROSSED
    decoder = _number(said, ("decoder_layers", "num_decoder_layers"), file) if crossed else None
    dense = numbers["feed_forward"] or 4 * width
    expert = (_number(said, ("moe_intermediate_size",), file) if numbers["experts"] else None) or dense
    shared = _number(said, ("shared_expert_intermediate_size",), file)
    many_shared = _number(said, ("n_shared_experts",), file)
    embedding = numbers["embedding"] or width
    made = TransformerConfig(
        name=_name(said, file),
        family=_FAMILY_OF.get(kind, kind),
        style=style,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=_kv_heads(said, kind, numbers["kv_heads"], heads, file),
        head_width=head_width or max(width // heads, 1),
        feed_forward=expert,
        vocabulary=numbers["vocabulary"] or 0,
        positions=numbers["positions"] or _ENDLESS,
        decoder_layers=(decoder or layers) if crossed else 0,
        encoder_tokens=_number(said, ("max_source_positions",), file) or 0,
        experts=numbers["experts"] or 1,
        experts_used=numbers["experts_used"] or 1,
        shared=shared or (many_shared or 0) * expert,
        dense_layers=_dense_layers(said, layers, file) if numbers["experts"] else 0,
        dense_feed_forward=dense,
        gated=_is_gated(said, kind),
        embedding=embedding if embedding != width else 0,
        tied=_is_tied(said, file, otherwise=kind not in _UNTIED),
        quantized=_quantization(said, file),
    )
    if numbers["positions"] is None and made.learns_positions:
        return msgspec.structs.replace(made, positions=_LEARNED_POSITIONS)
    return made


def _kv_heads(said: dict[str, Any], kind: str, given: int | None, heads: int, file: Path) -> int:
    """Return the number of heads of keys and values; some types say only whether there is one or not."""
    if kind == "gpt_bigcode" or (kind == "falcon" and not said.get("new_decoder_architecture")):
        return 1 if said.get("multi_query", True) else heads
    return given or _number(said, ("num_kv_heads",), file) or heads


def _is_gated(said: dict[str, Any], kind: str) -> bool:
    """Return whether the feed-forward part of a T5 has three weights."""
    how = said.get("feed_forward_proj", "gated-gelu" if kind == "mt5" else "relu")
    return _STYLE_OF[kind] == "t5" and (said.get("is_gated_act") is True or str(how).startswith("gated"))


def _dense_layers(said: dict[str, Any], layers: int, file: Path) -> int:
    """Return how many layers of a model with experts have none."""
    first = said.get("first_k_dense_replace", 0)
    every = _number(said, ("moe_layer_freq",), file) or 1
    step = _number(said, ("decoder_sparse_step",), file) or 1
    only = said.get("mlp_only_layers") or []
    if not isinstance(first, int) or not isinstance(only, list):
        raise WrongInput(f"{shown_path(file)}: first_k_dense_replace must be an integer, mlp_only_layers a list")
    sparse = (at >= first and at % every == 0 and at not in only and (at + 1) % step == 0 for at in range(layers))
    return layers - sum(sparse)


def _name(said: dict[str, Any], file: Path) -> str:
    """Return the name that the configuration gives, on one line, otherwise that of its folder."""
    name = said.get("_name_or_path")
    return shortened(name) if isinstance(name, str) and name.strip() else shortened(file.resolve().parent.name)


def _is_tied(said: dict[str, Any], file: Path, *, otherwise: bool) -> bool:
    tied = said.get("tie_word_embeddings")
    if tied is not None and not isinstance(tied, bool):
        raise WrongInput(f"{shown_path(file)}: tie_word_embeddings must be true or false, not {shortened(repr(tied))}")
    return otherwise if tied is None else tied


def _quantization(said: dict[str, Any], file: Path) -> str:
    """Return the quantization of the weights in words, such as `fp8` or `gptq, 4 bits`."""
    how = said.get("quantization_config")
    if how is None:
        return ""
    if not isinstance(how, dict):
        raise WrongInput(f"{shown_path(file)}: quantization_config must be an object")
    method = shortened(str(how.get("quant_method", "unknown method")))
    bits = how.get("bits", 4 if how.get("load_in_4bit") else 8 if how.get("load_in_8bit") else None)
    return f"{method}, {bits} bits" if isinstance(bits, int) else method


def _number(said: dict[str, Any], keys: tuple[str, ...], file: Path) -> int | None:
    """Return the first of these keys that the configuration has. Raises `WrongInput` unless it is a positive integer."""
    for key in keys:
        value = said.get(key)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= 10**9:
                raise WrongInput(
                    f"{shown_path(file)}: {key} must be an integer from 1 to 1000000000, not {shortened(repr(value))}"
                )
            return value
    return None
