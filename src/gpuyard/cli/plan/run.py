"""`gpuyard plan run`: follow a plan with workers that hold models, and say what came of it."""

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.options import Server, Token, finite, json_option
from gpuyard.cli.plan.files import File, Gpus, Seed, WrongFile, can_be_written, open_plan, open_problem, write
from gpuyard.cli.plan.planning import ready
from gpuyard.domain.errors import WrongInput

if TYPE_CHECKING:
    from gpuyard.planner.plan import Plan
    from gpuyard.planner.problem import Problem
    from gpuyard.workers.follow import Followed, OwnGpus
    from gpuyard.workers.leases import YardGpus
    from gpuyard.workers.pool import Pool
    from gpuyard.workers.power import PlannedLevels
    from gpuyard.workers.settings import Runtimes

SHOWN = 10
"""So many calls that failed are named."""
EVERY_S = 10.0
"""Where nobody looks at a terminal, progress is told so often."""


class On(StrEnum):
    """Where workers live."""

    LOCAL = "local"
    RAY = "ray"


def run(
    file: File,
    plan: Annotated[Path | None, typer.Option("--plan", metavar="PLAN", help="The plan to follow, as `solve --out` writes it (default: one is made now).")] = None,
    runtimes: Annotated[Path | None, typer.Option("--runtimes", metavar="FILE", help="How each model is run, and what requests put in (default: all sleep as long as was planned).")] = None,
    on: Annotated[On, typer.Option("--on", help="Workers as processes of this machine, or as actors of a Ray cluster.")] = On.LOCAL,
    ray_address: Annotated[str, typer.Option("--ray-address", metavar="ADDRESS", help="With --on ray: the cluster.")] = "auto",
    strategy: Annotated[str, typer.Option("--strategy", metavar="NAME", help="How to plan, now and again; see the manual.")] = "heft_affinity",
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", callback=finite, min=0.0, help="How long to plan first, without --plan.")] = 10.0,
    seed: Seed = 0,
    retries: Annotated[int, typer.Option("--retries", metavar="N", min=0, help="A call that fails is run again so often.")] = 2,
    speed_up: Annotated[float, typer.Option("--speed-up", metavar="X", callback=finite, min=0.001, help="Sleep so many times shorter; for virtual runtimes only.")] = 1.0,
    gpus: Gpus = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write what happened to this file, in the form of a plan.")] = None,
    results: Annotated[Path | None, typer.Option("--results", metavar="FILE", help="Write the results of last nodes to this file, a line of JSON each.")] = None,
    yard: Annotated[bool | None, typer.Option("--yard/--no-yard", help="Borrow the GPUs from the yard, and give them back when it wants them (default: where GPUYARD_SERVER is set).")] = None,
    server: Server = None,
    token: Token = None,
    as_json: Annotated[bool, json_option("Print the figures as one JSON object.")] = False,
) -> None:  # fmt: skip
    """Follow a plan: workers load, hold, unload and call models. Exit code 1 where some call could not be done."""
    from gpuyard.cli.printing import print_json, print_pairs
    from gpuyard.executor.executor import Rules
    from gpuyard.workers.follow import Following, follow
    from gpuyard.workers.plans import at_levels

    problem = open_problem(file, gpus)
    how = _runtimes(runtimes, problem)
    if speed_up != 1.0 and not how.are_virtual:
        raise WrongInput("--speed-up is for virtual runtimes: what really computes takes its time.")
    can_be_written(file, out, results)
    solver = _solver(strategy, seed)
    planned = _plan(plan, problem, solver, seconds)
    problem = at_levels(problem, planned)
    lender = _lender(on, yard, server, token, problem, speed_up, quiet=as_json)
    try:
        pool = _pool(on, ray_address, problem, how, lender)
    except BaseException:
        lender.close()
        raise
    levels = _levels(problem, planned, pool, virtual=how.are_virtual)
    kept = _Results(results, problem)
    progress = _Progress(planned, quiet=as_json)
    try:
        followed = follow(
            Following(
                problem,
                planned,
                how,
                pool,
                lender,
                lambda rest: solver(rest, _thinking_s(rest) / speed_up),
                Rules(retries=retries),
                speed_up,
                progress.tell,
                begins=levels.begins if levels else lambda _call, _gpus: None,
                leaves=levels.leaves if levels else lambda _gpu: None,
                outcome=kept.keep,
            )
        )
    finally:
        progress.clear()
        pool.close()
        if levels is not None:
            levels.close()
        lender.close()
        kept.close()
    figures = _figures(problem, planned, followed)
    if out is not None:
        from gpuyard.workers.plans import actual_of

        write(out, actual_of(problem, followed.executor.runs))
    if as_json:
        print_json(figures)
    else:
        print_pairs((name, value) for name, value in figures.items() if name not in {"failed", "losses"})
        _complain(figures)
    for trouble in levels.troubles if levels is not None else ():
        print(f"gpuyard: {trouble}", file=sys.stderr)
    if figures["done"] < figures["calls"]:
        raise typer.Exit(1)


