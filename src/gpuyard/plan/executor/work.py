"""The work to be done, in columns of plain Python with one entry per call, model or GPU; and its assignment."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Work:
    """All calls, the models they need, and the GPUs. Calls, models and GPUs are identified by their number."""

    model: Sequence[int]
    seconds: Sequence[float]
    """The planned duration on a GPU of speed 1."""
    earliest_s: Sequence[float]
    before: Sequence[Sequence[int]]
    after: Sequence[Sequence[int]]
    kind: Sequence[int]
    """Calls of one kind (one node of one workflow) deviate from their planned duration together."""
    width: Sequence[int]
    """The number of GPUs of each model; they have adjacent numbers."""
    load_s: Sequence[float]
    unload_s: Sequence[float]
    memory_gb: Sequence[float]
    gpu_memory_gb: Sequence[float]
    speed: Sequence[float]
    host: Sequence[int]
    """The machine of each GPU: no group spans two machines."""
    multi_model: bool = False
    preloads: Sequence[bool] = ()
    """Whether each model may be loaded and unloaded while its GPUs run calls of others; empty: none may."""
    priority: Sequence[int] = ()
    """The priority of the request of each call; empty: all are equal."""

    def __len__(self) -> int:
        return len(self.model)

    @cached_property
    def firsts(self) -> list[frozenset[int]]:
        """For each model, the first GPUs of all groups that could ever hold it."""
        gpus = range(len(self.speed))
        return [
            frozenset(
                first
                for first in gpus[: max(0, len(gpus) - width + 1)]
                if self.host[first] == self.host[first + width - 1]
                and all(self.gpu_memory_gb[gpu] >= memory for gpu in gpus[first : first + width])
            )
            for width, memory in zip(self.width, self.memory_gb, strict=True)
        ]

    @cached_property
    def has_priorities(self) -> bool:
        """Whether some calls are more urgent than others."""
        return len(set(self.priority)) > 1

    @cached_property
    def rank(self) -> list[int]:
        """A number for each call that is above those of the calls it waits for."""
        missing = [len(before) for before in self.before]
        ready = [call for call, count in enumerate(missing) if not count]
        rank = [0] * len(self)
        for turn, call in enumerate(ready):
            rank[call] = turn
            for later in self.after[call]:
                missing[later] -= 1
                if not missing[later]:
                    ready.append(later)
        return rank

    def group(self, model: int, first: int) -> range:
        """Return the GPUs of a model whose first GPU is this one."""
        return range(first, first + self.width[model])

    @cached_property
    def paces(self) -> list[list[float]]:
        """`paces[m][g]`: the speed of the group of model m that starts at GPU g; it is that of its slowest GPU."""
        return [[min(self.speed[g : g + width]) for g in range(len(self.speed))] for width in self.width]

    def pace(self, model: int, first: int) -> float:
        """Return the speed of a group, which is that of its slowest GPU."""
        return self.paces[model][first]


@dataclass(frozen=True, slots=True)
class Assignment:
    """Calls in the order in which they start, each with the first GPU of its group and its planned times."""

    call: list[int] = field(default_factory=list)
    gpu: list[int] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RemainingWork:
    """The work left to be planned at an instant: the calls, and the state of the GPUs."""

    now_s: float
    call: list[int]
    """Calls that have not started and that the present GPUs can run, by number. The next columns match it."""
    seconds: list[float]
    """The current estimates on a GPU of speed 1."""
    earliest_s: list[float]
    """When the request has arrived and the calls running now that it depends on are done."""
    gpu: list[int]
    """The first GPU of the group that each call is queued for, or -1."""
    order: list[int]
    """Positions in `call`, in the order of the queues."""
    usable: list[bool]
    """Whether each GPU can be used."""
    holds: list[int]
    """The model that each GPU will hold when it is free (of several, the one used last), or -1."""
    busy_until_s: list[float]
