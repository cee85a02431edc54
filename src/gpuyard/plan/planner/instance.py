"""An instance: a problem in its file format, `planner-instance/1`. The reader converts it into a `Problem`."""

from math import inf
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

FORMAT: Final = "planner-instance/1"

MOST_SECONDS: Final = 315_360_000.0
"""Ten years. Far longer times would lose the fractions of seconds that others have."""
TimeSeconds = Annotated[
    float, Meta(ge=0, le=MOST_SECONDS, description="a number of seconds from 0 to 315,360,000, ten years")
]
Quantity = Annotated[float, Meta(ge=0, le=1_000_000)]
"""A number of gigabytes or watts."""
Factor = Annotated[float, Meta(ge=0.001, le=1_000_000)]
"""A speed: of a GPU against others, or of the bus in GB/s."""
Deadline = Annotated[
    float, Meta(gt=0, le=MOST_SECONDS, description="a number of seconds above 0 and at most 315,360,000, ten years")
]
PlannerGpuCount = Annotated[int, Meta(ge=1, le=1_000_000)]


class WrittenModelLevel(msgspec.Struct, forbid_unknown_fields=True):
    """Speed and power of one model at a power level."""

    speed: Annotated[float, Meta(ge=0.001, le=1)]
    watts: Quantity


class WrittenModel(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The resources that a model needs on each of its GPUs."""

    memory_gb: Quantity
    gpus: PlannerGpuCount = 1
    load_time_s: TimeSeconds | UnsetType = UNSET
    """The measured load time; if missing, it is computed from the memory and the speed of the bus."""
    levels: tuple[WrittenModelLevel, ...] = ()
    """Replace speed and watts of the GPUs' power levels with the same numbers."""


class WrittenLevel(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A power level."""

    speed: Annotated[float, Meta(ge=0.001, le=1)]
    watts: Quantity
    mhz: int | None = None


class WrittenGpu(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One GPU."""

    id: int | str
    type: str = ""
    memory_gb: Quantity = inf
    speed: Factor = 1.0
    idle_watts: Quantity = 0.0
    levels: tuple[WrittenLevel, ...] = ()


class WrittenNode(msgspec.Struct, forbid_unknown_fields=True):
    """One call of a workflow."""

    id: str
    model: str
    exec_time: TimeSeconds | UnsetType = UNSET
    """May be left out if every request gives its own times."""
    deps: tuple[str, ...] = ()


class WrittenWorkflow(msgspec.Struct, forbid_unknown_fields=True):
    """A graph of calls."""

    nodes: Annotated[tuple[WrittenNode, ...], Meta(min_length=1)]


class WrittenRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A request for a workflow."""

    id: str
    workflow: str
    exec_times: list[TimeSeconds] | None = None
    arrival_s: TimeSeconds = 0.0
    priority: Annotated[int, Meta(ge=0, le=100)] = 50
    deadline_s: Deadline = inf


class Instance(msgspec.Struct, forbid_unknown_fields=True):
    """A whole instance."""

    format: str
    models: dict[str, WrittenModel]
    gpus: list[WrittenGpu]
    workflows: dict[str, WrittenWorkflow]
    requests: Annotated[list[WrittenRequest], Meta(min_length=1)]
    name: str = ""
    family: str = ""
    seed: int | None = None
    pcie_gb_s: Factor = 25.0
    switch_overhead_s: TimeSeconds = 2.0
    multi_model: bool | UnsetType = UNSET
    preload: bool | UnsetType = UNSET


def write_instance(instance: Instance) -> bytes:
    """Encode an instance as JSON."""
    return msgspec.json.encode(instance)
