"""Runs a plan from Python: everything `gpuyard plan run` does, as a function. The command calls it.

from gpuyard.plan.workers import run_plan

done = run_plan("lab.yaml", "plan.json", runtimes="runtimes.yaml")
print(done.figures()["makespan_s"], done.complete)
"""

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Annotated, Any, Final, Protocol, TypeAlias

from msgspec import Meta

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.arguments import argument
from gpuyard.input.document import parse
from gpuyard.input.files import AnyPath, path_of, read_file, shown_path
from gpuyard.live.sdk import Task
from gpuyard.plan.executor.executor import Rules, Run
from gpuyard.plan.planner.api import (
    WEIGHTED,
    Watching,
    check_idle_rate,
    check_search,
    prepare,
    read,
    unwatched,
    valid_plan,
)
from gpuyard.plan.planner.bounds import lower_bound
from gpuyard.plan.planner.default_strategy import DEFAULT_STRATEGY
from gpuyard.plan.planner.plan import Plan, measure
from gpuyard.plan.planner.priorities import urgent_first
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.strategies import SearchBudget, can_plan, within
from gpuyard.plan.planner.strategies import strategy as strategy_named
from gpuyard.plan.workers import On
from gpuyard.plan.workers.energy_meter import meter_here
from gpuyard.plan.workers.follow import FollowOptions, FollowResult, GpuSource, OwnGpus, follow
from gpuyard.plan.workers.leases import in_blocks
from gpuyard.plan.workers.local import LocalPool
from gpuyard.plan.workers.plans import actual_plan, at_levels
from gpuyard.plan.workers.pool import Pool
from gpuyard.plan.workers.power import NoClocks, PlannedLevels, clocks_here
from gpuyard.plan.workers.remote import RemoteClocks, RemotePool
from gpuyard.plan.workers.run_record import RecordWriter, RunRecord, read_record, with_measured_times
from gpuyard.plan.workers.settings import Runtimes, all_virtual, read_runtimes

CallRetries = Annotated[int, Meta(ge=0, le=1_000_000)]
SpeedUp = Annotated[float, Meta(ge=0.001, le=1e9)]
REPLANS: Final = ("heft_affinity", "dynamic", "batch")
"""Strategies that plan in a fraction of a second. With any other one the remaining work is replanned by the first: a run
waits for no search, and what is planned again is out of date soon."""


class BorrowedGpus(GpuSource, Protocol):
    """GPUs borrowed for the run, such as `workers.leases.ClusterGpus`."""

    def pool(self, runtimes: Runtimes) -> Pool:
        """Return the workers on the GPUs that were lent."""

    def wait(self, watch: Callable[[Task], None], ended: Callable[[], bool]) -> None:
        """Wait until GPUs were lent, or until `ended` returns True."""

    def close(self) -> None:
        """Give all GPUs back."""


Borrowing: TypeAlias = Callable[[Problem, float], BorrowedGpus]
"""Borrows GPUs for a problem; the second argument is the speed-up."""


@dataclass(frozen=True, slots=True)
class RunWatch:
    """Callbacks of a caller that follows a run or ends it."""

    preparing: Callable[[str, Problem], None] = lambda _strategy, _problem: None
    """Called before the strategy is imported and compiled, which can take a minute."""
    planned: Callable[[Problem, Plan], None] = lambda _problem, _plan: None
    """Called with the plan, before any GPU is held. An exception here ends the run."""
    waits: Callable[[Task], None] = lambda _task: None
    """Called while no GPU was lent, with the task that waits for one."""
    opened: Callable[[], None] = lambda: None
    """Called when the pool of workers is open. Ray, for example, may have installed signal handlers by then."""
    progress: Callable[[FollowResult], None] = lambda _followed: None
    """Called several times a second."""
    result: Callable[[int, Any], None] = lambda _call, _result: None
    """Called with the results of calls that no other call waits for."""
    warning: Callable[[str], None] = lambda _sentence: None
    stopped: Callable[[], bool] = lambda: False
    """Polled; once it returns True, the run ends in order and gives back what it holds."""
    searching: Watching = unwatched
    """Follows the search of the first plan, or ends it early with the best plan so far."""


