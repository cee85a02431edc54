"""What can be measured: our own small models always, those of torchvision and transformers where they are installed.

A `ProfiledModel` builds a model and its inputs; weights are random, since what they are does not change how long a step
takes. Names are stable, they are the key of a row: `own/decoder-768x12`, `torchvision/resnet50`, `transformers/bert-base`.
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
    """Models of one family are built of the same blocks; predictions for a family never seen are judged apart."""
    kind: str
    """What goes in: image, tokens, vector, sequence or latent."""
    size: int
    """Of the input: pixels a side, tokens, features."""
    build: Callable[[], Any]
    """The module, on torch's default device."""
    inputs: Callable[[int], tuple[Any, ...]]
    """Arguments of `forward` for a batch of this size, on torch's default device."""
    batches: tuple[int, ...] = (1, 8, 32, 128)


def subjects() -> dict[str, ProfiledModel]:
    """Everything that can be measured here, by name."""
    from gpuyard.learn.profiler.zoo import own

    found = list(own.subjects())
    if find_spec("torchvision"):
        from gpuyard.learn.profiler.zoo import vision

        found += vision.subjects()
    if find_spec("transformers"):
        from gpuyard.learn.profiler.zoo import language

        found += language.subjects()
    return {subject.name: subject for subject in found}
