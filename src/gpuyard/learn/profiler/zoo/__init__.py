"""The models that can be measured: our own small ones, and those of torchvision and transformers if installed.

A `ProfiledModel` builds a model and its inputs; weights are random, because they do not affect the time of a step.
Names are stable, because they are the key of a row: `own/decoder-768x12`, `torchvision/resnet50`,
`transformers/bert-base`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any


@dataclass(frozen=True, slots=True)
class ProfiledModel:
    """A model that can be measured."""

    name: str
    family: str
    """Models of one family are built of the same blocks; predictions for new families are evaluated separately."""
    kind: str
    """Kind of input: image, tokens, vector, sequence or latent."""
    size: int
    """Size of the input: pixels per side, tokens, features."""
    build: Callable[[], Any]
    """Returns the module, on torch's default device."""
    inputs: Callable[[int], tuple[Any, ...]]
    """Returns the arguments of `forward` for a batch of this size, on torch's default device."""
    batches: tuple[int, ...] = (1, 8, 32, 128)


def profiled_models() -> dict[str, ProfiledModel]:
    """Return all models that can be measured here, by name."""
    from gpuyard.learn.profiler.zoo import own

    found = list(own.profiled_models())
    if find_spec("torchvision"):
        from gpuyard.learn.profiler.zoo import vision

        found += vision.profiled_models()
    if find_spec("transformers"):
        from gpuyard.learn.profiler.zoo import language

        found += language.profiled_models()
    return {subject.name: subject for subject in found}
