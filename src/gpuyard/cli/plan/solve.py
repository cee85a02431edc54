"""`gpuyard plan solve`: compute a plan, check it, and print its figures."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import ServerOption, TokenOption, finite, json_option
from gpuyard.cli.plan.files import File, Gpus, MultiModel, PlanSeedOption, Preload, can_be_written, open_problem
from gpuyard.cli.plan.first_use import choose_code
from gpuyard.cli.plan.idle_rate import GivenIdleRate, IdleRateOption, given_idle_rate
from gpuyard.cli.plan.pictures import Gantt, check_gantt_format, draw_gantt
from gpuyard.cli.plan.planning import RoundsOption, SecondsOption, ready, watched
from gpuyard.plan.planner.default_strategy import DEFAULT_STRATEGY

if TYPE_CHECKING:
    from gpuyard.plan.planner import Solution


def solve(
    file: File,
    strategy: Annotated[str, typer.Option("--strategy", metavar="NAME", help="Strategy; see the manual.")] = DEFAULT_STRATEGY,
    seconds: SecondsOption = 10.0,
    seed: PlanSeedOption = 0,
    rounds: RoundsOption = None,
    gpus: Gpus = None,
    multi_model: MultiModel = None,
    preload: Preload = None,
    max_slowdown: Annotated[float | None, typer.Option("--max-slowdown", metavar="PART", callback=finite, help="Use power levels to save energy; the plan may take this much longer (0.05: 5 %, 0: no longer).")] = None,
    idle_rate: IdleRateOption = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the plan to this file.")] = None,
    gantt: Gantt = None,
    as_json: Annotated[bool, json_option("Print the figures as one JSON object.")] = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:  # fmt: skip
    """Plan the workflows of a file for the shortest makespan."""
    from gpuyard.cli.output.printing import print_json
    from gpuyard.plan import planner
    from gpuyard.plan.planner.api import check_idle_rate, check_search
    from gpuyard.plan.planner.strategies import check_name

    check_name(strategy)  # report an unknown strategy before reading files
    check_search(seconds=seconds, rounds=rounds, seed=seed, max_slowdown=max_slowdown)
    if gantt is not None:
        check_gantt_format(gantt)
    can_be_written(out, gantt, beside=[file])
    problem = open_problem(file, gpus, multi_model, preload)
    idle = given_idle_rate(idle_rate, server, token)
    check_idle_rate(strategy, idle.rate)
    choose_code(problem, rounds)
    ready(strategy, problem)
    made = planner.solve(
        problem,
        strategy=strategy,
        seconds=seconds,
        rounds=rounds,
        seed=seed,
        max_slowdown=max_slowdown,
        idle_rate=idle.rate,
        watching=watched,
    )
    if made.faults:
        print("\n".join([f"The plan of {strategy} violates rules; this is a bug in gpuyard:", *made.faults]), file=sys.stderr)  # fmt: skip
    elif out is not None:
        made.write(out)
    if gantt is not None:
        draw_gantt(gantt, problem, [(strategy, made.plan)], made.lower_bound_s)
    if as_json:
        said = made.figures()
        print_json(said if idle.rate is None else said | {"idle_rate_from": idle.source})
    else:
        _say(made, idle)
    if made.faults:
        raise typer.Exit(1)


def _say(made: "Solution", idle: GivenIdleRate) -> None:
    """Print the figures as text, the most important first."""
    from gpuyard.cli.output.printing import print_pairs

    problem, worth = made.problem, made.measures
    near = f"the makespan is at most {made.gap:.2%} above the optimum" if made.gap > 1e-9 else "the plan is optimal"
    energy = f"{made.energy_kwh:,.3f} kWh ({made.watts_from})" if made.energy_kwh is not None else None
    late = f"{made.late_requests:,} requests end after their deadline" if made.late_requests is not None else None
    used = f"{worth.utilization_mean:.1%}, the busiest {worth.utilization_spread:.1%} more than the idlest"
    hidden = "" if worth.hidden_switch_s is None else f", {worth.hidden_switch_s:,.0f} of them beside calls"
    print_pairs(
        [
            ("problem", f"{problem.name}: {len(problem.calls):,} calls on {len(problem.gpus):,} GPUs"),
            ("strategy", f"{made.strategy}, {made.planning_s:.2f} s"),
            ("makespan", f"{made.makespan_s:,.2f} s"),
            ("lower bound", f"{made.lower_bound_s:,.2f} s; {near}"),
            (
                "switches",
                f"{worth.switches:,}, {worth.switch_time_s:,.0f} GPU-seconds including the first loads{hidden}",
            ),
            ("GPUs used", used),
            ("too late", late),
            ("energy", energy),
            ("idle rate", None if idle.rate is None else f"{idle.rate:.0%} ({idle.source})"),
        ]
    )