@dataclass(frozen=True, slots=True)
class PlanRun:
    """The outcome of a run."""

    problem: Problem
    planned: Plan
    followed: FollowResult
    level_warnings: tuple[str, ...] = ()
    """Power levels of the plan that could not be set."""
    earlier: tuple[Run, ...] = ()
    """Calls that an earlier run has done, as far as it recorded where and when."""
    resumed_at_s: float | None = None
    """The time of the plan at which this run continued an earlier one; None: it continued none."""
    energy_j: float | None = None
    """The energy of the GPUs during the run, as counted by NVML; None if they were borrowed, elsewhere or not counted."""

    @property
    def ended_early(self) -> bool:
        """Whether the caller ended the run."""
        return self.followed.ended

    @property
    def complete(self) -> bool:
        """Whether every call was done."""
        return self.followed.executor.done == len(self.problem.calls)

    def figures(self) -> dict[str, Any]:
        """The figures as `gpuyard plan run --json` prints them."""
        executor, calls = self.followed.executor, len(self.problem.calls)
        makespan = max((one.end_s for one in (*self.earlier, *executor.runs)), default=0.0)
        # In a run that was ended early, most missing calls were just not reached.
        left = (
            executor.given_up
            if self.ended_early
            else set(range(calls)) - {one.call for one in executor.runs} - executor.restored
        )
        planned_s = self.planned.makespan_s
        counts = asdict(executor.counts)
        if not self.problem.preload:
            del counts["hidden_switch_s"]
        return {
            "calls": calls,
            "done": executor.done,
            "done_before": len(executor.restored),
            **({} if self.resumed_at_s is None else {"resumed_at_s": self.resumed_at_s}),
            "planned_makespan_s": planned_s,
            "makespan_s": makespan,
            "gap": (makespan / planned_s - 1 if planned_s else 0.0) if self.complete else None,
            **({} if self.energy_j is None else {"energy_j": self.energy_j}),
            "planned_switches": measure(self.problem, self.planned).switches,
            **counts,
            "ended_by_hand": self.ended_early,
            "failed": [{"call": self.problem.name_of(call), "why": executor.why_not(call)} for call in sorted(left)],
            "losses": self.followed.losses,
        }

    def actual(self) -> bytes:
        """The actual runs as a plan file, with the measured times."""
        executor = self.followed.executor
        loads = executor.loads if self.problem.preload else ()
        return actual_plan(self.problem, [*self.earlier, *executor.runs], loads, ended_by_hand=self.ended_early)


