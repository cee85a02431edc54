"""`gpuyard plan compare`: solve a problem with several strategies and compare the plans."""

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import json_option
from gpuyard.cli.plan.files import File, Gpus, MultiModel, PlanSeedOption, Preload, can_be_written, open_problem
from gpuyard.cli.plan.first_use import choose_code
from gpuyard.cli.plan.pictures import Gantt, check_gantt_format, draw_gantt
from gpuyard.cli.plan.planning import RoundsOption, SecondsOption, ready, watched
from gpuyard.core.domain.errors import WrongInput

if TYPE_CHECKING:
    from gpuyard.plan.planner import Solution
    from gpuyard.plan.planner.problem import Problem


def compare(
    file: File,
    strategies: Annotated[str | None, typer.Option("--strategies", metavar="NAME,…", help="Strategies to compare (default: all that can plan a problem of this size).")] = None,
    seconds: SecondsOption = 10.0,
    seed: PlanSeedOption = 0,
    rounds: RoundsOption = None,
    gpus: Gpus = None,
    multi_model: MultiModel = None,
    preload: Preload = None,
    gantt: Gantt = None,
    as_json: Annotated[bool, json_option("Print the figures as one JSON object.")] = False,
) -> None:  # fmt: skip
    """Plan a file with several strategies and compare the results."""
    from gpuyard.plan import planner
    from gpuyard.plan.planner.api import check_search
    from gpuyard.plan.planner.bounds import lower_bound
    from gpuyard.plan.planner.strategies import STRATEGIES, check_name

    names = list(dict.fromkeys(name.strip() for name in (strategies or "").split(",") if name.strip()))
    if strategies is not None and not names:
        raise WrongInput("--strategies is empty; omit it to compare all strategies.")
    for name in names:
        check_name(name)  # report an unknown strategy before reading files
    check_search(seconds=seconds, rounds=rounds, seed=seed)
    if gantt is not None:
        check_gantt_format(gantt)
    can_be_written(gantt, beside=[file])
    problem = open_problem(file, gpus, multi_model, preload)
    choose_code(problem, rounds)
    for name in names or STRATEGIES:
        with suppress(WrongInput):
            ready(name, problem)
    made = planner.compare(
        problem, names or None, seconds=seconds, rounds=rounds, seed=seed, watching=watched, left_out=_left_out
    )
    bound = max((one.lower_bound_s for one in made.values()), default=lower_bound(problem).seconds)
    _print(problem, made, bound, as_json=as_json)
    if gantt is not None:
        draw_gantt(gantt, problem, [(name, one.plan) for name, one in made.items()], bound)
    for name, one in made.items():
        for fault in one.faults:
            print(f"{name}: {fault}", file=sys.stderr)
    if any(one.faults for one in made.values()):
        raise typer.Exit(1)


def _left_out(name: str, why: WrongInput) -> None:
    print(f"{name} is omitted: {why}", file=sys.stderr)


def _print(problem: "Problem", made: "dict[str, Solution]", bound: float, *, as_json: bool) -> None:
    from gpuyard.cli.output.printing import print_json, print_table

    if as_json:
        print_json(
            {
                "instance": problem.name,
                "nodes": len(problem.calls),
                "gpus": len(problem.gpus),
                "lower_bound_s": bound,
                "strategies": {name: one.figures() for name, one in made.items()},
            }
        )
        return
    hidden = ("HIDDEN",) if problem.preload else ()
    names = ("STRATEGY", "MAKESPAN", "GAP", "SWITCHES", "SWITCHING", *hidden, "USED", "SPREAD", "PLANNED IN")
    rows = [
        (
            name,
            f"{one.makespan_s:,.2f}",
            f"{one.gap:.1%}",
            f"{one.measures.switches:,}",
            f"{one.measures.switch_time_s:,.0f}",
            *(f"{one.measures.hidden_switch_s or 0.0:,.0f}" for _ in hidden),
            f"{one.measures.utilization_mean:.1%}",
            f"{one.measures.utilization_spread:.1%}",
            f"{one.planning_s:.2f} s",
        )
        for name, one in made.items()
    ]
    print_table(names, rows, right=names[1:])
    print(f"{len(problem.calls):,} calls on {len(problem.gpus):,} GPUs; lower bound of the makespan: {bound:,.2f} s.")
    beside = ", HIDDEN those beside calls" if hidden else ""
    print(
        f"Seconds; SWITCHING is GPU-seconds of loading and unloading{beside}, SPREAD the busiest GPU minus the idlest."
    )
