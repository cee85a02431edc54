"""Our own models, built of common blocks: small enough to read, large enough to load a GPU."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gpuyard.learn.profiler.zoo import ProfiledModel


class Residual(nn.Module):
    """The input plus the output of the block."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Add the input to the block's output."""
        out: Tensor = x + self.body(x)
        return out


class Attention(nn.Module):
    """Self-attention with heads of 64."""

    def __init__(self, width: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = max(1, width // 64), causal
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Input and output: batch, tokens, width."""
        batch, tokens, width = x.shape
        q, k, v = self.into(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out


def _mlp(width: int, times: int = 4) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, times * width), nn.GELU(), nn.Linear(times * width, width))


def _block(width: int, *, causal: bool) -> nn.Sequential:
    return nn.Sequential(
        Residual(nn.LayerNorm(width), Attention(width, causal=causal)), Residual(nn.LayerNorm(width), _mlp(width))
    )


class Tokens(nn.Module):
    """Token ids through an embedding and blocks, to one score for each word of the vocabulary."""

    def __init__(self, width: int, depth: int, *, causal: bool, words: int = 32_000) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(words, width), nn.Embedding(4096, width)
        self.blocks = nn.Sequential(*(_block(width, causal=causal) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, words, bias=False))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of each next word."""
        x = self.embed(tokens) + self.place.weight[: tokens.shape[1]]
        out: Tensor = self.head(self.blocks(x))
        return out


class Patches(nn.Module):
    """An image in patches of 16, through blocks (attention or mixing), to 1,000 classes."""

    def __init__(self, width: int, depth: int, *, mixing: bool, pixels: int) -> None:
        super().__init__()
        count = (pixels // 16) ** 2
        self.cut = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.Sequential(
            *(Mixing(width, count) if mixing else _block(width, causal=False) for _ in range(depth))
        )
        self.head = nn.Linear(width, 1000)

    def forward(self, image: Tensor) -> Tensor:
        """Return the scores of the classes."""
        x = self.blocks(self.cut(image).flatten(2).transpose(1, 2))
        out: Tensor = self.head(x.mean(1))
        return out


class Mixing(nn.Module):
    """MLPs over patches, then over channels."""

    def __init__(self, width: int, count: int) -> None:
        super().__init__()
        self.norm, self.over = nn.LayerNorm(width), _mlp(count, 2)
        self.channels = Residual(nn.LayerNorm(width), _mlp(width))

    def forward(self, x: Tensor) -> Tensor:
        """Input and output: batch, patches, width."""
        x = x + self.over(self.norm(x).transpose(1, 2)).transpose(1, 2)
        out: Tensor = self.channels(x)
        return out


def _convolution(into: int, out: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(into, out, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(out), nn.ReLU()
    )


def _stages(width: int, depth: int, block: Callable[[int], nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = [_convolution(3, width, 7, 4)]
    for stage in range(4):
        if stage:
            layers.append(_convolution(width, 2 * width, 3, 2))
            width *= 2
        layers += [block(width) for _ in range(depth)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000))


def plain(width: int, depth: int) -> nn.Module:
    """Return a plain stack of convolutions."""
    return _stages(width, depth, lambda w: _convolution(w, w))


def residual(width: int, depth: int) -> nn.Module:
    """Return blocks of two convolutions with a shortcut."""
    return _stages(width, depth, lambda w: Residual(_convolution(w, w), _convolution(w, w)))


def depthwise(width: int, depth: int) -> nn.Module:
    """Return blocks that widen, convolve each channel alone, and narrow."""
    return _stages(
        width, depth, lambda w: Residual(_convolution(w, 4 * w, 1), _convolution(4 * w, 4 * w, 3, 1, 4 * w), _convolution(4 * w, w, 1))
    )  # fmt: skip


def perceptron(width: int, depth: int) -> nn.Module:
    """Return a stack of square linear layers."""
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)))


class Recurrent(nn.Module):
    """A sequence of vectors through LSTM or GRU layers, to 1,000 classes at each step."""

    def __init__(self, width: int, depth: int, cell: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.layers, self.head = cell(width, width, depth, batch_first=True), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores at each step."""
        out: Tensor = self.head(self.layers(x)[0])
        return out


class Denoiser(nn.Module):
    """A U-Net for latents of 4 channels: convolutions, attention at low resolution, and the noise level as input."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.time = nn.Sequential(nn.Linear(128, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
        self.first, self.last = nn.Conv2d(4, width, 3, 1, 1), nn.Conv2d(width, 4, 3, 1, 1)
        self.down = nn.ModuleList(self._level(w, depth) for w in widths)
        self.up = nn.ModuleList(self._level(w, depth) for w in reversed(widths))
        self.narrow = nn.ModuleList(nn.Conv2d(w, 2 * w, 3, 2, 1) for w in widths[:-1])
        self.widen = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.middle = Attention(4 * width, causal=False)

    @staticmethod
    def _level(width: int, depth: int) -> nn.Sequential:
        return nn.Sequential(
            *(Residual(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, 1, 1)) for _ in range(2 * depth))
        )

    def forward(self, latent: Tensor, noise: Tensor) -> Tensor:
        """Return the predicted noise."""
        x = self.first(latent) + self.time(noise)[:, :, None, None]
        kept = []
        for level, narrow in zip(self.down, [*self.narrow, None], strict=True):
            x = level(x)
            if narrow is not None:
                kept.append(x)
                x = narrow(x)
        batch, channels, height, wide = x.shape
        x = x + self.middle(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(batch, channels, height, wide)
        for level, widen in zip(self.up, [*self.widen, None], strict=True):
            x = level(x)
            if widen is not None:
                x = widen(x) + kept.pop()
        out: Tensor = self.last(x)
        return out


class Recommender(nn.Module):
    """Looks up 26 table entries and mixes them: little arithmetic, much memory traffic."""

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.tables = nn.Embedding(26 * words, width)
        self.words = words
        self.mix = nn.Sequential(
            nn.Linear(26 * width, 1024), nn.ReLU(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, chosen: Tensor) -> Tensor:
        """Return one score."""
        out: Tensor = self.mix(self.tables(chosen).flatten(1))
        return out


def profiled_models() -> Iterable[ProfiledModel]:
    """Yield all of our own models."""
    for width, depth in ((256, 4), (512, 8), (768, 12), (1024, 16), (2048, 12)):
        for tokens in (128, 512):
            yield _tokens("encoder", width, depth, tokens, causal=False)
        for tokens in (256, 1024):
            yield _tokens("decoder", width, depth, tokens, causal=True)
    for width, depth in ((192, 6), (384, 12), (768, 12), (1024, 16)):
        yield _patches("vit", width, depth, mixing=False)
        yield _patches("mixer", width, depth, mixing=True)
    for family, make in (("plain-cnn", plain), ("residual-cnn", residual), ("depthwise-cnn", depthwise)):
        for width, depth in ((16, 1), (32, 2), (64, 2), (96, 3)):
            yield ProfiledModel(
                f"own/{family}-{width}x{depth}", family, "image", 224, partial(make, width, depth), _image(224),
                (1, 8, 32, 128, 256),
            )  # fmt: skip
    for name, cell in (("lstm", nn.LSTM), ("gru", nn.GRU)):
        for width, depth in ((256, 1), (512, 2), (1024, 2), (2048, 3)):
            yield ProfiledModel(
                f"own/{name}-{width}x{depth}", "recurrent", "sequence", 128, partial(Recurrent, width, depth, cell),
                _vectors(128, width), (1, 16, 64, 256),
            )  # fmt: skip
    for width, depth in ((512, 4), (1024, 8), (4096, 4), (8192, 6)):
        yield ProfiledModel(
            f"own/mlp-{width}x{depth}", "mlp", "vector", width, partial(perceptron, width, depth), _vectors(width),
            (1, 64, 1024, 8192),
        )  # fmt: skip
    for width, depth in ((64, 1), (128, 1), (192, 2), (320, 2)):
        yield ProfiledModel(
            f"own/denoiser-{width}x{depth}", "diffusion", "latent", 64, partial(Denoiser, width, depth), _latents,
            (1, 4, 16, 64),
        )  # fmt: skip
    for width, words in ((16, 10_000), (64, 100_000), (128, 200_000)):
        yield ProfiledModel(
            f"own/recommender-{width}x{words}", "recommender", "vector", 26, partial(Recommender, width, words),
            _numbers(26 * words, 26), (64, 1024, 8192, 65536),
        )  # fmt: skip


def _tokens(family: str, width: int, depth: int, tokens: int, *, causal: bool) -> ProfiledModel:
    return ProfiledModel(
        f"own/{family}-{width}x{depth}-{tokens}", family, "tokens", tokens,
        lambda: Tokens(width, depth, causal=causal),
        _numbers(32_000, tokens), (1, 4, 16, 64),
    )  # fmt: skip


def _patches(family: str, width: int, depth: int, *, mixing: bool) -> ProfiledModel:
    return ProfiledModel(
        f"own/{family}-{width}x{depth}", family, "image", 224,
        lambda: Patches(width, depth, mixing=mixing, pixels=224), _image(224), (1, 8, 32, 128),
    )  # fmt: skip


def _numbers(below: int, count: int) -> Callable[[int], tuple[Any, ...]]:
    return lambda batch: (torch.randint(below, (batch, count)),)


def _vectors(*shape: int) -> Callable[[int], tuple[Any, ...]]:
    return lambda batch: (torch.randn(batch, *shape),)


def _latents(batch: int) -> tuple[Any, ...]:
    return torch.randn(batch, 4, 64, 64), torch.randn(batch, 128)


def _image(pixels: int) -> Callable[[int], tuple[Any, ...]]:
    return lambda batch: (torch.randn(batch, 3, pixels, pixels),)
