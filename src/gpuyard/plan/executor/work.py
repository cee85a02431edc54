"""What has to be done, in columns of plain Python: one entry a call, a model or a GPU. And what a plan says of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class Work:
    """All calls, the models they need, the GPUs there are. Calls, models and GPUs are called by their number."""

    model: Sequence[int]
    seconds: Sequence[float]
    """As planned, on a GPU of speed 1."""
    earliest_s: Sequence[float]
    before: Sequence[Sequence[int]]
    after: Sequence[Sequence[int]]
    kind: Sequence[int]
    """Calls of one kind (one node of one workflow) take longer, or less long, than planned together."""
    width: Sequence[int]
    """GPUs of each model, with neighbouring numbers."""
    load_s: Sequence[float]
    unload_s: Sequence[float]
    memory_gb: Sequence[float]
    gpu_memory_gb: Sequence[float]
    speed: Sequence[float]
    host: Sequence[int]
    """The machine of each GPU: no group spans two of them."""
    many_residents: bool = False

    def __len__(self) -> int:
        return len(self.model)

    @cached_property
    def firsts(self) -> list[frozenset[int]]:
        """Of each model: the first GPUs of all groups that could ever hold it."""
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
    def rank(self) -> list[int]:
        """A number of each call, above those of the calls it waits for."""
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
        """The GPUs of a model whose first is this one."""
        return range(first, first + self.width[model])

    @cached_property
    def paces(self) -> list[list[float]]:
        """`paces[m][g]`: how fast the group of model m that begins with GPU g is, which is as fast as its slowest GPU."""
        return [[min(self.speed[g : g + width]) for g in range(len(self.speed))] for width in self.width]

    def pace(self, model: int, first: int) -> float:
        """A group is as fast as its slowest GPU."""
        return self.paces[model][first]


@dataclass(frozen=True, slots=True)
class Assignment:
    """Calls in the order in which they are to begin, each with the first GPU of its group, and when that would be."""

    call: list[int] = field(default_factory=list)
    gpu: list[int] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RemainingWork:
    """What is left to be planned at an instant: which calls, and the GPUs as they are."""

    now_s: float
    call: list[int]
    """Those that have not begun and could be run by the GPUs that are there, by number. The next columns go with it."""
    seconds: list[float]
    """As they are estimated now, on a GPU of speed 1."""
    earliest_s: list[float]
    """The request has come, and those that run at the moment are done."""
    gpu: list[int]
    """The first GPU of the group that each is queued for, or -1."""
    order: list[int]
    """Positions in `call`, in the order of the queues."""
    usable: list[bool]
    """Of each GPU."""
    holds: list[int]
    """The model that each GPU will hold when it is free, of several the one used last; or -1."""
    busy_until_s: list[float]
