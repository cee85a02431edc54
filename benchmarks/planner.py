"""How close to the lower bound are the plans of each strategy, with so many seconds each?

    .venv/bin/python benchmarks/planner.py [--seconds 10] [--strategies dynamic,auto] [--set FOLDER] [--drawn 1000x8,10000x64]
                                           [--families chain,tiny] [--seed 7] [--json FILE] [--picture FILE] [--without-sessions] [--times 0.5,1,3]
    .venv/bin/python benchmarks/planner.py --preload --json benchmarks/results/planner_preload.json …
                                           [--counted] [--jobs 3] [--more-seeds 1,2,3]
    .venv/bin/python benchmarks/planner.py --table benchmarks/results/planner.json

`--set` names a folder with problems (`*.json.gz`) and an `index.json` that says for each its lower bound, the shortest plan
known and what reference planners reach; without it, or in addition, problems of our own families are generated (`--drawn`), and the
bound is ours. CPU seconds of one core are counted, so that other work on the machine does not matter; what is
compiled when it is first used is compiled before, and reported separately. Every plan is checked. `--times` plans with the
last strategy for other numbers of seconds, too, and `--more-seeds` does all that with other seeds. `--preload` also plans every problem with GPUs that load their next model
beside calls, and computes both bounds. `--counted` ends searches by their counted work alone, as on a core that does it in
the time; so a busy machine gives the plans of an idle one, but takes longer (`planning_s`). `--jobs` plans several problems
at once. `--table` prints the tables of the manual from a result.
"""

import argparse
import gzip
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import exp, log
from multiprocessing import get_context
from pathlib import Path
from time import process_time
from typing import Any

from gpuyard.plan.planner.bounds import lower_bound
from gpuyard.plan.planner.checker import check
from gpuyard.plan.planner.generate import FAMILIES, generate
from gpuyard.plan.planner.plan import measure
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.problem_file import problem_of, read_problem
from gpuyard.plan.planner.strategies import SearchBudget, search, strategy, within

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common.results import about


def problems(asked: argparse.Namespace) -> Iterator[tuple[Problem, float, dict[str, Any]]]:
    """Each with its bound and what is known about it."""
    if asked.set:
        for known in json.loads((asked.set / "index.json").read_text())["instances"]:
            if asked.families and known["family"] not in asked.families:
                continue
            yield read_problem(gzip.decompress((asked.set / known["file"]).read_bytes())), known["lower_bound"], known
    for size in asked.drawn:
        nodes, gpus = (int(part) for part in size.split("x"))
        for family in asked.families or FAMILIES:
            problem = problem_of(generate(family, nodes, gpus, seed=asked.seed))
            yield problem, lower_bound(problem).seconds, {}


def planned(problem: Problem, name: str, seconds: float, seed: int, counted: bool) -> dict[str, Any]:
    """One problem by one strategy."""
    began = process_time()
    budget = within(seconds, lambda: process_time() - began, seed=seed)
    plan = strategy(name)(problem, replace(budget, keep_going=lambda: True) if counted else budget)
    took = process_time() - began
    assert check(problem, plan) == []
    it = measure(problem, plan)
    return {
        "makespan_s": it.makespan_s,
        "switches": it.switches,
        "utilization_mean": it.utilization_mean,
        "utilization_spread": it.utilization_spread,
        "planning_s": took,
    } | (
        {} if it.hidden_switch_s is None else {"switch_time_s": it.switch_time_s, "hidden_switch_s": it.hidden_switch_s}
    )


def row_of(
    asked_for: tuple[Problem, float, dict[str, Any]], *, names: list[str], asked: argparse.Namespace
) -> dict[str, Any]:
    """One problem by all strategies."""
    problem, bound, known = asked_for
    row: dict[str, Any] = {
        "problem": problem.name,
        "lower_bound_s": bound,
        "best_known": known.get("best_known"),
        "reference": {name: it["ratio"] for name, it in known.get("reference", {}).items()},
    }
    for name in names:
        it = planned(problem, name, asked.seconds, asked.seed, asked.counted)
        row[name] = it | {"ratio": it["makespan_s"] / bound}
    last = names[-1]

    def by_seconds(seed: int, times: list[float]) -> dict[str, float]:
        return {
            f"{seconds:g}": planned(problem, last, seconds, seed, asked.counted)["makespan_s"] / bound
            for seconds in times
        }

    row["by_seconds"] = by_seconds(asked.seed, asked.times) | {f"{asked.seconds:g}": row[last]["ratio"]}
    row["by_seed"] = {str(seed): by_seconds(seed, [*asked.times, asked.seconds]) for seed in asked.more_seeds}
    if asked.preload:
        other = replace(problem, preload=True)
        row["own_bound_s"] = lower_bound(problem).seconds
        row["preload"] = {"lower_bound_s": lower_bound(other).seconds} | {
            name: planned(other, name, asked.seconds, asked.seed, asked.counted) for name in names
        }
    return row