def run_plan(
    problem: Problem | AnyPath,
    plan: Plan | AnyPath | None = None,
    *,
    runtimes: Runtimes | AnyPath | None = None,
    on: On = On.LOCAL,
    ray_address: str = "auto",
    strategy: str = DEFAULT_STRATEGY,
    seconds: float = 10.0,
    seed: int = 0,
    idle_rate: float | None = None,
    retries: int = 2,
    speed_up: float = 1.0,
    borrow: Borrowing | None = None,
    resume: AnyPath | None = None,
    times: AnyPath | None = None,
    watch: RunWatch | None = None,
) -> PlanRun:
    """Follow a plan with workers that load, hold, unload and call models.

    Without `plan` one is made first, as by `solve`: with `strategy`, within `seconds`. When the plan no longer holds, the
    remaining work is replanned by `heft_affinity`, or by `strategy` if that is as fast (`REPLANS`).
    `idle_rate` determines the weights of the strategy `pareto`. `runtimes` is a file that says how each model is run; without it all models sleep for the planned time
    divided by `speed_up`. `borrow` obtains GPUs and their workers, for example from a cluster that may reclaim them; without it the GPUs
    of this machine, or of the Ray cluster, are used. `resume` is a file in which every call and load is recorded as it
    ends; the calls that it already contains are not run again. `times` is such a file whose measured durations of nodes
    and load times replace those of the problem.
    """
    watch = watch or RunWatch()
    seconds, _, seed, _ = check_search(seconds=seconds, seed=seed)
    retries, speed_up = argument("retries", retries, CallRetries), argument("speed_up", speed_up, SpeedUp)
    problem = problem if isinstance(problem, Problem) else read(problem)
    how = runtimes if isinstance(runtimes, Runtimes) else runtimes_of(problem, runtimes, here=on is On.LOCAL)
    if speed_up != 1.0 and not how.are_virtual:
        raise WrongInput("--speed-up works only with virtual runtimes.")
    if borrow is not None and on is On.RAY:
        raise WrongInput("--borrow uses GPUs of a scheduler, and --on ray those of the Ray cluster; omit one of them.")
    if resume is not None and on is On.RAY:
        raise WrongInput("--resume records results of workers of this machine; it does not work with --on ray.")
    if times is not None:
        problem = with_measured_times(problem, read_record(times))
    record = RunRecord() if resume is None else read_record(resume, may_be_missing=True)
    try:
        restored = record.done(problem)
    except WrongInput as error:
        raise WrongInput(f"{resume}: {error}") from None
    if borrow is not None:
        problem = in_blocks(problem)
    can_plan(strategy, problem)
    idle_rate = check_idle_rate(strategy, idle_rate)
    given = plan if plan is None or isinstance(plan, Plan) else valid_plan(plan, problem)
    replans = strategy if strategy in REPLANS else REPLANS[0]
    watch.preparing(replans if given is not None else strategy, problem)
    with ExitStack() as held:
        planned = given if given is not None else _first_plan(problem, strategy, seconds, seed, idle_rate, watch)
        replan = _solver(replans, seed, watch.stopped)
        problem = at_levels(problem, planned)
        watch.planned(problem, planned)
        if borrow is None:
            source: OwnGpus | BorrowedGpus = held.enter_context(closing(OwnGpus(len(problem.gpus))))
        else:
            source = held.enter_context(closing(borrow(problem, speed_up)))
            source.wait(watch.waits, watch.stopped)
        pool = held.enter_context(closing(_pool(on, ray_address, problem, how, source)))
        watch.opened()
        following = FollowOptions(
            problem,
            planned,
            how,
            pool,
            source,
            lambda rest: replan(rest, _thinking_s(rest) / speed_up),
            Rules(retries=retries),
            speed_up,
            watch.progress,
            outcome=watch.result,
            ended=watch.stopped,
            restored=restored,
            clock_s=record.clock_s,
            record=None if resume is None else held.enter_context(closing(RecordWriter(resume, problem, record))),
        )
        levels = _levels(problem, planned, pool, watch.warning, virtual=how.are_virtual)
        if levels is not None:
            held.callback(levels.close)
            following = replace(following, begins=levels.begins, leaves=levels.leaves)
        meter = None
        if isinstance(pool, LocalPool) and isinstance(source, OwnGpus) and not how.are_virtual:
            meter = meter_here(pool.devices)
        followed = follow(following)
        energy_j = None if meter is None else meter.joules()
        troubles = [] if levels is None else levels.troubles
        troubles += pool.troubles if isinstance(pool, RemotePool) else []
    if followed.ended and resume is not None:
        watch.warning(
            f"The calls that were done are recorded in {shown_path(str(resume))}; the same command continues the run."
        )
    return PlanRun(
        problem,
        planned,
        followed,
        tuple(troubles),
        tuple(record.runs(problem)),
        record.clock_s if restored else None,
        energy_j,
    )


