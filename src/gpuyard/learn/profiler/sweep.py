"""Selects the configurations of a model to measure: all combinations, or a fixed pseudo-random share of them."""

from collections.abc import Iterable
from hashlib import blake2b

from gpuyard.learn.profiler.rows import Configuration
from gpuyard.learn.profiler.zoo import ProfiledModel

MODES = ("train", "infer")
PRECISIONS = ("fp32", "tf32", "bf16", "amp")


def configurations(
    subject: ProfiledModel,
    modes: Iterable[str] = MODES,
    precisions: Iterable[str] = PRECISIONS,
    batches: Iterable[int] | None = None,
    part: float = 1.0,
    *,
    compiled: bool = False,
    clocks: Iterable[int | None] = (None,),
) -> list[Configuration]:
    """Return configurations ordered so that the number type changes once and the largest batch comes last.

    Each is measured at all `clocks` (MHz; None: the GPU's own clock), one after another.
    """
    modes, batches, clocks = tuple(modes), tuple(batches or subject.batches), tuple(clocks)
    every = [
        Configuration(subject.name, mode, batch, precision, compiled, clock)
        for precision in sorted(precisions, key=lambda p: p == "bf16")
        for mode in modes
        for batch in sorted(batches)
        for clock in clocks
    ]
    return [one for one in every if _lot(one) < part]


def _lot(one: Configuration) -> float:
    """Return a hash of the configuration, uniform in 0 to 1."""
    name = f"{one.model} {one.mode} {one.batch} {one.precision}".encode()
    return int.from_bytes(blake2b(name, digest_size=4).digest()) / 2**32
