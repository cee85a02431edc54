"""Models counted on the meta device: the counts match the arithmetic, and errors are one sentence."""

import sys
from pathlib import Path

import msgspec
import pytest
import torch

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance.flops import count as predictor_count
from gpuyard.learn.performance.partition import count_model as counting
from gpuyard.learn.performance.partition.counting import counted, read_input
from gpuyard.learn.performance.partition.counts import Counts

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

class BothWays(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 16, batch_first=True, bidirectional=True), nn.Linear(32, 4, bias=False)
    def forward(self, x):
        return self.head(self.lstm(x)[0])

class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.only = nn.Linear(9, 9)
    def forward(self, x):
        return self.only(x.view(2, 9))

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
        return msgspec.convert(counting.count(asked)["few"], Counts)


def flops(made: Counts, kind: str = "matmul") -> list[float]:
    """Of each unit, on both ways."""
    return [sum(work for known, _, work, _ in unit.operations if known == kind) for unit in made.units]


@pytest.mark.slow
def test_arithmetic_of_both_passes_parameters_and_traffic_across_a_cut_are_counted(count: Count) -> None:
    made = count("Chain", "10x8")
    assert [unit.block for unit in made.units] == ["first", "middle.0", "middle.1", "Chain", "last"]
    forward = [2 * 10 * 8 * 16, 2 * 10 * 16 * 16, 0, 0, 2 * 10 * 16 * 4]
    assert flops(made) == [2 * forward[0], *(3 * work for work in forward[1:])]  # the input needs no gradient
    assert flops(count("Chain", "10x8", training=False)) == forward
    assert [unit.parameter_bytes for unit in made.units] == [4 * 8 * 16, 4 * 16 * 16, 0, 0, 4 * 16 * 4]
    wide = 4 * 10 * 16
    crossing = [unit.crossing_bytes for unit in made.units]
    assert crossing == [4 * 10 * 8, wide, 2 * wide, 2 * wide, wide]  # the way around crosses, too
    assert sum(unit.activation_bytes for unit in made.units) > 0
    assert sum(unit.activation_bytes for unit in count("Chain", "10x8", training=False).units) == 0


def test_units_add_up_to_what_the_predictor_counts_for_the_whole_model(count: Count) -> None:
    made = count("Chain", "10x8")
    whole = predictor_count(sys.modules["models"].Chain, lambda: (torch.zeros(10, 8),), training=True)
    assert sorted(one for unit in made.units for one in unit.operations) == sorted(whole.operations)
    assert sum(unit.activation_bytes for unit in made.units) == whole.activation_bytes


def test_attention_is_one_operation_whose_scores_never_reach_memory(count: Count) -> None:
    (unit,) = count("Attention", "2x4x128x16", training=False).units
    assert unit.operations == (("attention", 1, 4 * 2 * 4 * 128 * 128 * 16, 4 * 4 * 2 * 4 * 128 * 16),)


def test_a_recurrent_layer_is_one_operation_even_if_bidirectional(count: Count) -> None:
    work = 2 * 3 * 7 * (4 * 16 * 8 + 4 * 16 * 16)
    assert flops(count("Recurrent", "3x7x8", training=False)) == [work]
    both = count("BothWays", "3x7x8", training=False)
    assert sum(flops(both)) == 2 * work + 2 * 3 * 7 * 32 * 4


def test_layers_of_a_list_are_the_blocks_and_shared_parameters_count_once(count: Count) -> None:
    made = count("Tied", "2x5:int64")
    assert [unit.block for unit in made.units] == ["words", "layers.0", "layers.1", "layers.2", "head"]
    assert made.shared == (("words", "head"),)
    assert sum(unit.parameter_bytes for unit in made.units) == 4 * (100 * 16 + 3 * (16 * 16 + 16))


def test_an_embedding_moves_the_requested_rows_and_not_its_table(count: Count) -> None:
    words = count("Tied", "2x5:int64", training=False).units[0]
    assert words.operations == (("light", 1, 0.0, 2 * 4 * 2 * 5 * 16),)


@pytest.mark.parametrize(
    ("name", "inputs", "module", "sentence"),
    [
        ("Needy", ("2x2",), "models", "Needy cannot be created without arguments: TypeError"),
        ("Chain", ("2x9",), "models", "Chain cannot run with inputs 2x9: RuntimeError"),
        ("Looks", ("2x9",), "models", "Looks cannot run with inputs 2x9: "),
        ("Fixed", ("2x9",), "models", "Fixed cannot run with a batch twice as large as in 2x9: RuntimeError"),
        ("Idle", ("2x9",), "models", "its outputs have no gradient"),
        ("nothing", ("2x9",), "models", "nothing returns a int, not a torch.nn.Module"),
        ("Chian", ("2x8",), "models", "models has no Chian; did you mean Chain?"),
        ("Chain", ("2x8",), "nowhere", "nowhere cannot be imported: module 'nowhere' does not exist"),
    ],
)
def test_a_model_that_cannot_be_counted_is_reported_in_one_sentence(
    count: Count, name: str, inputs: tuple[str, ...], module: str, sentence: str
) -> None:
    with pytest.raises(counting.CountError) as refused:
        count(name, *inputs, module=module)
    assert sentence in str(refused.value)


def test_an_empty_model_is_refused(count: Count) -> None:
    with pytest.raises(counting.CountError, match=r"Idle does nothing with its inputs\."):
        count("Idle", "2x9", training=False)


@pytest.mark.slow
def test_counting_runs_in_its_own_process_and_may_print(models: Path) -> None:
    made = counted(models, "models:Chain", ["10x8"], training=True, python=sys.executable, limit_seconds=120)
    assert (made.name, made.batch) == ("Chain", 10)
    each = sum(float(part.profile.groups[:, 2].sum()) for part in made.parts)
    assert each == 2 * 16 * (2 * 8 + 3 * 16 + 3 * 4)


@pytest.mark.slow
def test_a_model_that_takes_too_long_or_crashes_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "slow.py"
    path.write_text("import os\nif os.environ.get('DIE'): os._exit(3)\nimport time\ntime.sleep(60)\n")
    with pytest.raises(WrongInput, match=r"Counting Slow took longer than 1 s; allow more with --limit\."):
        counted(path, "Slow", ["1"], training=True, python=sys.executable, limit_seconds=1)
    path.write_text("import os\nos._exit(3)\n")
    with pytest.raises(WrongInput, match=r"Slow could not be counted: it ended with code 3\."):
        counted(path, "Slow", ["1"], training=True, python=sys.executable, limit_seconds=120)


@pytest.mark.parametrize("text", ["", "3x", "axb", "0x3", "3x3:complex", "3 x 3"])
def test_an_invalid_input_is_refused(text: str) -> None:
    with pytest.raises(WrongInput, match="is not a"):
        read_input(text)
