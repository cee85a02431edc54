"""A language model of the usual shape, to be partitioned over GPUs.

gpuyard partition examples/models/gpt.py medium --input 32x1024:int64 --gpus 8 --gpu H100
"""

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.question_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, words, width = x.shape
        parts = self.question_key_value(self.before(x)).view(batch, words, 3, self.heads, width // self.heads)
        question, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(question, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, words, width))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class LanguageModel(nn.Module):
    def __init__(self, layers=12, width=768, heads=12, vocabulary=50304, longest=1024):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def medium():
    return LanguageModel(layers=24, width=1024, heads=16)


def large():
    return LanguageModel(layers=48, width=6144, heads=48)
