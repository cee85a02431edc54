"""Simulates the workers of a plan under a virtual clock: calls take the durations that the test gives them.

    outcome = rehearse(executor, seconds=lambda call: …, plan=again)

Property tests lose workers in it, benchmarks give calls other durations than planned. It starts no process and does not
wait.
"""

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from math import inf

from gpuyard.plan.executor.executor import Executor
from gpuyard.plan.executor.messages import (
    Back,
    Call,
    Done,
    DropResult,
    ExecutorCommand,
    ExecutorEvent,
    Load,
    ReleaseGpu,
    Replan,
    Replanned,
    Stop,
    Tick,
    Unload,
)
from gpuyard.plan.executor.work import Assignment, RemainingWork

SimulatedEvent = tuple[float, int, ExecutorEvent]


def rehearse(
    executor: Executor,
    seconds: Callable[[Call], float] = lambda call: call.seconds,
    plan: Callable[[RemainingWork], Assignment | None] = lambda _remaining: None,
    happens: Iterable[tuple[float, ExecutorEvent]] = (),
    watch: Callable[[float, ExecutorCommand], ExecutorEvent | None] = lambda _now, _command: None,
    hears: Callable[[float, ExecutorEvent], ExecutorEvent] = lambda _now, event: event,
    restart_s: float = 1.0,
) -> float:
    """Run until all calls are over or nothing more can happen; return the end of the last call.

    `happens` are external events. `watch` is called with each command and may return the event that answers it (a
    failure). `hears` is called with each event on its way to the executor and may replace it (to add a result). Stopped
    workers are back after `restart_s`.
    """
    numbers = iter(range(10**12))
    heap: list[SimulatedEvent] = [(at, next(numbers), event) for at, event in happens]
    heapify(heap)
    now = 0.0

    def obey(command: ExecutorCommand) -> None:
        said = watch(now, command)
        match command:
            case Load(operation, _, _, takes) | Unload(operation, _, _, takes):
                heappush(heap, (now + takes, next(numbers), said or Done(operation, takes)))
            case Call(operation):
                takes = seconds(command)
                heappush(heap, (now + takes, next(numbers), said or Done(operation, takes)))
            case Stop(gpu):
                heappush(heap, (now + restart_s, next(numbers), Back(gpu)))
            case ReleaseGpu() | DropResult():
                pass
            case Replan(remaining):
                heappush(heap, (now, next(numbers), Replanned(plan(remaining))))

    for command in executor.begin(now):
        obey(command)
    while not executor.is_over:
        wakeup = executor.next_wakeup()
        if not heap and wakeup == inf:
            break
        if heap and heap[0][0] <= wakeup:
            now, _, event = heappop(heap)
        else:
            now, event = max(now, wakeup), Tick()
        for command in executor.handle(hears(now, event), now):
            obey(command)
    return max((run.end_s for run in executor.runs), default=0.0)