def render(data: dict[str, Any]) -> str:
    """Return the table of strategies as Markdown: makespan over the bound, switches and spread."""
    names = data["strategies"]
    lines = [
        f"| problem | bound s | best known | {' | '.join(f'`{name}`' for name in names)} |",
        f"|---|---:|---:|{'---|' * len(names)}",
    ]
    for row in data["rows"]:
        cells = [f"{row[n]['ratio']:.3f} · {row[n]['switches']:,} · {row[n]['utilization_spread']:.0%}" for n in names]
        best = f"{row['best_known'] / row['lower_bound_s']:.3f}" if row["best_known"] else ""
        lines.append(f"| {row['problem']} | {row['lower_bound_s']:,.1f} | {best} | {' | '.join(cells)} |")
    known = [row["best_known"] / row["lower_bound_s"] for row in data["rows"] if row["best_known"]]
    means = " | ".join(f"**{data['means'][name]:.4f}**" for name in names)
    lines.append(f"| *geometric mean* | | {f'{mean(known):.3f}' if known else ''} | {means} |")
    return "\n".join(lines)


def render_times(data: dict[str, Any]) -> str:
    """Return the table of the last strategy by planning time as Markdown."""
    name, times = data["strategies"][-1], [*data["about"]["settings"]["times"], data["about"]["settings"]["seconds"]]
    lines = [f"| `{name}` | {' | '.join(f'{seconds:g} s' for seconds in times)} |", f"|---|{'---:|' * len(times)}"]
    columns = [[row["by_seconds"][f"{seconds:g}"] for row in data["rows"]] for seconds in times]
    for place, row in enumerate(data["rows"]):
        lines.append(f"| {row['problem']} | {' | '.join(f'{column[place]:.4f}' for column in columns)} |")
    means = [mean(column) for column in columns]
    lines.append(f"| *geometric mean* | {' | '.join(f'**{one:.4f}**' for one in means)} |")
    seeds = data["rows"][0].get("by_seed", {})
    if seeds:
        of_seeds = [
            [one, *(mean([row["by_seed"][seed][f"{seconds:g}"] for row in data["rows"]]) for seed in seeds)]
            for one, seconds in zip(means, times, strict=True)
        ]
        cells = " | ".join(f"{min(some):.4f} to {max(some):.4f}" for some in of_seeds)
        lines.append(f"| *geometric mean, {1 + len(seeds)} seeds* | {cells} |")
    return "\n".join(lines)


def render_preload(data: dict[str, Any]) -> str:
    """Return the table of makespans without and with preloading as Markdown."""
    names = data["strategies"]
    lines = [
        f"| problem | bound s, without | with | {' | '.join(f'`{name}`' for name in names)} | loading beside calls |",
        f"|---|---:|---:|{'---|' * len(names)}---:|",
    ]
    for row in data["rows"]:
        there = row["preload"]
        cells = [
            f"{row[name]['makespan_s']:,.1f} → {there[name]['makespan_s']:,.1f} ({_change(row, name) - 1:+.1%})"
            for name in names
        ]
        last = there[names[-1]]
        hidden = last["hidden_switch_s"] / last["switch_time_s"]
        lines.append(
            f"| {row['problem']} | {row['own_bound_s']:,.1f} | {there['lower_bound_s']:,.1f} | {' | '.join(cells)} | {hidden:.0%} |"
        )
    means = [f"**{mean([_change(row, name) for row in data['rows']]) - 1:+.1%}**" for name in names]
    lines.append(f"| *geometric mean* | | | {' | '.join(means)} | |")
    gaps = [
        f"{mean([row[n]['makespan_s'] / row['own_bound_s'] for row in data['rows']]):.4f} → "
        f"{mean([row['preload'][n]['makespan_s'] / row['preload']['lower_bound_s'] for row in data['rows']]):.4f}"
        for n in names
    ]
    lines.append(f"| *above the bound* | | | {' | '.join(gaps)} | |")
    return "\n".join(lines)


