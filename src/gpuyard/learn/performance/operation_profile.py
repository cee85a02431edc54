"""The operations of a model's step, in groups, each with its arithmetic and its memory traffic.

A GPU has two speeds, one for arithmetic and one for memory, and every operation is limited by the slower of the two.
Which one differs within a model: the sum of the slower times over operations is far more accurate than totals, and it
has to be computed for each GPU. So the operations are kept for one sample, similar ones grouped; a batch multiplies
arithmetic and traffic, and has its parameters once.

`data/anatomy.csv.gz` has the profiles of models that measurements refer to by name only. They were counted on torch's
`meta` device by `benchmarks/anatomy.py`: nothing in it was measured.
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

from gpuyard.learn.performance.arrays import FloatArray, TextArray

KINDS = ("matmul", "convolution", "grouped", "attention", "norm", "light")
OPERATION_MIX = ("operations", *(f"of_{kind}" for kind in KINDS))
"""Features of the memory that a step needs besides its tensors."""
KEPT, LARGEST = 0.35, 1.5
"""Medians over the models of our zoo, which were counted both ways: bytes kept over the traffic of inference (a quarter
of them below 0.31, a quarter above 0.38), and the largest operation over the largest mean of a group."""
SHIPPED = Path(__file__).parent / "data" / "anatomy.csv.gz"


class CountedStep(Protocol):
    """A step, or a part of one, as counted with one batch."""

    @property
    def operations(self) -> Sequence[tuple[str, int, float, float]]:
        """In order of execution: kind, kernels, FLOPs, bytes."""

    @property
    def activation_bytes(self) -> float:
        """Bytes kept for the backward pass."""

    @property
    def parameter_bytes(self) -> float:
        """Bytes of the parameters, which do not depend on the batch."""


@dataclass(frozen=True, slots=True)
class OperationProfile:
    """A step of a model with one sample, in fp32. Columns: index in KINDS, kernels, FLOPs, bytes, parameter bytes."""

    groups: FloatArray
    kept_bytes: float = 0.0
    """Bytes of the forward pass that are kept for a backward pass."""
    largest_bytes: float = 0.0
    """Inputs and outputs of the largest operation, without parameters."""
    parameter_bytes: float = 0.0

    @staticmethod
    def of(
        groups: Iterable[Sequence[Any]], kept: float = 0.0, largest: float = 0.0, parameters: float = 0.0
    ) -> "OperationProfile":
        """Create a profile from lines that name their kind."""
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
        """Create a profile from the totals of a step with a whole batch."""
        groups = [
            ("matmul", heavy_kernels, flops / batch, max(heavy - parameters, 0.1 * heavy) / batch, parameters),
            ("light", kernels - heavy_kernels, 0.0, max(moved - heavy, 1.0) / batch, 0.0),
        ]
        return OperationProfile.of(groups, kept / batch, largest / batch, parameters)

    @staticmethod
    def typical(flops: float, activations: float, parameters: float) -> "OperationProfile":
        """Estimate a profile from totals: one layer of each kind, with the average traffic of such models."""
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
        """Create a profile from a step counted with two batches: growth belongs to a sample, the rest to the model.

        The operations come in the same order both times. Similar ones, within a factor of two in FLOPs per byte and in
        the share of constant bytes, are grouped: a GPU is equally good at them.
        """
        more = many_batch - few_batch
        groups: dict[tuple[str, int, int], FloatArray] = {}
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
        """Return the profile of a step that consists of these parts, one after the other."""
        return OperationProfile(
            np.concatenate([part.groups for part in parts]),
            sum(part.kept_bytes for part in parts),
            max(part.largest_bytes for part in parts),
            sum(part.parameter_bytes for part in parts),
        )

    def step(self, batch: int) -> dict[str, float]:
        """Return the totals of a step with this batch, by the column names of profiles (`totals` reads them)."""
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
        """Return the profile with kernels, FLOPs and traffic multiplied: training is about three steps of inference."""
        groups = self.groups * np.array([1.0, factor, factor, factor, factor])
        return replace(self, groups=groups)

    def as_training(self, times: float) -> "OperationProfile":
        """Estimate a training step from inference: a third of the traffic is kept for the backward pass."""
        return replace(self.times(times), kept_bytes=KEPT * float(self.groups[:, 3].sum()))

    def with_largest(self) -> "OperationProfile":
        """Estimate the largest operation if it was not counted."""
        each = self.groups[:, 3] / np.maximum(self.groups[:, 1], 1.0)
        return self if self.largest_bytes else replace(self, largest_bytes=LARGEST * float(each.max(initial=0.0)))


@dataclass(frozen=True, slots=True)
class OperationProfiles:
    """The profiles of many rows, without a copy for each."""

    profiles: tuple[OperationProfile, ...]
    index: NDArray[np.intp]
    """Index of the profile of each row."""

    @staticmethod
    def of(profiles: Sequence[OperationProfile]) -> "OperationProfiles":
        """Create from one profile per row; equal ones are stored once."""
        places: dict[int, int] = {}
        different: list[OperationProfile] = []
        for profile in profiles:
            if id(profile) not in places:
                places[id(profile)] = len(different)
                different.append(profile)
        return OperationProfiles(tuple(different), np.array([places[id(a)] for a in profiles], dtype=np.intp))

    @staticmethod
    def joined(parts: Sequence["OperationProfiles"]) -> "OperationProfiles":
        """Concatenate."""
        starts = np.cumsum([0, *(len(part.profiles) for part in parts)])
        return OperationProfiles(
            tuple(a for part in parts for a in part.profiles),
            np.concatenate([part.index + start for part, start in zip(parts, starts, strict=False)]),
        )

    def take(self, which: NDArray[Any]) -> "OperationProfiles":
        """Return those of some rows."""
        return OperationProfiles(self.profiles, self.index[which])

    def flat(self) -> tuple[FloatArray, NDArray[np.intp]]:
        """Return the groups of all rows in the order of the rows, and the row of each group."""
        used, index = np.unique(self.index, return_inverse=True)
        tables = [self.profiles[place].groups for place in used.tolist()]
        lengths = np.array([len(groups) for groups in tables], dtype=np.intp)
        starts = np.cumsum(lengths) - lengths
        count = lengths[index]
        row = np.repeat(np.arange(len(self.index)), count)
        within = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        return np.concatenate(tables).T.copy()[:, np.repeat(starts[index], count) + within], row


Library = Mapping[tuple[str, str], Mapping[int, OperationProfile]]
"""Profiles by model name and mode, then by input size."""


@cache
def shipped() -> Library:
    """Return the profiles that ship with gpuyard."""
    return read(SHIPPED)


def read(path: Path) -> Library:
    """Read the output of `benchmarks/anatomy.py`: a line for each group of operations."""
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
    """Return the profile of a model at this input size; one of another size is scaled by the number of pixels."""
    sizes = library.get((model, mode))
    if sizes is None:
        return None
    if size in sizes:
        return sizes[size]
    near = min(sizes, key=lambda known: abs(known - size))
    found, times = sizes[near], (size / near) ** 2
    scaled = found.groups.copy()
    scaled[:, 2:4] *= times
    return replace(found, groups=scaled, kept_bytes=times * found.kept_bytes, largest_bytes=times * found.largest_bytes)


def memory_shape(
    works: Sequence[OperationProfile], batch: FloatArray, numbers: TextArray, mode: TextArray
) -> dict[str, FloatArray]:
    """Return what must be in memory at once, in MiB: bytes kept for the backward pass, transient bytes, parameters. And
    what determines the overhead: the number of operations, and the share of each kind in the traffic.
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
        **dict(zip(OPERATION_MIX, parts, strict=True)),
    }


def operation_mix(work: OperationProfile) -> FloatArray:
    """Return the number of operations and the share of each kind in the traffic, in the order of `OPERATION_MIX`."""
    kind, kernels, _, moved, _ = work.groups.T
    shares = np.bincount(kind.astype(np.intp), moved, len(KINDS)) / max(float(moved.sum()), 1.0)
    return np.array([float(kernels.sum()), *shares])
