"""What the steps of models are made of: groups of operations, each with its arithmetic and its memory traffic.

A GPU has two speeds, one for arithmetic and one for memory, and every operation waits for the slower of the two. Which
that is differs within a model: the sum over operations of the slower one says far more than the totals do, and it has to
be done for each GPU anew. So we keep the operations, those alike together, for one sample; a batch has so many times the
arithmetic and traffic, and its parameters once.

`data/anatomy.csv.gz` has the anatomy of models that profiles speak of by name alone. It was counted on torch's `meta`
device by `benchmarks/anatomy.py`: nothing in it was measured.
"""

import csv
import gzip
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import frexp
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuyard.learn.performance.arrays import Floats, Words

KINDS = ("matmul", "convolution", "grouped", "attention", "norm", "light")
MADE_OF = ("operations", *(f"of_{kind}" for kind in KINDS))
"""What is known of the memory a step needs besides its tensors."""
KEPT, LARGEST = 0.35, 1.5
"""Medians over the models of our zoo, which were counted both ways: what is kept over what inference moves (a quarter of
them below 0.31, a quarter above 0.38), and the largest operation over the largest mean of a group."""
SHIPPED = Path(__file__).parent / "data" / "anatomy.csv.gz"


class CountedStep(Protocol):
    """A step, or a part of one, as it was counted with one batch."""

    @property
    def operations(self) -> Sequence[tuple[str, int, float, float]]:
        """Each in its turn: kind, kernels, FLOPs, bytes."""

    @property
    def activation_bytes(self) -> float:
        """What the backward pass needs."""

    @property
    def largest_bytes(self) -> float:
        """Of the largest operation."""

    @property
    def parameter_bytes(self) -> float:
        """Whatever the batch."""


