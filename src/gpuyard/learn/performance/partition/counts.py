"""What one step of a model does, as the process that counted it tells, and what follows for any number of samples."""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.performance.operation_profile import OperationProfile


class ModelUnit(Struct, frozen=True):
    """Operations of one block that follow each other, and their way back. Between two units a model can be cut."""

    block: str
    """The part of the model that is never divided."""
    operations: tuple[tuple[str, int, float, float], ...]
    """Each: its kind (see `profile.KINDS`), kernels, FLOPs, bytes."""
    activation_bytes: float
    """What the backward pass will need of it."""
    largest_bytes: float
    """Of its largest operation."""
    parameter_bytes: float
    """Parameters that are used here first."""
    crossing_bytes: float
    """What was made before and is needed here or later."""


class Counts(Struct, frozen=True):
    """Of one step."""

    units: tuple[ModelUnit, ...]
    shared: tuple[tuple[str, str], ...] = ()
    """Blocks that use the same parameters."""


@dataclass(frozen=True, slots=True)
class ModelPart:
    """A unit, for any number of samples; in fp32."""

    block: str
    profile: OperationProfile
    crossing_bytes: float
    crossing_bytes_each: float
    """What crosses into it: whatever the batch, and for each sample."""

    def crossing(self, samples: int) -> float:
        """Bytes from the part before, for so many samples."""
        return self.crossing_bytes + self.crossing_bytes_each * samples


def parts(few: Counts, many: Counts, few_batch: int, many_batch: int) -> list[ModelPart]:
    """From the same model counted with two batches."""
    if [(u.block, len(u.operations)) for u in few.units] != [(u.block, len(u.operations)) for u in many.units]:
        raise WrongInput(
            f"The model does other things for a batch of {many_batch} than for {few_batch}: it can not be divided."
        )
    found = []
    for one, other in zip(few.units, many.units, strict=True):
        each = (other.crossing_bytes - one.crossing_bytes) / (many_batch - few_batch)
        fixed = max(one.crossing_bytes - each * few_batch, 0.0)
        found.append(ModelPart(one.block, OperationProfile.counted(one, other, few_batch, many_batch), fixed, each))
    return found


def together(some: Sequence[ModelPart]) -> OperationProfile:
    """Parts that run one after the other."""
    return OperationProfile.joined([part.profile for part in some])
