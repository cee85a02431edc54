"""Models counted on the meta device: what is counted is what the arithmetic says, and what goes wrong gets a sentence."""

import sys
from pathlib import Path

import pytest

from gpuyard.analysis.splitting import count as counting
from gpuyard.analysis.splitting.asking import counted, read_input
from gpuyard.analysis.splitting.counts import Counts, units
from gpuyard.domain.errors import WrongInput

MODELS = '''
import torch
from torch import nn
from torch.nn import functional as F

print("models may print")

class Chain(nn.Module):
    """8 → 16 → 16 → 4, with a way around the middle."""
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16, bias=False)
        self.middle = nn.Sequential(nn.Linear(16, 16, bias=False), nn.ReLU())
        self.last = nn.Linear(16, 4, bias=False)
    def forward(self, x):
        y = self.first(x)
        return self.last(self.middle(y) + y)

class Attention(nn.Module):
    def forward(self, q):
        return F.scaled_dot_product_attention(q, q, q)

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(100, 16)
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(3)])
        self.head = nn.Linear(16, 100, bias=False)
        self.head.weight = self.words.weight
    def forward(self, x):
        x = self.words(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 16, batch_first=True)
    def forward(self, x):
        return self.lstm(x)[0]

class Needy(nn.Module):
    def __init__(self, width):
        super().__init__()

class Looks(nn.Module):
    def forward(self, x):
        return x if x.sum().item() > 0 else -x

class Idle(nn.Module):
    def forward(self, x):
        return x

def nothing():
    return 3
'''


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return path


@pytest.fixture
def count(models: Path, monkeypatch: pytest.MonkeyPatch) -> "Count":
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.setattr("sys.argv", list(sys.argv))
    monkeypatch.delitem(sys.modules, "models", raising=False)
    return Count(models.parent)


class Count:
    """Counts here, without another process."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)

    def __call__(self, name: str, *inputs: str, training: bool = True, module: str = "models") -> Counts:
        asked = {
            "folder": self._folder, "module": module, "name": name, "inputs": [read_input(text) for text in inputs],
            "spoken": " ".join(inputs), "training": training,
        }  # fmt: skip
        return Counts(**counting.count(asked))


def test_arithmetic_bytes_and_what_crosses_a_cut_are_counted(count: Count) -> None:
    made = count("Chain", "10x8")
    assert made.blocks == ["first", "middle.0", "middle.1", "Chain", "last"]
    assert made.flops == [2 * 10 * 8 * 16, 2 * 10 * 16 * 16, 0, 0, 2 * 10 * 16 * 4]
    assert made.parameter_bytes == [4 * 8 * 16, 4 * 16 * 16, 0, 0, 4 * 16 * 4]
    assert made.owned_bytes == made.parameter_bytes
    wide = 4 * 10 * 16
    assert made.crossing_bytes == [4 * 10 * 8, wide, 2 * wide, 2 * wide, wide]  # the way around crosses, too
    assert made.batch == 10
    assert [unit.block for unit in units(made)] == made.blocks
    assert sum(made.kept_bytes) > 0
    assert sum(count("Chain", "10x8", training=False).kept_bytes) == 0


def test_attention_is_one_operation_whose_scores_never_reach_memory(count: Count) -> None:
    made = count("Attention", "2x4x128x16")
    assert made.flops == [4 * 2 * 4 * 128 * 128 * 16]
    assert made.activation_bytes == [4 * 4 * 2 * 4 * 128 * 16]


def test_a_recurrent_layer_is_one_operation(count: Count) -> None:
    made = count("Recurrent", "3x7x8")
    assert max(made.flops) == 2 * 3 * 7 * (4 * 16 * 8 + 4 * 16 * 16)
    assert len([work for work in made.flops if work]) == 1


def test_layers_of_a_list_are_the_blocks_and_shared_parameters_count_once(count: Count) -> None:
    made = count("Tied", "2x5:int64")
    assert [unit.block for unit in units(made)] == ["words", "layers.0", "layers.1", "layers.2", "head"]
    assert made.shared == [("words", "head")]
    assert sum(made.owned_bytes) == 4 * (100 * 16 + 3 * (16 * 16 + 16))


@pytest.mark.parametrize(
    ("name", "inputs", "module", "sentence"),
    [
        ("Needy", ("2x2",), "models", "Needy can not be made without arguments: TypeError"),
        ("Chain", ("2x9",), "models", "Chain can not run with inputs 2x9: RuntimeError"),
        ("Looks", ("2x9",), "models", "Looks can not run with inputs 2x9: "),
        ("Idle", ("2x9",), "models", "Idle does nothing with its inputs."),
        ("nothing", ("2x9",), "models", "nothing gives a int, not a torch.nn.Module"),
        ("Chian", ("2x8",), "models", "there is no Chian in models; did you mean Chain?"),
        ("Chain", ("2x8",), "nowhere", "nowhere can not be imported: there is no module 'nowhere'"),
    ],
)
def test_a_model_that_can_not_be_counted_gets_a_sentence(
    count: Count, name: str, inputs: tuple[str, ...], module: str, sentence: str
) -> None:
    with pytest.raises(counting.Refused) as refused:
        count(name, *inputs, module=module)
    assert sentence in str(refused.value)


def test_a_process_of_its_own_counts_and_may_print(models: Path) -> None:
    made = counted(models, "models:Chain", ["10x8"], training=True, python=sys.executable, limit_seconds=120)
    assert sum(made.flops) == 2 * 10 * 16 * (8 + 16 + 4)


def test_a_model_that_takes_too_long_or_dies_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "slow.py"
    path.write_text("import os\nif os.environ.get('DIE'): os._exit(3)\nimport time\ntime.sleep(60)\n")
    with pytest.raises(WrongInput, match=r"Slow was not counted within 1 s; allow more with --limit\."):
        counted(path, "Slow", ["1"], training=True, python=sys.executable, limit_seconds=1)
    path.write_text("import os\nos._exit(3)\n")
    with pytest.raises(WrongInput, match=r"Slow could not be counted: it ended with code 3\."):
        counted(path, "Slow", ["1"], training=True, python=sys.executable, limit_seconds=120)


@pytest.mark.parametrize("text", ["", "3x", "axb", "0x3", "3x3:complex", "3 x 3"])
def test_an_input_that_can_not_be_meant_is_refused(text: str) -> None:
    with pytest.raises(WrongInput, match="is not a"):
        read_input(text)
