"""`gpuyard plan pareto`: compute the Pareto front of several objectives and choose a plan of it."""

from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import ServerOption, TokenOption, json_option
from gpuyard.cli.plan.files import (
    File,
    Gpus,
    MultiModel,
    PlanSeedOption,
    Preload,
    WrongFile,
    can_be_written,
    open_problem,
    write,
)
from gpuyard.cli.plan.first_use import choose_code
from gpuyard.cli.plan.idle_rate import GivenIdleRate, IdleRateOption, given_idle_rate
from gpuyard.cli.plan.pictures import saved
from gpuyard.cli.plan.planning import RoundsOption, SecondsOption, ready, watched

if TYPE_CHECKING:
    from gpuyard.plan.planner.front import Front

NAME = "pareto"


def pareto(
    file: File,
    seconds: SecondsOption = 10.0,
    seed: PlanSeedOption = 0,
    rounds: RoundsOption = None,
    gpus: Gpus = None,
    multi_model: MultiModel = None,
    preload: Preload = None,
    idle_rate: IdleRateOption = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Write the Pareto front to this file as JSON.")] = None,
    picture: Annotated[Path | None, typer.Option("--picture", metavar="FILE", help="Draw the Pareto front: .png or .svg.")] = None,
    plans: Annotated[Path | None, typer.Option("--plans", metavar="FOLDER", help="Write every plan of the front to this folder; plans of an earlier front are replaced.")] = None,
    every: Annotated[bool, typer.Option("-a", "--all", help="Show all plans of the front, not only the notable ones.")] = False,
    as_json: Annotated[bool, json_option("Print the Pareto front as one JSON object.")] = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:  # fmt: skip
    """Plan for makespan, balance, switches and energy at the same time, and show the trade-offs."""
    from gpuyard.plan.planner.api import budget_of, check_search
    from gpuyard.plan.planner.bounds import lower_bound
    from gpuyard.plan.planner.plan_file import write_plan

    check_search(seconds=seconds, rounds=rounds, seed=seed)
    if picture is not None and picture.suffix.lower() not in {".png", ".svg"}:
        raise WrongFile(f"{picture}: the name of the picture must end in .png or .svg.")
    if plans is not None:
        _can_be_a_folder(plans)
    can_be_written(out, picture, beside=[file])
    problem = open_problem(file, gpus, multi_model, preload)
    idle = given_idle_rate(idle_rate, server, token)
    choose_code(problem, rounds)
    from gpuyard.plan.planner.front import front_figure, write_front
    from gpuyard.plan.planner.strategies.pareto import pareto_front

    ready(NAME, problem)
    began = perf_counter()
    with watched(NAME, lower_bound(problem).seconds) as watch:
        budget = budget_of(seconds, rounds, seed, lambda: perf_counter() - began, watch)
        front = pareto_front(problem, budget, idle.rate)
    planning_s = perf_counter() - began
    if out is not None:
        write(out, write_front(problem, front, NAME, idle.source))
    if picture is not None:
        write(picture, saved(front_figure(problem, front, lower_bound(problem).seconds), picture))
    if plans is not None:
        _clear(plans)
        for place, point in enumerate(front.points):
            write(plans / f"front-{place:02}.json", write_plan(problem, point.plan, NAME))
    if as_json:
        typer.echo(write_front(problem, front, NAME, idle.source, planning_s).decode())
    else:
        _table(front, idle, every)


def _can_be_a_folder(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise WrongFile(f"Cannot write {path}: it is not a folder.")
    if not path.parent.is_dir():
        raise WrongFile(f"Cannot write {path}: folder {path.parent} does not exist.")


def _clear(folder: Path) -> None:
    """Remove the plans of an earlier front from a folder; other files stay."""
    folder.mkdir(exist_ok=True)
    for file in folder.glob("front-*.json"):
        if file.stem.removeprefix("front-").isdecimal():
            file.unlink()


def _table(front: "Front", idle: GivenIdleRate, every: bool) -> None:
    """Print the best plan of each objective, the knee and the chosen plan; with `every`, all of them."""
    from gpuyard.cli.output.printing import print_table

    notable = front.notable()
    energy = front.points[0].energy_kwh is not None
    print_table(
        (
            "CHOSEN",
            "PLAN",
            *(names := ("MAKESPAN", "SPREAD", "SWITCHES", *(("ENERGY (kWh)",) if energy else ()))),
            "WHICH",
        ),
        [
            (
                "*" if place == front.chosen else " ",
                str(place),
                f"{point.measures.makespan_s:,.2f}",
                f"{point.measures.utilization_spread:.1%}",
                str(point.measures.switches),
                *((f"{point.energy_kwh:.4f}",) if energy else ()),
                ", ".join(notable.get(place, [])) or None,
            )
            for place, point in enumerate(front.points)
            if every or place in notable
        ],
        right=names,
    )
    if left := 0 if every else len(front.points) - len(notable):
        print(f"{left:,} more plans are on the front; --all shows them.")
    w = front.weights
    print(
        f"Chosen at an idle rate of {front.idle_rate:.0%} ({idle.source}); weights: makespan {w.makespan:.2f}, "
        f"switches {w.switches:.2f}, balance {w.balance:.2f}, energy {w.energy:.2f}."
    )
