"""A problem: models, GPUs, workflows, and the requests that run through them.

The problem as written is kept as values (`Model`, `PlannerGpu`, `Workflow`, `Request`). The strategies compute with
columns, one entry per *call* (one node of one request), because a problem may have a million calls:

    request r0 of workflow w0 (nodes a → b, a → c)     call:      0  1  2
                                                       model:     4  1  1      a number into `models`
                                                       seconds:   …            on a GPU of speed 1
                                                       before:    –  0  0      calls that have to end first

A model occupies `memory_gb` on each of its `gpus` GPUs, which have adjacent numbers. A GPU that holds model a spends
`switch_s(a, b)` before it runs model b; `EMPTY` stands for a GPU that holds no model.
"""

from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

EMPTY: Final = -1
"""The model number of a GPU that holds no model. As an index it selects the last row of `Problem.switch`."""


@dataclass(frozen=True, slots=True)
class ModelLevel:
    """Speed and power of a model at a power level: relative to its full speed, and while a call of it runs."""

    speed: float
    watts: float


@dataclass(frozen=True, slots=True)
class Model:
    """A model: the resources its calls need on a GPU, and the time to load and unload it."""

    name: str
    memory_gb: float
    gpus: int
    load_s: float
    """Seconds from an empty GPU until the model is ready."""
    unload_s: float
    levels: tuple[ModelLevel, ...] = ()
    """Speed and power at the GPUs' power levels, as far as they differ from those of the GPU."""


@dataclass(frozen=True, slots=True)
class Level:
    """A power level of a GPU: its speed relative to full speed, and its power draw while it runs a call."""

    speed: float
    watts: float
    mhz: int | None = None


@dataclass(frozen=True, slots=True)
class PlannerGpu:
    """One GPU. A call takes `seconds / speed` on it; a group is as fast as its slowest GPU."""

    id: int | str
    type: str = ""
    memory_gb: float = inf
    speed: float = 1.0
    idle_watts: float = 0.0
    levels: tuple[Level, ...] = ()
    """Full speed first. Empty: the GPU has one level and its power draw is unknown."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """A graph of model calls. `before[i]` lists the positions of the nodes that must end before node i."""

    name: str
    nodes: tuple[str, ...]
    models: tuple[int, ...]
    seconds: tuple[float, ...]
    before: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Requests:
    """All requests, in columns: name, workflow, arrival time, priority and deadline."""

    ids: tuple[str, ...]
    workflow: Ints
    arrival_s: Floats
    priority: Ints
    """0 to 100; a higher number is more urgent."""
    deadline_s: Floats
    """`inf` if the request has no deadline."""


@dataclass(frozen=True, slots=True)
class Calls:
    """All calls, in columns. The calls of one request are contiguous, in the order of the workflow's nodes."""

    request: Ints
    position: Ints
    """The position of the call's node in the workflow."""
    model: Ints
    seconds: Floats
    earliest_s: Floats
    """The arrival time of the request."""
    before_at: Ints
    """`before[before_at[i]:before_at[i + 1]]` must end before call i starts."""
    before: Ints
    after_at: Ints
    after: Ints

    def __len__(self) -> int:
        return len(self.model)


@dataclass(frozen=True)
class Problem:
    """A planning problem: models, GPUs, workflows, requests and their calls."""

    name: str
    models: tuple[Model, ...]
    gpus: tuple[PlannerGpu, ...]
    workflows: tuple[Workflow, ...]
    requests: Requests
    calls: Calls
    multi_model: bool = False
    """A GPU may hold several models as long as its memory suffices. It still runs one call at a time."""
    preload: bool = False
    """A GPU may load its next model while it runs calls, if its memory holds both."""
    family: str = ""
    seed: int | None = field(default=None)
    holding: Ints | None = None
    """The model that each GPU holds at the start, if part of the work was done before; None: all GPUs are empty."""
    busy_until_s: Floats | None = None
    """When each GPU is first available, if part of the work was done before; None: at time 0."""
    hosts: tuple[int, ...] = ()
    """The machine of each GPU, if that matters: no group of GPUs spans two. Empty: all are on one."""

    @cached_property
    def first_call(self) -> Ints:
        """The number of the first call of each request, plus one final entry: the number of calls."""
        return np.searchsorted(self.calls.request, np.arange(len(self.requests.ids) + 1)).astype(np.int32)

    @cached_property
    def held_first(self) -> Ints:
        """The model that each GPU holds at the start, or `EMPTY`."""
        return np.full(len(self.gpus), EMPTY, dtype=np.int32) if self.holding is None else self.holding

    @cached_property
    def free_first(self) -> Floats:
        """When each GPU is first available."""
        return np.zeros(len(self.gpus)) if self.busy_until_s is None else self.busy_until_s

    def name_of(self, call: int) -> str:
        """Return the name of a call as users see it: `request/node`."""
        request = int(self.calls.request[call])
        workflow = self.workflows[int(self.requests.workflow[request])]
        return f"{self.requests.ids[request]}/{workflow.nodes[int(self.calls.position[call])]}"

    @cached_property
    def width(self) -> Ints:
        """The number of GPUs that each model spans."""
        return np.array([m.gpus for m in self.models], dtype=np.int32)

    @cached_property
    def load(self) -> Floats:
        """Seconds to load each model onto an empty GPU."""
        return np.array([m.load_s for m in self.models], dtype=np.float64)

    @cached_property
    def switch(self) -> Floats:
        """`switch[a, b]`: seconds from holding a until b is ready; the last row is for an empty GPU."""
        unload = np.array([m.unload_s for m in self.models] + [0.0])
        table: Floats = unload[:, None] + self.load[None, :]
        np.fill_diagonal(table, 0.0)
        return table

    @cached_property
    def speed(self) -> Floats:
        """The speed of each GPU."""
        return np.array([g.speed for g in self.gpus], dtype=np.float64)

    @cached_property
    def may_begin(self) -> Flags:
        """`may_begin[m, g]`: model m fits on the group whose first GPU is g, and the group is on one machine."""
        memory = np.array([g.memory_gb for g in self.gpus], dtype=np.float64)
        table = np.zeros((len(self.models), len(self.gpus)), dtype=np.bool_)
        for m, model in enumerate(self.models):
            fits = memory >= model.memory_gb
            for g in range(len(self.gpus) - model.gpus + 1):
                one_host = not self.hosts or len(set(self.hosts[g : g + model.gpus])) == 1
                table[m, g] = one_host and bool(fits[g : g + model.gpus].all())
        return table

    @cached_property
    def group_speed(self) -> Floats:
        """`group_speed[m, g]`: the speed of the slowest GPU in the group of model m whose first GPU is g."""
        table = np.ones((len(self.models), len(self.gpus)))
        for m, model in enumerate(self.models):
            for g in range(len(self.gpus) - model.gpus + 1):
                table[m, g] = self.speed[g : g + model.gpus].min()
        return table

    @cached_property
    def work_s(self) -> float:
        """GPU-seconds of all calls at speed 1."""
        return float((self.calls.seconds * self.width[self.calls.model]).sum())
