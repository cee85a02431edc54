"""Inference of a trained policy in numpy, with a guard: by how much is another decision better than the rule's?

A model is a few small networks that were trained separately (gpuyard.learn.training). Each gives every candidate of a
question a number: its correction of a hand-written rule, which is one of the figures of a candidate (wait if that saves
three tenths of the run). The *advantage* of a candidate over the rule's choice is the share of the first task's run that
is saved, for all tasks together, by that decision instead of the rule's.

The guard keeps the rule's choice unless the advantage is significant:
- for features outside the range of training the networks are not used; for features that are not numbers the first
  candidate is taken;
- the lower bound of the advantage, the mean of the networks less `doubt` times their spread, must be above `margin`.
  Both are chosen when the model is made, on workloads that the networks have not seen, so that no kind of cluster gets
  worse than under the rule.

The file is a numpy `npz` and contains everything that is needed to use it.
"""

from collections.abc import Sequence
from io import BytesIO
from json import JSONDecodeError, dumps, loads
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.files import read_file

VERSION = 1
KIND = "gpuyard policy"
DEFAULT = Path(__file__).parent / "data" / "policy.npz"
"""The model that ships; docs/manual/learning.md has its model card."""
SLACK = 0.05
"""How far a feature may be outside the trained range, as a fraction of the range."""

PARTS = ("low", "high", "mean", "scale", "rule")
Array = npt.NDArray[np.float32]


class WrongPolicyModel(WrongInput):
    """A file cannot be used as the model of a policy."""


class Layer(NamedTuple):
    """One layer of a network: weights and bias."""

    weights: Array
    bias: Array


class PolicyModel(NamedTuple):
    """The content of the file."""

    features: tuple[str, ...]
    low: Array
    high: Array
    """The range of each feature in training."""
    mean: Array
    scale: Array
    """Features are normalized: minus the mean, divided by the scale."""
    rule: Array
    """Linear weights of the rule that the networks correct."""
    nets: tuple[tuple[Layer, ...], ...]
    margin: float
    doubt: float
    about: dict[str, Any]
    """What it was trained on and how well it did, for display."""


class AdvantageAdvisor:
    """An advisor with a trained model; implements `gpuyard.core.engine.scheduling.advice.Advisor`."""

    def __init__(self, model: PolicyModel, *, guarded: bool = True) -> None:
        self._model = model
        self._guarded = guarded
        slack = SLACK * (model.high - model.low) + 1e-6
        self._low, self._high = model.low - slack, model.high + slack
        depth = len(model.nets[0])
        self._weights = [np.stack([net[layer].weights for net in model.nets]) for layer in range(depth)]
        self._biases = [np.stack([net[layer].bias for net in model.nets])[:, None, :] for layer in range(depth)]

    def pick(self, rows: Sequence[Sequence[float]]) -> int:
        """Return the index of a candidate: the rule's choice unless another is significantly better."""
        seen = np.asarray(rows, np.float32)
        if not np.isfinite(seen).all():
            return 0
        if not self._guarded:
            return int(self.advantages(seen).mean(axis=0).argmax())
        usual = int((seen @ self._model.rule).argmax())
        if not bool(((seen >= self._low) & (seen <= self._high)).all()):
            return usual
        worth = self._lower_bound(self.advantages(seen), usual) - self._model.margin
        worth[usual] = 0.0
        best = int(worth.argmax())
        return best if worth[best] > 0.0 else usual

    def _lower_bound(self, advantages: Array, usual: int) -> Array:
        """Return the lower bound of each candidate's advantage over the usual one."""
        over = advantages - advantages[:, usual : usual + 1]
        mean: Array = over.mean(axis=0)
        if not self._model.doubt:
            return mean
        spread: Array = over.std(axis=0)
        return mean - self._model.doubt * spread

    def advantages(self, rows: Array) -> Array:
        """Return the advantage over the first candidate for every network and candidate."""
        last = len(self._weights) - 1
        values = ((rows - self._model.mean) / self._model.scale)[None]
        for layer, (weights, bias) in enumerate(zip(self._weights, self._biases, strict=True)):
            values = values @ weights + bias
            if layer < last:
                values = np.maximum(values, 0.0)
        worth: Array = values[:, :, 0] + rows @ self._model.rule
        return worth - worth[:, :1]