Solver = Callable[["Problem", float], "Plan"]
"""Plans a problem within so many seconds."""


def _solver(name: str, seed: int) -> Solver:
    from gpuyard.planner.strategies import Budget, strategy

    solve = strategy(name)
    ready(solve)

    def within(problem: "Problem", seconds: float) -> "Plan":
        began = monotonic()

        def used() -> float:
            return (monotonic() - began) / seconds

        return solve(problem, Budget(seed, None, lambda: used() < 1.0, used) if seconds else Budget(seed, rounds=1))

    return within


def _thinking_s(rest: "Problem") -> float:
    """How long to plan what is left: a hundredth of what that takes at least, and no longer than a few seconds."""
    return min(3.0, max(0.05, 0.01 * rest.work_s / len(rest.gpus)))


def _plan(path: Path | None, problem: "Problem", solver: Solver, seconds: float) -> "Plan":
    from gpuyard.planner.check import check

    if path is None:
        return solver(problem, seconds)
    read = open_plan(path, problem)
    faults = [*read.faults, *([] if read.faults else check(problem, read.plan, at_most=1))]
    if faults:
        raise WrongFile(f"{path}: {faults[0]}")
    return read.plan


def _runtimes(path: Path | None, problem: "Problem") -> "Runtimes":
    from gpuyard.workers.settings import all_virtual, read_runtimes

    if path is None:
        return all_virtual(problem)
    import yaml

    try:
        said = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise WrongFile(f"{path}: {error.strerror}.") from None
    except yaml.YAMLError as error:
        raise WrongFile(f"{path}: {' '.join(str(error).split())}.") from None
    try:
        return read_runtimes(said, problem, [str(path.resolve().parent), str(Path.cwd())])
    except WrongInput as error:
        raise WrongFile(f"{path}: {error}") from None


def _lender(
    on: On,
    yard: bool | None,
    server: str | None,
    token: str | None,
    problem: "Problem",
    speed_up: float,
    *,
    quiet: bool,
) -> "OwnGpus | YardGpus":
    """Who the GPUs are from: a yard, or nobody."""
    import os

    from gpuyard.workers.follow import OwnGpus

    if yard is None:
        yard = on is On.LOCAL and (server is not None or bool(os.environ.get("GPUYARD_SERVER")))
    if not yard:
        return OwnGpus(len(problem.gpus))
    if on is On.RAY:
        raise WrongInput(
            "--yard lends GPUs of this machine; with --on ray they are the cluster's: leave one of them out."
        )
    from gpuyard.cli.options import client
    from gpuyard.cli.progress import Progress
    from gpuyard.workers.leases import YardGpus

    gpus = YardGpus(client(server, token), problem.name, len(problem.gpus), speed_up)
    try:
        with Progress(quiet=quiet) as progress:
            gpus.wait(progress.tell)
    except BaseException:
        gpus.close()
        raise
    return gpus


def _pool(on: On, ray_address: str, problem: "Problem", how: "Runtimes", lender: "OwnGpus | YardGpus") -> "Pool":
    widest = max(model.gpus for model in problem.models)
    if on is On.RAY:
        from importlib.util import find_spec

        if find_spec("ray") is None:
            raise WrongInput("--on ray needs Ray: pip install 'gpuyard[ray]'.")
        from gpuyard.workers.ray_actors import RayPool

        return RayPool(ray_address, len(problem.gpus), widest, how.of_model)
    from gpuyard.workers.follow import OwnGpus
    from gpuyard.workers.local import LocalPool

    if not isinstance(lender, OwnGpus):
        return LocalPool(lender.devices, widest, how.of_model)
    return LocalPool(_devices(len(problem.gpus), virtual=how.are_virtual), widest, how.of_model)


