"""deepseek-llm-7b in plain PyTorch: the Llama architecture, with a cache of keys and values for generation.

load("7b")                        random weights: the right size and speed, and meaningless text
load("7b", folder="/models/...")  weights as they are published: config.json with *.safetensors or *.bin
load("small")                     a few thousand parameters, for tests and machines without a GPU
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    vocabulary: int = 102400
    width: int = 4096
    inner: int = 11008
    layers: int = 30
    heads: int = 32
    key_heads: int = 32
    longest: int = 4096
    epsilon: float = 1e-6
    theta: float = 10000.0


SHAPES = {
    "7b": Shape(),
    "small": Shape(vocabulary=512, width=64, inner=176, layers=2, heads=4, key_heads=2, longest=256),
}


class RMSNorm(nn.Module):
    def __init__(self, width, epsilon):
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(width)), epsilon

    def forward(self, x):
        exact = x.float()
        return (exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.epsilon)).to(x.dtype) * self.weight


def rotated(x, cosine, sine):
    """Rotate pairs (i, i + half) of each head by an angle that grows with the place in the text."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.heads, self.key_heads, self.size = shape.heads, shape.key_heads, shape.width // shape.heads
        self.q_proj = nn.Linear(shape.width, shape.heads * self.size, bias=False)
        self.k_proj = nn.Linear(shape.width, shape.key_heads * self.size, bias=False)
        self.v_proj = nn.Linear(shape.width, shape.key_heads * self.size, bias=False)
        self.o_proj = nn.Linear(shape.heads * self.size, shape.width, bias=False)

    def forward(self, x, cosine, sine, cache, begin):
        batch, count, _ = x.shape
        query = rotated(self.q_proj(x).view(batch, count, self.heads, self.size).transpose(1, 2), cosine, sine)
        key = rotated(self.k_proj(x).view(batch, count, self.key_heads, self.size).transpose(1, 2), cosine, sine)
        value = self.v_proj(x).view(batch, count, self.key_heads, self.size).transpose(1, 2)
        if cache is not None:
            keys, values = cache
            keys[:, :, begin : begin + count], values[:, :, begin : begin + count] = key, value
            key, value = keys[:, :, : begin + count], values[:, :, : begin + count]
        if self.key_heads != self.heads:
            key, value = (part.repeat_interleave(self.heads // self.key_heads, dim=1) for part in (key, value))
        mask = None
        if count > 1 and begin:  # a part of a text behind a cached one: each word sees what is before it
            mask = torch.ones(count, begin + count, dtype=torch.bool, device=x.device).tril(begin)
        seen = functional.scaled_dot_product_attention(query, key, value, mask, is_causal=count > 1 and not begin)
        return self.o_proj(seen.transpose(1, 2).reshape(batch, count, -1))


class MLP(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.input_layernorm = RMSNorm(shape.width, shape.epsilon)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.width, shape.epsilon)
        self.mlp = MLP(shape)

    def forward(self, x, cosine, sine, cache, begin):
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine, cache, begin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """The names of its parts are those of the published weights."""

    def __init__(self, shape):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.width, shape.epsilon)


class DeepSeek(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape)
        self.lm_head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def new_cache(self, batch, length):
        """Memory for keys and values of all layers."""
        size, like = self.shape.width // self.shape.heads, self.lm_head.weight
        return [
            tuple(
                torch.empty(batch, self.shape.key_heads, length, size, dtype=like.dtype, device=like.device)
                for _ in "kv"
            )
            for _ in range(self.shape.layers)
        ]

    def forward(self, tokens, cache=None, begin=0):
        """Return the scores of the next token behind each token; `begin` tokens are in the cache already."""
        half = self.shape.width // self.shape.heads // 2
        speeds = self.shape.theta ** (-torch.arange(half, device=tokens.device, dtype=torch.float32) / half)
        angles = (
            torch.arange(begin, begin + tokens.shape[1], device=tokens.device, dtype=torch.float32)[:, None] * speeds
        )
        x = self.model.embed_tokens(tokens)
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for number, layer in enumerate(self.model.layers):
            x = layer(x, cosine, sine, None if cache is None else cache[number], begin)
        return self.lm_head(self.model.norm(x))

    @torch.inference_mode()
    def generate(self, tokens, count, stop=None):
        """Yield the most likely next tokens of a batch, one step after another."""
        length = tokens.shape[1]
        if length + count > self.shape.longest:
            raise ValueError(
                f"{length} + {count} tokens are more than the {self.shape.longest} that the model can hold"
            )
        cache = self.new_cache(tokens.shape[0], length + count)
        chosen = self(tokens, cache)[:, -1].argmax(-1)
        for place in range(length, length + count):
            yield chosen
            if place == length + count - 1 or (stop is not None and bool((chosen == stop).all())):
                return
            chosen = self(chosen[:, None], cache, place)[:, -1].argmax(-1)


def load(size="7b", *, folder=None, device=None, seed=0):
    """Return the model on a device, and how it was made: `random weights`, or the folder of its weights."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device != "cpu" or size == "7b" else torch.float32
    shape = SHAPES[size] if folder is None else shape_of(Path(folder))
    with torch.device("meta"):
        model = DeepSeek(shape)
    model = model.to(dtype).to_empty(device=device).eval().requires_grad_(False)
    if folder is None:
        torch.manual_seed(seed)
        for name, weight in model.named_parameters():
            nn.init.ones_(weight) if "norm" in name else nn.init.normal_(weight, std=0.02)
        return model, "random weights"
    copy_weights(model, Path(folder))
    return model, f"weights of {folder}"


def shape_of(folder):
    told = json.loads((folder / "config.json").read_text())
    heads = told["num_attention_heads"]
    return Shape(
        vocabulary=told["vocab_size"], width=told["hidden_size"], inner=told["intermediate_size"],
        layers=told["num_hidden_layers"], heads=heads, key_heads=told.get("num_key_value_heads", heads),
        longest=told["max_position_embeddings"], epsilon=told["rms_norm_eps"], theta=told.get("rope_theta", 10000.0),
    )  # fmt: skip


def copy_weights(model, folder):
    """Copy the published weights into the model, file by file, so that one file at a time is in memory."""
    wanted = dict(model.named_parameters())
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise FileNotFoundError(f"{folder} has neither *.safetensors nor pytorch_model*.bin")
    for file in files:
        parts = (
            safe_tensors(file)
            if file.suffix == ".safetensors"
            else torch.load(file, mmap=True, weights_only=True).items()
        )
        for name, weight in parts:
            if name in wanted:
                wanted.pop(name).copy_(weight)
    if wanted:
        raise ValueError(f"{folder} lacks {len(wanted)} weights, such as {min(wanted)}")


TYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def safe_tensors(file):
    """Yield the tensors of a file in the safetensors format: the length of a header, the header as JSON, the bytes."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
    content = torch.from_file(str(file), size=file.stat().st_size, dtype=torch.uint8)
    for name, about in header.items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in about["data_offsets"])
            yield name, content[begin:end].clone().view(TYPES[about["dtype"]]).view(about["shape"])


class Bytes:
    """Stands in for the tokenizer where there are no weights: one token for each byte."""

    stop = None

    def encode(self, text):
        return list(text.encode())

    def decode(self, tokens):
        return bytes(token % 256 for token in tokens).decode(errors="replace")


class Published:
    """The tokenizer in the folder of the weights; needs the package `tokenizers`."""

    def __init__(self, folder):
        from tokenizers import Tokenizer

        self._own = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self.stop = self._own.token_to_id("<｜end▁of▁sentence｜>")

    def encode(self, text):
        return self._own.encode(text).ids

    def decode(self, tokens):
        return self._own.decode(tokens)


def tokenizer(folder):
    return Published(folder) if folder else Bytes()


def waited(device):
    """The time, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
