"""Follows a plan on workers in real time: connects the executor, the workers and the planner.

The executor's commands use numbers; they become orders for workers, and the replies of workers become events.
Replanning runs in a thread, while the old plan is followed. Seconds are those of the plan: with a `speed_up`, which
only virtual runtimes support, the clock here runs faster by that factor.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, Protocol

from gpuyard.plan.executor.executor import Executor, Rules, Run
from gpuyard.plan.executor.messages import (
    Back,
    Call,
    Done,
    DropResult,
    ExecutorCommand,
    ExecutorEvent,
    Load,
    Lost,
    ReleaseGpu,
    Replan,
    Replanned,
    Stop,
    Tick,
    Unload,
)
from gpuyard.plan.executor.work import Assignment
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.workers.order import CallInput, Order, OrderKind, Runtime
from gpuyard.plan.workers.plans import assignment_of, replanner, work_of
from gpuyard.plan.workers.pool import Pool
from gpuyard.plan.workers.run_record import RecordWriter
from gpuyard.plan.workers.settings import Runtimes

LOOK_S = 0.5
"""The longest interval between looks at the clock and reports of progress."""
PENDING_LOOK_S = 0.02
"""The same interval while replanning is under way."""


class GpuSource(Protocol):
    """A source of borrowed GPUs that may be reclaimed."""

    def news(self, now_s: float) -> list[ExecutorEvent]:
        """Return `Back` for GPUs lent since the last call, and `Reclaimed` for those that must be given back."""

    def returned(self, gpu: int) -> None:
        """Release a GPU: the plan no longer uses it."""

    @property
    def expects_gpus(self) -> bool:
        """Whether more GPUs may be lent later."""


class OwnGpus:
    """The GPUs are not borrowed: all of them belong to the run from start to end."""

    expects_gpus = False

    def __init__(self, gpus: int) -> None:
        self._news: list[ExecutorEvent] = [Back(gpu) for gpu in range(gpus)]

    def news(self, now_s: float) -> list[ExecutorEvent]:  # noqa: ARG002
        """Return all GPUs, once."""
        news, self._news = self._news, []
        return news

    def returned(self, gpu: int) -> None:
        """Do nothing: the GPU has no other user."""

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""


@dataclass(slots=True)
class FollowResult:
    """The progress of a run, and in the end its outcome."""

    executor: Executor
    now_s: float = 0.0
    losses: list[str] = field(default_factory=list)
    """Why workers were lost or replanning failed, in sentences."""
    ended: bool = False
    """Whether the caller ended the run before all calls were over."""


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """A run: the plan, the workers, and the callbacks of the caller."""

    problem: Problem
    plan: Plan
    runtimes: Runtimes
    pool: Pool
    gpu_source: GpuSource
    strategy: Callable[[Problem], Plan]
    rules: Rules = field(default_factory=Rules)
    speed_up: float = 1.0
    watch: Callable[[FollowResult], None] = lambda _followed: None
    begins: Callable[[int, range], None] = lambda _call, _gpus: None
    """Called with each call and its GPUs before it starts there."""
    leaves: Callable[[int], None] = lambda _gpu: None
    """Called with each GPU before it is given back."""
    outcome: Callable[[int, Any], None] = lambda _call, _result: None
    """Called with the results that no other call waits for."""
    ended: Callable[[], bool] = lambda: False
    """Polled; True ends the run."""
    restored: Mapping[int, Any] = field(default_factory=dict)
    """Calls that an earlier run has done, with their results."""
    clock_s: float = 0.0
    """The time of the plan at which this run begins: that at which an earlier one ended."""
    record: RecordWriter | None = None
    """Where calls and loads are recorded as they end."""


def follow(it: FollowOptions) -> FollowResult:
    """Follow a plan until every call is done, given up or impossible on the remaining GPUs, or the run is ended."""
    driver = _Driver(it)
    driver.gather()
    driver.drive()
    return driver.state


class _Driver:
    def __init__(self, it: FollowOptions) -> None:
        self._it = it
        work = work_of(it.problem, it.pool.hosts, it.plan, it.runtimes.preloads)
        self._executor = Executor(work, assignment_of(it.problem, it.plan), it.rules)
        for call, result in it.restored.items():
            self._executor.restore(call, result)
        self._after = work.after
        self._pace = work.pace
        self._loading: dict[int, int] = {}
        """The models of loads under way, by operation."""
        self._plan_again = replanner(it.problem, it.strategy)
        self._planner = ThreadPoolExecutor(1, "planning-again")
        self._planned: Future[Assignment | None] | None = None
        self._began = monotonic()
        self._before: list[ExecutorEvent] = []
        """Events of the GPU source from before the plan started."""
        self.state = FollowResult(self._executor)

    def gather(self) -> None:
        """Wait until every worker is ready or has failed; then start the plan's clock."""
        news = self._it.gpu_source.news(self._it.clock_s)
        self._before = [event for event in news if not isinstance(event, Back)]
        missing = {event.gpu for event in news if isinstance(event, Back)}
        for gpu in range(len(self._it.problem.gpus)):
            if gpu not in missing:
                self._executor.absent(gpu)
        self._it.pool.open(sorted(missing))
        while missing and not self._it.ended():
            for event in self._it.pool.wait(LOOK_S):
                if isinstance(event, Lost):
                    self.state.losses.append(event.why)
                    self._executor.absent(event.gpu)
                if isinstance(event, Lost | Back):
                    missing.discard(event.gpu)
        self._began = monotonic()

    def drive(self) -> None:
        """Run until all calls are over or no more can be run."""
        executor, it = self._executor, self._it
        try:
            if not it.ended():
                self._obey(executor.begin(it.clock_s))
                for event in self._before:
                    self._obey(executor.handle(event, it.clock_s))
            while not executor.is_over:
                if it.ended():
                    self.state.ended = True
                    return
                if executor.is_stuck and not it.pool.expects_workers and not it.gpu_source.expects_gpus:
                    return
                for event in self._events():
                    self._tell(event)
                for event in it.gpu_source.news(self._now()):
                    if isinstance(event, Back):
                        it.pool.open([event.gpu])  # the pool reports when its worker is ready
                    else:
                        self._tell(event)
                self.state.now_s = self._now()
                it.watch(self.state)
        finally:
            self._planner.shutdown(wait=False, cancel_futures=True)

    def _tell(self, event: ExecutorEvent) -> None:
        if isinstance(event, Lost):
            self.state.losses.append(event.why)
        before = len(self._executor.runs)
        commands = self._executor.handle(event, self._now())
        if isinstance(event, Done) and self._it.record is not None:
            self._record(self._it.record, event, self._executor.runs[before:])
        self._obey(commands)

    def _record(self, record: RecordWriter, event: Done, runs: Sequence[Run]) -> None:
        """Record a call or a load; a reply that came too late is neither."""
        model = self._loading.pop(event.operation, None)
        if model is not None:
            record.loaded(model, event.seconds, self._executor.execution.now)
        for run in runs:
            pace = self._pace(int(self._it.problem.calls.model[run.call]), run.gpu)
            record.called(run, event.seconds * pace, event.result)  # type: ignore[arg-type]

    def _now(self) -> float:
        return self._it.clock_s + (monotonic() - self._began) * self._it.speed_up

    def _events(self) -> list[ExecutorEvent]:
        """Return the events since the last call, at least that time has passed."""
        pause = (self._executor.next_wakeup() - self._now()) / self._it.speed_up
        pause = min(pause, LOOK_S if self._planned is None else PENDING_LOOK_S)
        events = [self._at_speed(event) for event in self._it.pool.wait(max(0.0, pause))]
        if self._planned is not None and self._planned.done():
            trouble = self._planned.exception()
            if trouble is not None:  # a failure to replan must not cost the completed work
                self.state.losses.append(
                    f"the remaining calls could not be planned again: {type(trouble).__name__}: {trouble}"
                )
            events.append(Replanned(None if trouble is not None else self._planned.result()))
            self._planned = None
        return events or [Tick()]

    def _at_speed(self, event: ExecutorEvent) -> ExecutorEvent:
        return replace(event, seconds=event.seconds * self._it.speed_up) if isinstance(event, Done) else event

    def _obey(self, commands: Sequence[ExecutorCommand]) -> None:
        pool = self._it.pool
        for command in commands:
            match command:
                case Load() | Unload() | Call():
                    if isinstance(command, Call):
                        self._it.begins(command.call, command.gpus)
                    if isinstance(command, Load):
                        self._loading[command.operation] = command.model
                    pool.send([(command.gpus[0], self._order(command))])
                case Stop(gpu):
                    pool.stop([gpu], for_good=False)
                case ReleaseGpu(gpu):
                    pool.stop([gpu], for_good=True)
                    self._it.leaves(gpu)
                    self._it.gpu_source.returned(gpu)
                case Replan(remaining):
                    self._planned = self._planner.submit(self._plan_again, remaining)
                case DropResult(call, result):
                    if not self._after[call]:
                        self._it.outcome(call, pool.fetch(result))
                    pool.forget(result)

    def _order(self, command: Load | Unload | Call) -> Order:
        it = self._it
        model = it.problem.models[command.model]
        runtime = it.runtimes.of_model[command.model]
        if runtime.name == "virtual":
            runtime = Runtime("virtual", {**runtime.settings, "speed_up": it.speed_up})
        if isinstance(command, Load | Unload):
            kind = OrderKind.LOAD if isinstance(command, Load) else OrderKind.UNLOAD
            return Order(
                command.operation, kind, model.name, runtime, model.gpus, command.seconds, beside=command.beside
            )
        request = it.problem.requests.ids[it.problem.calls.request[command.call]]
        results = {self._node(earlier): result for earlier, result in command.results.items()}
        question = CallInput(
            request, self._node(command.call), command.attempt, it.runtimes.inputs.get(request), results
        )
        return Order(command.operation, OrderKind.CALL, model.name, runtime, model.gpus, command.seconds, question)

    def _node(self, call: int) -> str:
        problem = self._it.problem
        workflow = problem.workflows[problem.requests.workflow[problem.calls.request[call]]]
        node: str = workflow.nodes[problem.calls.position[call]]
        return node
