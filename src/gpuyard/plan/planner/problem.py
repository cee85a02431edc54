"""A problem: models, GPUs, workflows, and the requests that run through them.

What people wrote is kept as values (`Model`, `PlannerGpu`, `Workflow`, `Request`); what strategies compute with is kept in
columns, one entry a *call* (one node of one request), since a million of them has to fit and be quick:

    request r0 of workflow w0 (nodes a → b, a → c)     call:      0  1  2
                                                       model:     4  1  1      a number into `models`
                                                       seconds:   …            on a GPU of speed 1
                                                       before:    –  0  0      calls that have to end first

A model occupies `memory_gb` on each of its `gpus` GPUs, which have neighbouring numbers. A GPU that holds model a and
is to run model b pays `switch_s(a, b)` first; `EMPTY` stands for a GPU that holds nothing.
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
"""The number of the model that a GPU holds at the beginning. As an index it is the last row of `Problem.switch`."""


@dataclass(frozen=True, slots=True)
class Model:
    """What a call needs on its GPUs."""

    name: str
    memory_gb: float
    gpus: int
    load_s: float
    """From nothing on the GPU to ready."""
    unload_s: float


@dataclass(frozen=True, slots=True)
class Level:
    """A power level of a GPU: how fast it is there, beside its full speed, and what it draws while it runs a call."""

    speed: float
    watts: float
    mhz: int | None = None


@dataclass(frozen=True, slots=True)
class PlannerGpu:
    """One GPU. Calls take `seconds / speed` on it; a group is as fast as its slowest."""

    id: int | str
    type: str = ""
    memory_gb: float = inf
    speed: float = 1.0
    idle_watts: float = 0.0
    levels: tuple[Level, ...] = ()
    """Full speed first; empty: one level, and nothing is known about its power."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """A graph of model calls. `before[i]` are the positions of the nodes that have to end before node i."""

    name: str
    nodes: tuple[str, ...]
    models: tuple[int, ...]
    seconds: tuple[float, ...]
    before: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Requests:
    """All requests, in columns: who asks for which workflow, when it comes, how much it matters, until when."""

    ids: tuple[str, ...]
    workflow: Ints
    arrival_s: Floats
    priority: Ints
    """0 to 100, more is sooner."""
    deadline_s: Floats
    """`inf` where there is none."""


@dataclass(frozen=True, slots=True)
class Calls:
    """All calls, in columns; those of a request stand together, in the order of its workflow's nodes."""

    request: Ints
    position: Ints
    """Which node of the workflow."""
    model: Ints
    seconds: Floats
    earliest_s: Floats
    """When the request comes."""
    before_at: Ints
    """`before[before_at[i]:before_at[i + 1]]` have to end before call i begins."""
    before: Ints
    after_at: Ints
    after: Ints

    def __len__(self) -> int:
        return len(self.model)


@dataclass(frozen=True)
class Problem:
    """What is to be planned."""

    name: str
    models: tuple[Model, ...]
    gpus: tuple[PlannerGpu, ...]
    workflows: tuple[Workflow, ...]
    requests: Requests
    calls: Calls
    many_residents: bool = False
    """A GPU may hold several models while its memory lasts. One call runs at a time all the same."""
    family: str = ""
    seed: int | None = field(default=None)
    holding: Ints | None = None
    """What each GPU holds at the beginning, where some of the work was done before; None: nothing."""
    busy_until_s: Floats | None = None
    """When each GPU can first be used, likewise; None: at once."""

    @cached_property
    def first_call(self) -> Ints:
        """Where the calls of each request begin; one entry more than requests."""
        return np.searchsorted(self.calls.request, np.arange(len(self.requests.ids) + 1)).astype(np.int32)

    @cached_property
    def held_first(self) -> Ints:
        """The model that each GPU holds at the beginning, or `EMPTY`."""
        return np.full(len(self.gpus), EMPTY, dtype=np.int32) if self.holding is None else self.holding

    @cached_property
    def free_first(self) -> Floats:
        """When each GPU can first be used."""
        return np.zeros(len(self.gpus)) if self.busy_until_s is None else self.busy_until_s

    def name_of(self, call: int) -> str:
        """A call as people know it: `request/node`."""
        request = int(self.calls.request[call])
        workflow = self.workflows[int(self.requests.workflow[request])]
        return f"{self.requests.ids[request]}/{workflow.nodes[int(self.calls.position[call])]}"

    @cached_property
    def width(self) -> Ints:
        """GPUs of each model."""
        return np.array([m.gpus for m in self.models], dtype=np.int32)

    @cached_property
    def load(self) -> Floats:
        """Seconds to load each model onto an empty GPU."""
        return np.array([m.load_s for m in self.models], dtype=np.float64)

    @cached_property
    def switch(self) -> Floats:
        """`switch[a, b]`: seconds from holding a to b being ready; the last row is the empty GPU."""
        unload = np.array([m.unload_s for m in self.models] + [0.0])
        table: Floats = unload[:, None] + self.load[None, :]
        np.fill_diagonal(table, 0.0)
        return table

    @cached_property
    def speed(self) -> Floats:
        """Of each GPU."""
        return np.array([g.speed for g in self.gpus], dtype=np.float64)

    @cached_property
    def may_begin(self) -> Flags:
        """`may_begin[m, g]`: model m fits on the group whose first GPU is g."""
        memory = np.array([g.memory_gb for g in self.gpus], dtype=np.float64)
        table = np.zeros((len(self.models), len(self.gpus)), dtype=np.bool_)
        for m, model in enumerate(self.models):
            fits = memory >= model.memory_gb
            for g in range(len(self.gpus) - model.gpus + 1):
                table[m, g] = bool(fits[g : g + model.gpus].all())
        return table

    @cached_property
    def group_speed(self) -> Floats:
        """`group_speed[m, g]`: the slowest GPU of the group of model m whose first GPU is g."""
        table = np.ones((len(self.models), len(self.gpus)))
        for m, model in enumerate(self.models):
            for g in range(len(self.gpus) - model.gpus + 1):
                table[m, g] = self.speed[g : g + model.gpus].min()
        return table

    @cached_property
    def work_s(self) -> float:
        """GPU-seconds of all calls at speed 1."""
        return float((self.calls.seconds * self.width[self.calls.model]).sum())