@dataclass(frozen=True, slots=True)
class OperationProfile:
    """Of one step of one model with one sample, in fp32. Each line: kind (a place in KINDS), kernels, FLOPs, bytes, bytes of parameters."""

    groups: Floats
    kept_bytes: float = 0.0
    """What a backward pass needs to be kept of the forward one."""
    largest_bytes: float = 0.0
    """What goes into and comes out of the largest operation; parameters not counted."""
    parameter_bytes: float = 0.0

    @staticmethod
    def of(
        groups: Iterable[Sequence[Any]], kept: float = 0.0, largest: float = 0.0, parameters: float = 0.0
    ) -> "OperationProfile":
        """From lines that name their kind."""
        lines = np.array([(KINDS.index(kind), *numbers) for kind, *numbers in groups], dtype=np.float64)
        return OperationProfile(lines.reshape(-1, 5), kept, largest, parameters)

    @staticmethod
    def totals(
        batch: float,
        flops: float,
        moved: float,
        heavy: float,
        kernels: float,
        heavy_kernels: float,
        parameters: float,
        kept: float,
        largest: float,
    ) -> "OperationProfile":
        """When a step of a whole batch was counted, and only its sums are known."""
        groups = [
            ("matmul", heavy_kernels, flops / batch, max(heavy - parameters, 0.1 * heavy) / batch, parameters),
            ("light", kernels - heavy_kernels, 0.0, max(moved - heavy, 1.0) / batch, 0.0),
        ]
        return OperationProfile.of(groups, kept / batch, largest / batch, parameters)

    @staticmethod
    def guessed(flops: float, activations: float, parameters: float) -> "OperationProfile":
        """When only totals are known: one layer of each sort, with the traffic such models have on average."""
        return OperationProfile.of(
            [
                ("convolution", 60, flops, 8.0 * activations, 4.0 * parameters),
                ("norm", 60, 0.0, 8.0 * activations, 0.0),
                ("light", 80, 0.0, 10.0 * activations, 0.0),
            ],
            parameters=4.0 * parameters,
        )

    @staticmethod
    def counted(few: CountedStep, many: CountedStep, few_batch: int, many_batch: int) -> "OperationProfile":
        """From the same step counted with two batches: what grows belongs to a sample, what stays to the model.

        The operations come in the same order both times. Those alike, within a factor of two in what they do for a byte
        and in how much of that stays, are put together: a GPU is equally good at them.
        """
        more = many_batch - few_batch
        groups: dict[tuple[str, int, int], Floats] = {}
        largest = 0.0
        for (kind, kernels, flops, moved), (_, _, flops_of_many, moved_of_many) in zip(
            few.operations, many.operations, strict=True
        ):
            each = (moved_of_many - moved) / more
            fixed = max(moved - few_batch * each, 0.0)
            largest = max(largest, each)
            line = np.array([kernels, (flops_of_many - flops) / more, each, fixed])
            key = (kind, frexp(line[1] / max(each, 1.0))[1], frexp(fixed / max(each, 1.0))[1])
            groups[key] = groups.get(key, np.zeros(4)) + line
        lines = [(kind, *line.tolist()) for (kind, _, _), line in sorted(groups.items())]
        kept = (many.activation_bytes - few.activation_bytes) / more
        return OperationProfile.of(lines, kept, largest, few.parameter_bytes)

    @staticmethod
    def joined(parts: Sequence["OperationProfile"]) -> "OperationProfile":
        """Of a step that is made of these, one after the other."""
        return OperationProfile(
            np.concatenate([part.groups for part in parts]),
            sum(part.kept_bytes for part in parts),
            max(part.largest_bytes for part in parts),
            sum(part.parameter_bytes for part in parts),
        )

    def step(self, batch: int) -> dict[str, float]:
        """The sums of a step of so many samples, by the names that columns of profiles have (`totals` reads them)."""
        each, heavy = self.groups, self.groups[:, 0] < KINDS.index("norm")
        moved = each[:, 3] * batch + each[:, 4]
        return {
            "flops": float(each[:, 2].sum()) * batch,
            "bytes": float(moved.sum()),
            "heavy_bytes": float(moved[heavy].sum()),
            "kernels": float(each[:, 1].sum()),
            "heavy_kernels": float(each[heavy, 1].sum()),
            "parameter_bytes": self.parameter_bytes,
            "activation_bytes": self.kept_bytes * batch,
            "largest_bytes": self.largest_bytes * batch,
        }

    def times(self, factor: float) -> "OperationProfile":
        """As much of everything, so often: a step of training is about three of inference."""
        groups = self.groups * np.array([1.0, factor, factor, factor, factor])
        return replace(self, groups=groups)

    def in_training(self, times: float) -> "OperationProfile":
        """A guess at a step of training, when only inference was counted: a third of the traffic is kept for the way back."""
        return replace(self.times(times), kept_bytes=KEPT * float(self.groups[:, 3].sum()))

    def with_largest(self) -> "OperationProfile":
        """A guess at its largest operation, where it was not counted."""
        each = self.groups[:, 3] / np.maximum(self.groups[:, 1], 1.0)
        return self if self.largest_bytes else replace(self, largest_bytes=LARGEST * float(each.max(initial=0.0)))