def runtimes_of(problem: Problem, path: AnyPath | None, *, here: bool) -> Runtimes:
    """Read the file of runtimes; None: all virtual. `here`: on this machine, so a missing program is an error."""
    if path is None:
        return all_virtual(problem)
    path = path_of("runtimes", path)
    try:
        said = parse(read_file(path)).value
        return read_runtimes(said, problem, [str(path.resolve().parent), str(Path.cwd())], here=here)
    except OSError as error:
        raise WrongInput(f"{path}: {error.strerror}.") from None
    except WrongInput as error:
        raise WrongInput(f"{path}: {error}") from None


def _first_plan(
    problem: Problem, strategy: str, seconds: float, seed: int, idle_rate: float | None, watch: RunWatch
) -> Plan:
    """Plan within a number of seconds, as `solve` does."""
    prepare(strategy)
    solver, began = strategy_named(strategy), monotonic()
    with watch.searching(strategy, lower_bound(problem).seconds) as search:
        budget = within(
            seconds,
            lambda: monotonic() - began,
            seed=seed,
            stopped=lambda: search.stopped() or watch.stopped(),
            better=search.better,
        )
        plan = solver(problem, replace(budget, idle_rate=idle_rate))
    return urgent_first(problem, plan, reorder=strategy != WEIGHTED)


def _solver(name: str, seed: int, stopped: Callable[[], bool]) -> Callable[[Problem, float], Plan]:
    """Return a function that plans a problem within a number of seconds; 0: one round."""
    prepare(name)
    solve = strategy_named(name)

    def planned(problem: Problem, seconds: float) -> Plan:
        began = monotonic()

        if not seconds:
            return solve(problem, SearchBudget(seed, rounds=1))
        made = solve(problem, within(seconds, lambda: monotonic() - began, seed=seed, stopped=stopped))
        return urgent_first(problem, made)

    return planned


def _thinking_s(rest: Problem) -> float:
    """Seconds for replanning: a hundredth of the least duration of the remaining work, between 0.05 and 3."""
    return min(3.0, max(0.05, 0.01 * rest.work_s / len(rest.gpus)))


def _pool(on: On, ray_address: str, problem: Problem, how: Runtimes, source: OwnGpus | BorrowedGpus) -> Pool:
    """Open the pool of workers."""
    widest = max(model.gpus for model in problem.models)
    if on is On.RAY:
        if find_spec("ray") is None:
            raise WrongInput("--on ray needs Ray: pip install 'gpuyard[ray]'.")
        from gpuyard.plan.workers.ray_actors import RayPool

        return RayPool(ray_address, len(problem.gpus), widest, how.of_model)
    if not isinstance(source, OwnGpus):
        return source.pool(how)
    return LocalPool(_devices(len(problem.gpus), virtual=how.are_virtual), widest, how.of_model)


def _devices(count: int, *, virtual: bool) -> list[str]:
    """Return the CUDA device names: those that this process may see, or all from 0."""
    said = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    visible = [name.strip() for name in said.split(",") if name.strip()]
    if not visible or virtual:
        return [str(number) for number in range(count)]
    if len(visible) < count:
        raise WrongInput(f"The file has {count} GPUs, but CUDA_VISIBLE_DEVICES lists {len(visible)}: {said}.")
    return visible[:count]


def _levels(
    problem: Problem, planned: Plan, pool: Pool, warn: Callable[[str], None], *, virtual: bool
) -> PlannedLevels | None:
    """Return the setter of the plan's power levels; None if the plan has none, or they cannot be set."""
    if planned.level is None or virtual:
        return None
    if isinstance(pool, RemotePool):
        return PlannedLevels(problem, planned, [str(gpu) for gpu in range(len(problem.gpus))], RemoteClocks(pool))
    try:
        if not isinstance(pool, LocalPool):
            raise NoClocks("The power levels of the plan are not applied on a Ray cluster.")
        return PlannedLevels(problem, planned, pool.devices, clocks_here())
    except NoClocks as error:
        warn(str(error))
        return None