def _levels(problem: "Problem", planned: "Plan", pool: "Pool", *, virtual: bool) -> "PlannedLevels | None":
    """Who sets the cards to the power levels of the plan; None where it chose none, or there are no cards here."""
    from gpuyard.workers.local import LocalPool

    if planned.level is None or virtual or not isinstance(pool, LocalPool):
        return None
    import pynvml  # type: ignore[import-untyped]

    from gpuyard.workers.clocks import Clocks
    from gpuyard.workers.power import PlannedLevels

    try:
        pynvml.nvmlInit()
        return PlannedLevels(problem, planned, pool.devices, Clocks(pynvml))
    except pynvml.NVMLError as error:
        print(f"gpuyard: The power levels of the plan are not applied: {error}.", file=sys.stderr)
        return None


def _devices(count: int, *, virtual: bool) -> list[str]:
    """What CUDA calls the GPUs: those that this process may see, or all from 0 on."""
    import os

    said = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    visible = [name.strip() for name in said.split(",") if name.strip()]
    if not visible or virtual:
        return [str(number) for number in range(count)]
    if len(visible) < count:
        raise WrongInput(f"The file has {count} GPUs, and CUDA_VISIBLE_DEVICES names {len(visible)}: {said}.")
    return visible[:count]


def _figures(problem: "Problem", planned: "Plan", followed: "Followed") -> dict[str, Any]:
    from dataclasses import asdict

    from gpuyard.planner.plan import measure

    executor = followed.executor
    makespan = max((one.end_s for one in executor.runs), default=0.0)
    failed = [
        {"call": problem.name_of(call), "why": executor.why_not(call)}
        for call in sorted(set(range(len(problem.calls))) - {one.call for one in executor.runs})
    ]
    return {
        "calls": len(problem.calls),
        "done": executor.done,
        "planned_makespan_s": planned.makespan_s,
        "makespan_s": makespan,
        "gap": makespan / planned.makespan_s - 1 if planned.makespan_s else 0.0,
        "planned_switches": measure(problem, planned).switches,
        **asdict(executor.tally),
        "failed": failed,
        "losses": followed.losses,
    }


def _complain(figures: dict[str, Any]) -> None:
    for why in figures["losses"][:SHOWN]:
        print(f"gpuyard: {why}.", file=sys.stderr)
    for one in figures["failed"][:SHOWN]:
        print(f"gpuyard: {one['call']} was not done: {one['why']}.", file=sys.stderr)
    if len(figures["failed"]) > SHOWN:
        print(f"gpuyard: And {len(figures['failed']) - SHOWN:,} more.", file=sys.stderr)


class _Results:
    """Results that no other node waits for, a line of JSON each as they come."""

    def __init__(self, path: Path | None, problem: "Problem") -> None:
        self._problem = problem
        self._file: IO[bytes] | None = None if path is None else path.open("wb", buffering=0)

    def keep(self, call: int, result: object) -> None:
        """One more."""
        if self._file is None:
            return
        import msgspec

        request, _, node = self._problem.name_of(call).rpartition("/")
        line = {"request": request, "node": node, "result": result}
        self._file.write(msgspec.json.encode(line, enc_hook=str) + b"\n")

    def close(self) -> None:
        """No more."""
        if self._file is not None:
            self._file.close()


class _Progress:
    """How far it is and how late, on standard error: one line on a terminal, now and then a line elsewhere.

    Late is how long ago as many calls should have been done, by the plan that was made first.
    """

    def __init__(self, planned: "Plan", *, quiet: bool) -> None:
        self._ends = sorted(planned.end.tolist())
        self._quiet = quiet
        self._is_terminal = sys.stderr.isatty()
        self._told = monotonic()

    def tell(self, followed: "Followed") -> None:
        """If it is time to."""
        pause = 0.2 if self._is_terminal else EVERY_S
        if self._quiet or monotonic() - self._told < pause:
            return
        self._told = monotonic()
        executor = followed.executor
        due_s = self._ends[executor.done] if executor.done < len(self._ends) else self._ends[-1]
        late_s = max(0.0, followed.now_s - due_s)
        total = self._ends[-1]
        words = (
            f"{executor.done:,} of {len(self._ends):,} calls, {followed.now_s:,.0f} s of {total:,.0f} s, "
            f"{late_s:,.1f} s late ({late_s / total:.1%}), {executor.tally.stolen:,} stolen"
        )
        if self._is_terminal:
            print(f"\r\x1b[K{words}", end="", file=sys.stderr, flush=True)
        else:
            print(f"gpuyard: {words}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Make room on the terminal."""
        if self._is_terminal and not self._quiet:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
