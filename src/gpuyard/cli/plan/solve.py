"""`gpuyard plan solve`: make a plan, check it, and say what it is worth."""

from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from gpuyard.cli.options import finite, json_option
from gpuyard.cli.plan.energy import energy, with_levels
from gpuyard.cli.plan.files import File, Seed, open_problem, write
from gpuyard.cli.plan.pictures import Gantt, draw_gantt, gantt_ending


def solve(
    file: File,
    strategy: Annotated[str, typer.Option("--strategy", metavar="NAME", help="How to plan; see the manual.")] = "dynamic",
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", callback=finite, min=0.0, help="How long to search.")] = 10.0,
    seed: Seed = 0,
    rounds: Annotated[int | None, typer.Option("--rounds", metavar="N", min=1, help="Search so many rounds instead: the same plan on any machine.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the plan to this file.")] = None,
    slower: Annotated[float | None, typer.Option("--slower", metavar="PART", callback=finite, min=0.0, max=10.0, help="Use power levels for the least energy; the plan may take this much longer (0.05: 5 %, 0: no longer).")] = None,
    gantt: Gantt = None,
    as_json: Annotated[bool, json_option("Print the figures as one JSON object.")] = False,
) -> None:  # fmt: skip
    """Plan the workflows of a file for the shortest makespan."""
    from gpuyard.cli.printing import print_json, print_pairs
    from gpuyard.planner import strategies
    from gpuyard.planner.bounds import lower_bound
    from gpuyard.planner.check import check
    from gpuyard.planner.files import write_plan
    from gpuyard.planner.plan import measure

    solver = strategies.strategy(strategy)
    if gantt is not None:
        gantt_ending(gantt)
    problem = open_problem(file)
    began = perf_counter()
    until = float("inf") if rounds is not None else began + seconds
    used = (lambda: (perf_counter() - began) / seconds) if rounds is None and seconds else None
    plan = solver(problem, strategies.Budget(seed, rounds, lambda: perf_counter() < until, used))
    if slower is not None:
        plan = with_levels(problem, plan, slower)
    planning_s = perf_counter() - began
    faults = check(problem, plan)
    if out is not None:
        write(out, write_plan(problem, plan, strategy, planning_s))
    measures = asdict(measure(problem, plan))
    bound = max(lower_bound(problem).seconds, plan.proven_s)
    if gantt is not None:
        draw_gantt(gantt, problem, [(strategy, plan)], bound)
    figures: dict[str, Any] = {
        "makespan_s": measures.pop("makespan_s"),
        "lower_bound_s": bound,
        "gap": plan.makespan_s / bound - 1 if bound else 0.0,
        **measures,
        **energy(problem, plan),
        "strategy": strategy,
        "planning_s": planning_s,
        "valid": not faults,
    }
    if as_json:
        print_json(figures)
    else:
        print_pairs(figures.items())
    assert not faults, faults