def _change(row: dict[str, Any], name: str) -> float:
    ratio: float = row["preload"][name]["makespan_s"] / row[name]["makespan_s"]
    return ratio


def mean(ratios: list[float]) -> float:
    return exp(sum(log(ratio) for ratio in ratios) / len(ratios))


def draw(rows: list[dict[str, Any]], names: list[str], to: Path) -> None:
    """The gap to the bound of each problem, a mark a strategy."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 1.5 + 0.3 * len(rows)), layout="constrained")
    places = range(len(rows))
    for name, mark in zip([*names, "best known"], "osD^vPX*hd", strict=False):
        ratios = [row["best_known"] / row["lower_bound_s"] if name == "best known" and row["best_known"] else row[name]["ratio"] if name in row else None for row in rows]  # fmt: skip
        some = [(100 * (ratio - 1), place) for ratio, place in zip(ratios, places, strict=True) if ratio is not None]
        if some:
            axes.plot(*zip(*some, strict=True), mark, label=name, markersize=5)
    axes.set_yticks(list(places), [row["problem"] for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlabel("% above the lower bound")
    axes.grid(axis="x", alpha=0.3)
    axes.legend()
    figure.savefig(to, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--strategies", default="batch,dynamic,heft_affinity,auto")
    parser.add_argument("--set", type=Path)
    parser.add_argument("--drawn", default="")
    parser.add_argument("--families", default="")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--more-seeds", default="", help="other seeds for the last strategy")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--times", default="", help="other numbers of seconds for the last strategy")
    parser.add_argument("--preload", action="store_true", help="also with GPUs that load beside calls")
    parser.add_argument("--table", type=Path, help="print the tables of this result")
    parser.add_argument("--counted", action="store_true", help="end searches by their counted work, not by the clock")
    parser.add_argument("--jobs", type=int, default=1, help="problems that are planned at once")
    parser.add_argument("--without-sessions", action="store_true", help="leave out the search over sessions")
    asked = parser.parse_args()
    if asked.table:
        data = json.loads(asked.table.read_text())
        print(render(data), render_times(data), sep="\n\n")
        return
    asked.times = [float(seconds) for seconds in asked.times.split(",") if seconds]
    asked.more_seeds = [int(seed) for seed in asked.more_seeds.split(",") if seed]
    asked.drawn = [size for size in asked.drawn.split(",") if size]
    asked.families = [family for family in asked.families.split(",") if family]
    names = asked.strategies.split(",")
    if asked.without_sessions:
        search.MOST_FOR_SESSIONS = 0  # type: ignore[misc]
    began = process_time()
    for name in names:
        strategy(name)(problem_of(generate("agentic", 40, 2)), SearchBudget(rounds=400))
    print(f"compiling and loading: {process_time() - began:.1f} s")
    rows: list[dict[str, Any]] = []
    with get_context("fork").Pool(asked.jobs) as pool:
        for row in pool.imap(partial(row_of, names=names, asked=asked), problems(asked)):
            rows.append(row)
            bound = row["lower_bound_s"]
            words = [f"{name} {row[name]['ratio']:.4f} ({row[name]['switches']:,} switches, spread {row[name]['utilization_spread']:.1%}, {row[name]['planning_s']:.1f} s)" for name in names]  # fmt: skip
            best = f"  best known {row['best_known'] / bound:.4f}" if row["best_known"] else ""
            print(f"{row['problem']:34} {'  '.join(words)}{best}", flush=True)
            if asked.preload:
                spans = [
                    f"{name} {row['preload'][name]['makespan_s']:.2f} ({_change(row, name) - 1:+.2%})" for name in names
                ]
                print(f"{row['problem']:34} preload: {'  '.join(spans)}", flush=True)
    means = {name: mean([row[name]["ratio"] for row in rows]) for name in names}
    print("geometric mean".ljust(34), "  ".join(f"{name} {ratio:.4f}" for name, ratio in means.items()))
    if asked.json:
        command = " ".join(["benchmarks/planner.py", *sys.argv[1:]])
        made = about(
            command, [asked.seed, *asked.more_seeds], seconds=asked.seconds, times=asked.times, seed=asked.seed
        )
        asked.json.write_text(
            json.dumps({"about": made, "strategies": names, "means": means, "rows": rows}, indent=1) + "\n"
        )
    if asked.picture:
        draw(rows, names, asked.picture)


if __name__ == "__main__":
    main()
