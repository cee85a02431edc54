"""`gpuyard plan run`: follow a plan with workers that hold models, and say what came of it."""

from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.options import Server, Token, finite, json_option
from gpuyard.cli.plan.ending import Ending
from gpuyard.cli.plan.files import File, Gpus, HowMany, Seed, WrongFile, can_be_written, open_plan, open_problem, write
from gpuyard.cli.plan.outcome import Progress, Results, complain, figures_for_people, figures_of
from gpuyard.cli.plan.places import On, lender_of, levels_of, pool_of, wait_for_gpus
from gpuyard.cli.plan.planning import ready
from gpuyard.core.domain.errors import WrongInput

if TYPE_CHECKING:
    from gpuyard.plan.planner.plan import Plan
    from gpuyard.plan.planner.problem import Problem
    from gpuyard.plan.workers.settings import Runtimes

INTERRUPTED = 130


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
    residents: HowMany = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write what happened to this file, in the form of a plan.")] = None,
    results: Annotated[Path | None, typer.Option("--results", metavar="FILE", help="Write the results of last nodes to this file, a line of JSON each.")] = None,
    yard: Annotated[bool | None, typer.Option("--yard/--no-yard", help="Borrow the GPUs from the yard, and give them back when it wants them (default: where GPUYARD_SERVER is set).")] = None,
    server: Server = None,
    token: Token = None,
    as_json: Annotated[bool, json_option("Print the figures as one JSON object.")] = False,
) -> None:  # fmt: skip
    """Follow a plan: workers load, hold, unload and call models. Exit code 1 where some call could not be done."""
    from gpuyard.cli.printing import print_json, print_pairs
    from gpuyard.plan.executor.executor import Rules
    from gpuyard.plan.planner.strategies import can_plan
    from gpuyard.plan.workers.follow import Following, follow
    from gpuyard.plan.workers.plans import actual_of, at_levels

    problem = open_problem(file, gpus, residents)
    how = _runtimes(runtimes, problem, here=on is On.LOCAL)
    if speed_up != 1.0 and not how.are_virtual:
        raise WrongInput("--speed-up is for virtual runtimes: what really computes takes its time.")
    can_be_written(out, results, beside=[file, plan, runtimes])
    can_plan(strategy, problem)
    given = None if plan is None else _read_plan(plan, problem)
    with Ending() as ending, ExitStack() as held:
        solver = _solver(strategy, seed, ending)
        planned = given or solver(problem, seconds)
        problem = at_levels(problem, planned)
        ending.from_now_on_noted()
        kept = held.enter_context(Results(results, problem))
        lender = held.enter_context(closing(lender_of(on, yard, server, token, problem, speed_up)))
        wait_for_gpus(lender, ending, quiet=as_json)
        pool = held.enter_context(closing(pool_of(on, ray_address, problem, how, lender)))
        ending.listen()
        progress = held.enter_context(Progress(planned, quiet=as_json))
        following = Following(
            problem,
            planned,
            how,
            pool,
            lender,
            lambda rest: solver(rest, _thinking_s(rest) / speed_up),
            Rules(retries=retries),
            speed_up,
            progress.tell,
            outcome=kept.keep,
            ended=lambda: ending.asked,
        )
        levels = levels_of(problem, planned, pool, virtual=how.are_virtual)
        if levels is not None:
            held.callback(levels.close)
            following = replace(following, begins=levels.begins, leaves=levels.leaves)
        followed = follow(following)
    figures = figures_of(problem, planned, followed)
    written = out if followed.executor.runs or not followed.ended else None
    if written is not None:
        write(written, actual_of(problem, followed.executor.runs, ended_by_hand=followed.ended))
    if as_json:
        print_json(figures)
    else:
        if not followed.ended:
            print_pairs(figures_for_people(figures))
        complain(figures, written, levels.troubles if levels is not None else ())
    if followed.ended:
        raise typer.Exit(INTERRUPTED)
    if figures["done"] < figures["calls"]:
        raise typer.Exit(1)


Solver = Callable[["Problem", float], "Plan"]
"""Plans a problem within so many seconds."""


def _solver(name: str, seed: int, ending: Ending) -> Solver:
    from gpuyard.plan.planner.strategies import Budget, strategy

    solve = strategy(name)
    ready(solve)

    def within(problem: "Problem", seconds: float) -> "Plan":
        began = monotonic()

        def used() -> float:
            return (monotonic() - began) / seconds

        def keep_going() -> bool:
            return not ending.asked and used() < 1.0

        return solve(problem, Budget(seed, None, keep_going, used) if seconds else Budget(seed, rounds=1))

    return within


def _thinking_s(rest: "Problem") -> float:
    """How long to plan what is left: a hundredth of what that takes at least, and no longer than a few seconds."""
    return min(3.0, max(0.05, 0.01 * rest.work_s / len(rest.gpus)))


def _read_plan(path: Path, problem: "Problem") -> "Plan":
    from gpuyard.plan.planner.check import check

    read = open_plan(path, problem)
    faults = [*read.faults, *([] if read.faults else check(problem, read.plan, at_most=1))]
    if faults:
        raise WrongFile(f"{path}: {faults[0]}")
    return read.plan


def _runtimes(path: Path | None, problem: "Problem", *, here: bool) -> "Runtimes":
    from gpuyard.plan.planner.parse import parsed
    from gpuyard.plan.workers.settings import all_virtual, read_runtimes

    if path is None:
        return all_virtual(problem)
    try:
        said = parsed(path.read_bytes())
        return read_runtimes(said, problem, [str(path.resolve().parent), str(Path.cwd())], here=here)
    except OSError as error:
        raise WrongFile(f"{path}: {error.strerror}.") from None
    except WrongInput as error:
        raise WrongFile(f"{path}: {error}") from None
