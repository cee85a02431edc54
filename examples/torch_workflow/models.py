"""Three small models with random weights, on the CPU or on the GPU that the worker sees: embed → rank → generate."""

import os
import sys
import time
import zlib

import torch
from torch import nn

SIZE, WORDS, TEXTS = 64, 512, 32
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_num_threads(1)


def _tokens(text: str, length: int = 16) -> torch.Tensor:
    """A text as numbers of words; the same on every machine."""
    numbers = [zlib.crc32(word.encode()) % WORDS for word in text.split()][:length]
    return torch.tensor([numbers + [0] * (length - len(numbers))], device=DEVICE)


class _Loaded:
    """Weights from a seed; loading takes a moment longer than such small ones would."""

    def __init__(self, seed: int, load_s: float = 0.3) -> None:
        torch.manual_seed(seed)
        time.sleep(load_s)
        print(f"worker {os.getpid()} loaded {type(self).__name__}", file=sys.stderr)


class Embedder(_Loaded):
    """A text becomes a vector."""

    def __init__(self, **options: float) -> None:
        super().__init__(seed=1, **options)
        self.words = nn.Embedding(WORDS, SIZE).to(DEVICE)
        layer = nn.TransformerEncoderLayer(SIZE, nhead=4, dim_feedforward=128, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False).to(DEVICE).eval()

    @torch.no_grad()
    def __call__(self, question) -> torch.Tensor:
        """For the request's own text."""
        return self.layers(self.words(_tokens(question.input))).mean(dim=1).cpu()


class Ranker(_Loaded):
    """A vector becomes the numbers of the three texts that go with it best."""

    def __init__(self, **options: float) -> None:
        super().__init__(seed=2, **options)
        self.texts = torch.randn(TEXTS, SIZE, device=DEVICE)
        self.score = nn.Bilinear(SIZE, SIZE, 1).to(DEVICE).eval()

    @torch.no_grad()
    def __call__(self, question) -> list[int]:
        """For what `embed` returned."""
        vector = question.results["embed"].to(DEVICE).expand(TEXTS, SIZE)
        return self.score(vector.contiguous(), self.texts).squeeze(1).topk(3).indices.tolist()


class Generator(_Loaded):
    """The chosen texts become words, one after another."""

    def __init__(self, **options: float) -> None:
        super().__init__(seed=3, **options)
        self.words = nn.Embedding(WORDS, SIZE).to(DEVICE)
        self.memory = nn.GRU(SIZE, SIZE, batch_first=True).to(DEVICE).eval()
        self.next = nn.Linear(SIZE, WORDS).to(DEVICE).eval()

    @torch.no_grad()
    def __call__(self, question) -> dict[str, object]:
        """For what `rank` returned."""
        words = [number + 1 for number in question.results["rank"]]
        state = None
        for _ in range(24):
            out, state = self.memory(self.words(torch.tensor([[words[-1]]], device=DEVICE)), state)
            words.append(int(self.next(out[0, -1]).argmax()))
        return {"texts": question.results["rank"], "words": words}
