"""`gpuyard plan solve`: make a plan, check it, and say what it is worth."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.options import finite, json_option
from gpuyard.cli.plan.energy import has_levels, with_levels
from gpuyard.cli.plan.files import File, Gpus, HowMany, Seed, can_be_written, open_problem, write
from gpuyard.cli.plan.pictures import Gantt, draw_gantt, gantt_ending
from gpuyard.cli.plan.planning import Effort, Rounds, Seconds, planned

if TYPE_CHECKING:
    from gpuyard.plan.planner.plan import Plan
    from gpuyard.plan.planner.problem import Problem


def solve(
    file: File,
    strategy: Annotated[str, typer.Option("--strategy", metavar="NAME", help="How to plan; see the manual.")] = "auto",
    seconds: Seconds = 10.0,
    seed: Seed = 0,
    rounds: Rounds = None,
    gpus: Gpus = None,
    residents: HowMany = None,
    slower: Annotated[float | None, typer.Option("--slower", metavar="PART", callback=finite, min=0.0, max=10.0, help="Use power levels for the least energy; the plan may take this much longer (0.05: 5 %, 0: no longer).")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the plan to this file.")] = None,
    gantt: Gantt = None,
    as_json: Annotated[bool, json_option("Print the figures as one JSON object.")] = False,
) -> None:  # fmt: skip
    """Plan the workflows of a file for the shortest makespan."""
    from gpuyard.cli.printing import print_json
    from gpuyard.plan.planner import strategies
    from gpuyard.plan.planner.bounds import lower_bound
    from gpuyard.plan.planner.files import write_plan

    strategies.strategy(strategy)  # what can not be is said before anything is read
    if gantt is not None:
        gantt_ending(gantt)
    can_be_written(out, gantt, beside=[file])
    problem = open_problem(file, gpus, residents)
    strategies.can_plan(strategy, problem)
    if slower is not None:
        has_levels(problem)
    bound = lower_bound(problem).seconds

    def eased(plan: "Plan") -> "Plan":
        return plan if slower is None else with_levels(problem, plan, slower)

    made = planned(problem, strategy, Effort(seconds, rounds, seed), bound, eased)
    bound = max(bound, made.plan.proven_s)
    figures = made.figures(problem, bound, strategy)
    if made.faults:
        print("\n".join([f"The plan of {strategy} breaks rules; this is a bug in gpuyard:", *made.faults]), file=sys.stderr)  # fmt: skip
    elif out is not None:
        write(out, write_plan(problem, made.plan, strategy, made.planning_s))
    if gantt is not None:
        draw_gantt(gantt, problem, [(strategy, made.plan)], bound)
    if as_json:
        print_json(figures)
    else:
        _say(problem, figures)
    if made.faults:
        raise typer.Exit(1)


def _say(problem: "Problem", it: dict[str, Any]) -> None:
    """For people: what matters first."""
    from gpuyard.cli.printing import print_pairs

    near = f"so at most {it['gap']:.2%} above the best plan there is" if it["gap"] > 1e-9 else "so no plan is shorter"
    energy = f"{it['energy_kwh']:,.3f} kWh ({it['watts_from']})" if "energy_kwh" in it else None
    print_pairs(
        [
            ("problem", f"{problem.name}: {len(problem.calls):,} calls on {len(problem.gpus):,} GPUs"),
            ("strategy", f"{it['strategy']}, {it['planning_s']:.2f} s"),
            ("makespan", f"{it['makespan_s']:,.2f} s"),
            ("lower bound", f"{it['lower_bound_s']:,.2f} s, {near}"),
            ("switches", f"{it['switches']:,}, {it['switch_time_s']:,.0f} GPU-seconds with the first loads"),
            (
                "GPUs used",
                f"{it['utilisation_mean']:.1%}, the busiest {it['utilisation_spread']:.1%} more than the idlest",
            ),
            (
                "too late",
                f"{it['late_requests']:,} requests end after their deadline" if "late_requests" in it else None,
            ),
            ("energy", energy),
        ]
    )
