"""The counts of one step of a model, from the counting process, extrapolated to any number of samples."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance.operation_profile import OperationProfile


class ModelUnit(Struct, frozen=True):
    """Consecutive operations of one block with their backward pass. A model can be cut between two units."""

    block: str
    """The part of the model that is never divided."""
    operations: tuple[tuple[str, int, float, float], ...]
    """In order of execution: kind (see `operation_profile.KINDS`), kernels, FLOPs, bytes."""
    activation_bytes: float
    """Bytes kept for the backward pass."""
    parameter_bytes: float
    """Parameters that are first used here."""
    crossing_bytes: float
    """Bytes produced before this unit and needed here or later."""


class Counts(Struct, frozen=True):
    """The counts of one step."""

    units: tuple[ModelUnit, ...]
    shared: tuple[tuple[str, str], ...] = ()
    """Pairs of blocks that use the same parameters."""


@dataclass(frozen=True, slots=True)
class ModelPart:
    """A unit, for any number of samples; in fp32."""

    block: str
    profile: OperationProfile
    crossing_bytes: float
    crossing_bytes_each: float
    """Bytes that cross into it: the constant part, and the part for each sample."""

    def crossing(self, samples: int) -> float:
        """Return the bytes from the previous part for this number of samples."""
        return self.crossing_bytes + self.crossing_bytes_each * samples


def parts(few: Counts, many: Counts, few_batch: int, many_batch: int) -> list[ModelPart]:
    """Combine the counts of the same model with two batch sizes."""
    if [(u.block, len(u.operations)) for u in few.units] != [(u.block, len(u.operations)) for u in many.units]:
        raise WrongInput(
            f"The model runs other operations for a batch of {many_batch} than for {few_batch}, so it "
            "cannot be partitioned."
        )
    found = []
    for one, other in zip(few.units, many.units, strict=True):
        each = (other.crossing_bytes - one.crossing_bytes) / (many_batch - few_batch)
        fixed = max(one.crossing_bytes - each * few_batch, 0.0)
        found.append(ModelPart(one.block, OperationProfile.counted(one, other, few_batch, many_batch), fixed, each))
    return found


def together(some: Sequence[ModelPart]) -> OperationProfile:
    """Return the profile of parts that run one after the other."""
    return OperationProfile.joined([part.profile for part in some])