def save(path: Path, model: PolicyModel) -> None:
    """Write a file that can be loaded again; the same model gives the same bytes."""
    head = {
        "kind": KIND,
        "version": VERSION,
        "features": list(model.features),
        "margin": model.margin,
        "doubt": model.doubt,
        "nets": len(model.nets),
        "layers": len(model.nets[0]),
        "about": model.about,
    }
    arrays: dict[str, npt.NDArray[Any]] = {
        "head": np.frombuffer(dumps(head).encode(), np.uint8),
        **{name: getattr(model, name) for name in PARTS},
    }
    for number, net in enumerate(model.nets):
        for place, layer in enumerate(net):
            arrays[f"net{number}.{place}.weights"] = layer.weights
            arrays[f"net{number}.{place}.bias"] = layer.bias
    packed = BytesIO()
    np.savez(packed, **arrays)  # type: ignore[arg-type]
    try:
        path.write_bytes(packed.getvalue())
    except OSError as error:
        raise WrongPolicyModel(f"Cannot write {path}: {error.strerror or error}.") from None


def load(path: Path, features: Sequence[str]) -> PolicyModel:
    """Read a model that uses these features."""
    try:
        with np.load(BytesIO(read_file(path)), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except OSError as error:
        raise WrongPolicyModel(f"Cannot read {path}: {error.strerror or error}.") from None
    except (BadZipFile, ValueError, EOFError, AttributeError):
        raise WrongPolicyModel(f"{path}: this is not a policy model, or the file is truncated or damaged.") from None
    head = _head(path, arrays)
    if tuple(head["features"]) != tuple(features):
        different = sorted(set(head["features"]) ^ set(features))
        which = f": {', '.join(different)}" if different else ", in another order"
        raise WrongPolicyModel(f"{path}: the model uses other features than this gpuyard{which}; train it again.")
    return _model(path, head, arrays)


def _head(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    try:
        head: dict[str, Any] = loads(bytes(arrays["head"].astype(np.uint8)))
        kind, version = head["kind"], head["version"]
    except (KeyError, ValueError, TypeError, JSONDecodeError, UnicodeDecodeError):
        raise WrongPolicyModel(f"{path}: this is not a policy model.") from None
    if kind != KIND or version != VERSION:
        raise WrongPolicyModel(
            f"{path}: the model is {kind}, version {version}; this gpuyard reads {KIND}, version "
            f"{VERSION}. Train it again."
        )
    return head


def _model(path: Path, head: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> PolicyModel:
    try:
        nets = tuple(
            tuple(
                Layer(arrays[f"net{number}.{place}.weights"], arrays[f"net{number}.{place}.bias"])
                for place in range(head["layers"])
            )
            for number in range(head["nets"])
        )
        margin, doubt, about = float(head["margin"]), float(head["doubt"]), dict(head["about"])
        low, high, mean, scale, rule = (arrays[name] for name in PARTS)
        model = PolicyModel(tuple(head["features"]), low, high, mean, scale, rule, nets, margin, doubt, about)
    except (KeyError, ValueError, TypeError):
        raise WrongPolicyModel(f"{path}: a part of the model is missing; the file is damaged.") from None
    _check(path, model)
    return model


def _check(path: Path, model: PolicyModel) -> None:
    """Check that shapes match and all numbers are finite."""
    width = len(model.features)
    fits = all(
        each.shape == (width,) for each in (model.low, model.high, model.mean, model.scale, model.rule)
    ) and bool(model.nets)
    for net in model.nets:
        size = width
        for layer in net:
            fits = fits and layer.weights.ndim == 2 and layer.weights.shape[0] == size
            fits = fits and layer.bias.shape == layer.weights.shape[1:]
            size = layer.bias.shape[0] if layer.bias.ndim else 0
        fits = fits and size == 1
    if not fits:
        raise WrongPolicyModel(f"{path}: the parts of the model do not fit together; the file is damaged.")
    numbers = [model.low, model.high, model.mean, model.scale, model.rule, *(part for net in model.nets for layer in net for part in layer)]  # fmt: skip
    sane = all(np.issubdtype(each.dtype, np.floating) and bool(np.isfinite(each).all()) for each in numbers)
    if not (sane and np.isfinite(model.margin) and np.isfinite(model.doubt) and bool((model.scale > 0).all())):
        raise WrongPolicyModel(f"{path}: the model contains numbers that are not finite; train it again.")
