"""An instance: a problem as it is written, `planner-instance/1`. Reading makes a `Problem` of it."""

from math import inf
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

FORMAT: Final = "planner-instance/1"


class WrittenModel(msgspec.Struct, forbid_unknown_fields=True):
    """What a call needs on each of its GPUs."""

    memory_gb: float
    gpus: int = 1
    load_time_s: float | UnsetType = UNSET
    """Where it was measured; else from the memory and the speed of the bus."""


class WrittenLevel(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A power level."""

    speed: float
    watts: float
    mhz: int | None = None


class WrittenGpu(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One GPU."""

    id: int | str
    type: str = ""
    memory_gb: float = inf
    speed: float = 1.0
    idle_watts: float = 0.0
    levels: tuple[WrittenLevel, ...] = ()


class WrittenNode(msgspec.Struct, forbid_unknown_fields=True):
    """One call of a workflow."""

    id: str
    model: str
    exec_time: float | UnsetType = UNSET
    """May be left out where every request says its own."""
    deps: tuple[str, ...] = ()


class WrittenWorkflow(msgspec.Struct, forbid_unknown_fields=True):
    """A graph of calls."""

    nodes: tuple[WrittenNode, ...]


class WrittenRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Somebody who asks for a workflow."""

    id: str
    workflow: str
    exec_times: list[float] | None = None
    arrival_s: float = 0.0
    priority: int = 50
    deadline_s: float = inf


class Instance(msgspec.Struct, forbid_unknown_fields=True):
    """All of it."""

    format: str
    models: dict[str, WrittenModel]
    gpus: list[WrittenGpu]
    workflows: dict[str, WrittenWorkflow]
    requests: list[WrittenRequest]
    name: str = ""
    family: str = ""
    seed: int | None = None
    pcie_gb_s: float = 25.0
    switch_overhead_s: float = 2.0
    many_residents: bool | UnsetType = UNSET


def write_instance(instance: Instance) -> bytes:
    """As JSON."""
    return msgspec.json.encode(instance)