@dataclass(frozen=True, slots=True)
class OperationProfiles:
    """The anatomies of many rows, without a copy for each."""

    profiles: tuple[OperationProfile, ...]
    index: NDArray[np.intp]
    """Which of them each row has."""

    @staticmethod
    def of(profiles: Sequence[OperationProfile]) -> "OperationProfiles":
        """One for each row; the same ones are kept once."""
        places: dict[int, int] = {}
        different: list[OperationProfile] = []
        for profile in profiles:
            if id(profile) not in places:
                places[id(profile)] = len(different)
                different.append(profile)
        return OperationProfiles(tuple(different), np.array([places[id(a)] for a in profiles], dtype=np.intp))

    @staticmethod
    def joined(parts: Sequence["OperationProfiles"]) -> "OperationProfiles":
        """One after the other."""
        starts = np.cumsum([0, *(len(part.profiles) for part in parts)])
        return OperationProfiles(
            tuple(a for part in parts for a in part.profiles),
            np.concatenate([part.index + start for part, start in zip(parts, starts, strict=False)]),
        )

    def take(self, which: NDArray[Any]) -> "OperationProfiles":
        """Of these rows."""
        return OperationProfiles(self.profiles, self.index[which])

    def flat(self) -> tuple[Floats, NDArray[np.intp]]:
        """All groups of all rows beside each other, in the order of the rows, and the row each belongs to."""
        used, index = np.unique(self.index, return_inverse=True)
        tables = [self.profiles[place].groups for place in used.tolist()]
        lengths = np.array([len(groups) for groups in tables], dtype=np.intp)
        starts = np.cumsum(lengths) - lengths
        count = lengths[index]
        row = np.repeat(np.arange(len(self.index)), count)
        within = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        return np.concatenate(tables).T.copy()[:, np.repeat(starts[index], count) + within], row


Library = Mapping[tuple[str, str], Mapping[int, OperationProfile]]
"""By name of the model and mode, then by size of its input."""


@cache
def shipped() -> Library:
    """The anatomies that ship with gpuyard."""
    return read(SHIPPED)


def read(path: Path) -> Library:
    """Read what `benchmarks/anatomy.py` has written: a line for each group of operations."""
    found: dict[tuple[str, str, int], list[tuple[Any, ...]]] = {}
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for model, mode, said, kind, *numbers in list(csv.reader(file))[1:]:
            found.setdefault((model, mode, int(said)), []).append((kind, *map(float, numbers)))
    library: dict[tuple[str, str], dict[int, OperationProfile]] = {}
    for (model, mode, size), lines in found.items():
        groups = [line for line in lines if line[0] in KINDS]
        sums = {line[0]: line[3] for line in lines if line[0] not in KINDS}
        library.setdefault((model, mode), {})[size] = OperationProfile.of(groups, **sums)
    return library


def find_profile(library: Library, model: str, mode: str, size: int) -> OperationProfile | None:
    """The anatomy of a model at this size of input; of another size, if that is all there is, by the number of pixels."""
    sizes = library.get((model, mode))
    if sizes is None:
        return None
    if size in sizes:
        return sizes[size]
    near = min(sizes, key=lambda known: abs(known - size))
    scaled = sizes[near].groups.copy()
    scaled[:, 2:4] *= (size / near) ** 2
    return replace(sizes[near], groups=scaled)


def memory_shape(works: Sequence[OperationProfile], batch: Floats, numbers: Words, mode: Words) -> dict[str, Floats]:
    """What must be there at once, in MiB: what is kept for the backward pass, what passes through, parameters. And what needs
    room besides: how many operations there are, and which part of the traffic is of which kind.
    """
    different = {id(work): work for work in works}
    made = {name: operation_mix(work) for name, work in different.items()}
    parts = np.array([made[id(work)] for work in works]).reshape(-1, 1 + len(KINDS)).T
    narrow = np.where(np.isin(numbers, ("bf16", "amp")), 0.5, 1.0)
    kept = np.where(mode == "train", [work.kept_bytes for work in works], 0.0)
    passing = np.array([work.largest_bytes for work in works])
    return {
        "batch": batch,
        "activations": (kept + passing) * batch * narrow / 2**20,
        "parameters": np.array([w.parameter_bytes for w in works]) * np.where(numbers == "bf16", 0.5, 1.0) / 2**20,
        "input": passing * batch * narrow / 2**20,
        **dict(zip(MADE_OF, parts, strict=True)),
    }


def operation_mix(work: OperationProfile) -> Floats:
    """How many operations, and the part of the traffic that each kind has: in the order of `MADE_OF`."""
    kind, kernels, _, moved, _ = work.groups.T
    shares = np.bincount(kind.astype(np.intp), moved, len(KINDS)) / max(float(moved.sum()), 1.0)
    return np.array([float(kernels.sum()), *shares])
