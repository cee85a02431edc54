"""Small work for tests of the executor. Unless a test says otherwise, every model loads in 10 s and unloads in 1 s."""

from collections.abc import Sequence

from gpuyard.plan.executor.executor import Executor, Rules
from gpuyard.plan.executor.messages import Call, Done, ExecutorCommand, ExecutorEvent, Load, Unload
from gpuyard.plan.executor.work import Assignment, Work

FOLLOWS_ONLY = Rules(steals=False, replans=False)
KEEPS_THE_PLAN = Rules(replans=False)
"""Steals, and never asks for another plan."""

CallSpec = tuple[int, float, list[int]]
"""Model, seconds, the calls it waits for."""


def work(
    calls: Sequence[CallSpec],
    gpus: int = 1,
    width: Sequence[int] = (1, 1, 1),
    *,
    earliest: Sequence[float] | None = None,
    host: Sequence[int] | None = None,
    speed: Sequence[float] | None = None,
    memory_gb: Sequence[float] | None = None,
    gpu_memory_gb: Sequence[float] | None = None,
    kind: Sequence[int] | None = None,
    multi_model: bool = False,
    priority: Sequence[int] = (),
    preloads: Sequence[bool] = (),
) -> Work:
    return Work(
        model=[model for model, _, _ in calls],
        seconds=[seconds for _, seconds, _ in calls],
        earliest_s=earliest or [0.0] * len(calls),
        before=[before for _, _, before in calls],
        after=[[later for later, (_, _, before) in enumerate(calls) if call in before] for call in range(len(calls))],
        kind=list(range(len(calls))) if kind is None else kind,
        width=width,
        load_s=[10.0] * len(width),
        unload_s=[1.0] * len(width),
        memory_gb=memory_gb or [1.0] * len(width),
        gpu_memory_gb=gpu_memory_gb or [1.0] * gpus,
        speed=speed or [1.0] * gpus,
        host=host or [0] * gpus,
        multi_model=multi_model,
        priority=priority,
        preloads=preloads,
    )


def plan(*places: tuple[int, int], every_s: float = 100.0) -> Assignment:
    """Calls and their first GPU, in the order in which they are to begin."""
    starts = [every_s * turn for turn in range(len(places))]
    return Assignment([c for c, _ in places], [g for _, g in places], starts, [s + every_s for s in starts])


def starts(executor: Executor) -> dict[int, float]:
    return {run.call: run.start_s for run in executor.runs}


def where(executor: Executor) -> dict[int, int]:
    return {run.call: run.gpu for run in executor.runs}


class Driver:
    """Drives an executor event by event, and remembers what is under way."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.now = 0.0
        self.commands: list[ExecutorCommand] = []
        """All that were given, in their order."""
        self.under_way: list[Load | Unload | Call] = []

    def begins(self) -> list[ExecutorCommand]:
        return self._noted(self.executor.begin(self.now))

    def hears(self, event: ExecutorEvent, at: float) -> list[ExecutorCommand]:
        self.now = at
        return self._noted(self.executor.handle(event, at))

    def finishes(self, at: float, result: object = None) -> list[ExecutorCommand]:
        """The operation that has been under way for the longest time is done."""
        operation = self.under_way.pop(0)
        return self.hears(Done(operation.operation, operation.seconds, result), at)

    def _noted(self, commands: list[ExecutorCommand]) -> list[ExecutorCommand]:
        self.commands += commands
        self.under_way += [command for command in commands if isinstance(command, Load | Unload | Call)]
        return commands
