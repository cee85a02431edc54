"""`gpuyard plan run`: execute a plan with workers that hold models, and report the result."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import ServerOption, TokenOption, finite, json_option
from gpuyard.cli.output.progress import WaitProgress as TaskProgress
from gpuyard.cli.plan.borrowing import (
    BorrowOption,
    HoldClassOption,
    HoldPriorityOption,
    LeaveFreeOption,
    ListenOption,
    WorkerPythonOption,
    borrow_options,
    borrowing,
)
from gpuyard.cli.plan.files import File, Gpus, MultiModel, PlanSeedOption, Preload, can_be_written, open_problem, write
from gpuyard.cli.plan.first_use import choose_code
from gpuyard.cli.plan.idle_rate import IdleRateOption, given_idle_rate
from gpuyard.cli.plan.interrupts import InterruptGuard
from gpuyard.cli.plan.outcome import Results, RunProgress, complain, figures_for_people
from gpuyard.cli.plan.planning import ready, watched
from gpuyard.core.domain.values import TaskClass
from gpuyard.plan.planner.default_strategy import DEFAULT_STRATEGY
from gpuyard.plan.workers import On

if TYPE_CHECKING:
    from gpuyard.plan.planner.plan import Plan
    from gpuyard.plan.planner.problem import Problem

INTERRUPTED = 130


def run(
    file: File,
    plan: Annotated[Path | None, typer.Option("--plan", metavar="PLAN", help="Plan to execute, as written by `solve --out` (default: make one now).")] = None,
    runtimes: Annotated[Path | None, typer.Option("--runtimes", metavar="FILE", help="How to run each model and the inputs of the requests (default: sleep for the planned time).")] = None,
    on: Annotated[On, typer.Option("--on", help="Run workers as processes of this machine or as actors of a Ray cluster.")] = On.LOCAL,
    ray_address: Annotated[str, typer.Option("--ray-address", metavar="ADDRESS", help="With --on ray: address of the cluster.")] = "auto",
    strategy: Annotated[str, typer.Option("--strategy", metavar="NAME", help="Strategy of the first planning, without --plan; see the manual.")] = DEFAULT_STRATEGY,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", callback=finite, help="Time limit of the first planning, without --plan.")] = 10.0,
    seed: PlanSeedOption = 0,
    idle_rate: IdleRateOption = None,
    retries: Annotated[int, typer.Option("--retries", metavar="N", help="Number of retries of a failed call.")] = 2,
    speed_up: Annotated[float, typer.Option("--speed-up", metavar="X", callback=finite, help="Divide all sleeps by this number; for virtual runtimes only.")] = 1.0,
    resume: Annotated[Path | None, typer.Option("--resume", metavar="FILE", help="Record calls in this file as they end; calls that it already contains are not run again.")] = None,
    times: Annotated[Path | None, typer.Option("--times", metavar="FILE", help="Plan with the call and load times that an earlier run recorded with --resume.")] = None,
    gpus: Gpus = None,
    multi_model: MultiModel = None,
    preload: Preload = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the executed plan to this file.")] = None,
    results: Annotated[Path | None, typer.Option("--results", metavar="FILE", help="Write the results of last nodes to this file, one JSON object per line.")] = None,
    cluster: BorrowOption = None,
    leave_free: LeaveFreeOption = None,
    task_class: HoldClassOption = TaskClass.BATCH,
    priority: HoldPriorityOption = None,
    listen: ListenOption = None,
    worker_python: WorkerPythonOption = None,
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: Annotated[bool, json_option("Print the figures as one JSON object.")] = False,
) -> None:  # fmt: skip
    """Execute a plan: workers load, call and unload models. Exit code 1 if a call failed."""
    from gpuyard.cli.output.printing import print_json, print_pairs
    from gpuyard.plan.planner.api import check_idle_rate, valid_plan
    from gpuyard.plan.planner.strategies import check_name

    check_name(strategy)  # report an unknown strategy before reading files
    problem = open_problem(file, gpus, multi_model, preload)
    idle = given_idle_rate(idle_rate, server, token)
    check_idle_rate(strategy, idle.rate)
    choose_code(problem, None)
    from gpuyard.plan.workers.run_record import read_record, with_measured_times
    from gpuyard.plan.workers.running import RunWatch, run_plan, runtimes_of

    borrow = borrowing(
        on,
        cluster,
        server,
        token,
        lambda: borrow_options(leave_free, task_class, priority, listen, worker_python),
        _warn,
    )
    how = runtimes_of(problem, runtimes, here=on is On.LOCAL)
    can_be_written(out, results, resume, beside=[file, plan, runtimes, times])
    if times is not None:
        problem = with_measured_times(problem, read_record(times))
    given = None if plan is None else valid_plan(plan, problem)
    with InterruptGuard() as interrupts, ExitStack() as held:
        kept, progress, waiting = Results(results, problem), RunProgress(quiet=as_json), TaskProgress(quiet=as_json)

        def planned(_: "Problem", made: "Plan") -> None:
            """Record signals from now on, because resources are held that have to be released."""
            interrupts.defer()
            for each in (kept, waiting, progress):
                held.enter_context(each)
            progress.follows(made)

        def opened() -> None:
            waiting.clear()
            interrupts.listen()

        done = run_plan(
            problem,
            given,
            runtimes=how,
            on=on,
            ray_address=ray_address,
            strategy=strategy,
            seconds=seconds,
            seed=seed,
            idle_rate=idle.rate,
            retries=retries,
            speed_up=speed_up,
            resume=resume,
            borrow=borrow,
            watch=RunWatch(
                ready,
                planned,
                waiting.tell,
                opened,
                progress.tell,
                kept.keep,
                _warn,
                lambda: interrupts.asked,
                watched,
            ),
        )
    figures = done.figures()
    if idle.rate is not None:
        figures |= {"idle_rate": idle.rate, "idle_rate_from": idle.source}
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
