"""`gpuyard plan run`: follow a plan with workers that hold models, and say what came of it."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import ServerOption, TokenOption, finite, json_option
from gpuyard.cli.output.progress import WaitProgress as TaskProgress
from gpuyard.cli.plan.ending import Ending
from gpuyard.cli.plan.files import File, Gpus, MultiModel, Seed, can_be_written, open_problem, write
from gpuyard.cli.plan.outcome import Results, RunProgress, complain, figures_for_people
from gpuyard.cli.plan.planning import ready
from gpuyard.plan.workers import On

if TYPE_CHECKING:
    from gpuyard.plan.planner.plan import Plan
    from gpuyard.plan.planner.problem import Problem
    from gpuyard.plan.workers.leases import YardGpus
    from gpuyard.plan.workers.running import Borrowing

INTERRUPTED = 130


def run(
    file: File,
    plan: Annotated[Path | None, typer.Option("--plan", metavar="PLAN", help="The plan to follow, as `solve --out` writes it (default: one is made now).")] = None,
    runtimes: Annotated[Path | None, typer.Option("--runtimes", metavar="FILE", help="How each model is run, and what requests put in (default: all sleep as long as was planned).")] = None,
    on: Annotated[On, typer.Option("--on", help="Workers as processes of this machine, or as actors of a Ray cluster.")] = On.LOCAL,
    ray_address: Annotated[str, typer.Option("--ray-address", metavar="ADDRESS", help="With --on ray: the cluster.")] = "auto",
    strategy: Annotated[str, typer.Option("--strategy", metavar="NAME", help="How to plan, now and again; see the manual.")] = "heft_affinity",
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", callback=finite, help="How long to plan first, without --plan.")] = 10.0,
    seed: Seed = 0,
    retries: Annotated[int, typer.Option("--retries", metavar="N", help="A call that fails is run again so often.")] = 2,
    speed_up: Annotated[float, typer.Option("--speed-up", metavar="X", callback=finite, help="Sleep so many times shorter; for virtual runtimes only.")] = 1.0,
    gpus: Gpus = None,
    multi_model: MultiModel = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write what happened to this file, in the form of a plan.")] = None,
    results: Annotated[Path | None, typer.Option("--results", metavar="FILE", help="Write the results of last nodes to this file, a line of JSON each.")] = None,
    cluster: Annotated[bool | None, typer.Option("--yard/--no-yard", help="Borrow the GPUs from the yard, and give them back when it wants them (default: where GPUYARD_SERVER is set).")] = None,
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: Annotated[bool, json_option("Print the figures as one JSON object.")] = False,
) -> None:  # fmt: skip
    """Follow a plan: workers load, hold, unload and call models. Exit code 1 where some call could not be done."""
    from gpuyard.cli.output.printing import print_json, print_pairs
    from gpuyard.plan.planner.api import valid_plan
    from gpuyard.plan.workers.running import RunWatch, run_plan, runtimes_of

    problem = open_problem(file, gpus, multi_model)
    how = runtimes_of(problem, runtimes, here=on is On.LOCAL)
    can_be_written(out, results, beside=[file, plan, runtimes])
    given = None if plan is None else valid_plan(plan, problem)
    with Ending() as ending, ExitStack() as held:
        kept, progress, waiting = Results(results, problem), RunProgress(quiet=as_json), TaskProgress(quiet=as_json)

        def planned(_: "Problem", made: "Plan") -> None:
            """From here on things are held that have to be given back."""
            ending.from_now_on_noted()
            for each in (kept, waiting, progress):
                held.enter_context(each)
            progress.follows(made)

        def opened() -> None:
            waiting.clear()
            ending.listen()

        done = run_plan(
            problem,
            given,
            runtimes=how,
            on=on,
            ray_address=ray_address,
            strategy=strategy,
            seconds=seconds,
            seed=seed,
            retries=retries,
            speed_up=speed_up,
            borrow=_borrowing(on, cluster, server, token),
            watch=RunWatch(
                ready,
                planned,
                waiting.tell,
                opened,
                progress.tell,
                kept.keep,
                _warn,
                lambda: ending.asked,
            ),
        )
    figures = done.figures()
    written = out if done.followed.executor.runs or not done.ended_early else None
    if written is not None:
        write(written, done.actual())
    if as_json:
        print_json(figures)
    else:
        if not done.ended_early:
            print_pairs(figures_for_people(figures))
        complain(figures, written, done.level_warnings)
    if done.ended_early:
        raise typer.Exit(INTERRUPTED)
    if not done.complete:
        raise typer.Exit(1)


def _warn(sentence: str) -> None:
    print(f"gpuyard: {sentence}", file=sys.stderr)


def _borrowing(on: On, cluster: bool | None, server: str | None, token: str | None) -> "Borrowing | None":
    """GPUs of a yard, where they are asked for or GPUYARD_SERVER is set."""
    if cluster is None:
        cluster = on is On.LOCAL and (server is not None or bool(os.environ.get("GPUYARD_SERVER")))
    if not cluster:
        return None

    def borrow(problem: "Problem", speed_up: float) -> "YardGpus":
        from gpuyard.cli.input.options import client
        from gpuyard.plan.workers.leases import YardGpus

        return YardGpus(client(server, token), problem.name, len(problem.gpus), speed_up)

    return borrow
