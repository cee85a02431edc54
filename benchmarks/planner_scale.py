"""The cost of planning from a thousand calls to a million, and the distance of the plans from the bound.

    .venv/bin/python benchmarks/planner_scale.py [--families agentic,chain] [--calls 1000000] [--json FILE] [--picture FILE]

For each family and size a problem is generated and written, and for each of the strategies `dynamic` and `heft_affinity` a
separate process reads it, plans it, checks the plan and computes the bound, all on one core. Processor time is counted,
compiling apart (a small problem is planned first); memory is the most the process ever had. Both strategies are in the
same run, so that their ratio means something on any machine. `heft_affinity` makes several schedules and takes the best:
"µs" is for one call in one schedule.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from time import process_time
from typing import Any

FAMILIES = ("agentic", "chain", "multi_gpu", "switch_heavy")
SIZES = ((1_000, 8), (10_000, 64), (100_000, 250), (1_000_000, 1_000))
STRATEGIES = ("dynamic", "heft_affinity")
SEED = 17


def one(file: str, name: str) -> dict[str, Any]:
    """One problem by one strategy, in this process."""
    from gpuyard.plan.planner.bounds import lower_bound
    from gpuyard.plan.planner.checker import check
    from gpuyard.plan.planner.generate import generate
    from gpuyard.plan.planner.plan import measure
    from gpuyard.plan.planner.problem_file import problem_of, read_problem
    from gpuyard.plan.planner.strategies import SearchBudget, strategy
    from gpuyard.plan.planner.strategies.heft_affinity import schedules

    solve, small = strategy(name), problem_of(generate("agentic", 50, 4))
    solve(small, SearchBudget())
    lower_bound(small)
    compiled = clock = process_time()
    seconds = {}

    def took(what: str) -> None:
        nonlocal clock
        seconds[f"{what}_s"] = round(process_time() - clock, 3)
        clock = process_time()

    problem = read_problem(Path(file).read_bytes())
    took("read")
    plan = solve(problem, SearchBudget())
    took("plan")
    faults = check(problem, plan)
    took("check")
    bound = lower_bound(problem).seconds
    took("bound")
    found = measure(problem, plan)
    many = 1 if name == "dynamic" else schedules(len(problem.calls))
    return {
        "family": problem.family,
        "calls": len(problem.calls),
        "gpus": len(problem.gpus),
        "strategy": name,
        "valid": not faults,
        **seconds,
        "all_s": round(clock - compiled, 2),
        "schedules": many,
        "us_a_call": round(seconds["plan_s"] / len(problem.calls) / many * 1e6, 2),
        "peak_mib": round(getrusage(RUSAGE_SELF).ru_maxrss / 1024),
        "of_bound": round(found.makespan_s / bound, 4),
        "switches": found.switches,
        "spread": round(found.utilization_spread, 3),
    }


def all_of(families: list[str], most: int) -> list[dict[str, Any]]:
    """Every family and size by every strategy, each in a process of its own."""
    rows: list[dict[str, Any]] = []
    for family in families:
        for calls, gpus in SIZES:
            if calls > most:
                continue
            with tempfile.TemporaryDirectory() as folder:
                file = str(Path(folder) / "problem.json")
                drawn = [
                    str(Path(sys.executable).parent / "gpuyard"),
                    "plan",
                    "generate",
                    family,
                    str(calls),
                    str(gpus),
                ]
                subprocess.run([*drawn, "--seed", str(SEED), "--out", file], check=True, stdout=subprocess.DEVNULL)
                for name in STRATEGIES:
                    asked = [sys.executable, __file__, "--one", file, name]
                    rows.append(json.loads(subprocess.run(asked, check=True, capture_output=True, text=True).stdout))
                    print(line(rows[-1]), flush=True)
    return rows


HEAD = """| family | calls | GPUs | strategy | read s | plan s | schedules | µs | check s | in all s | MiB | of the bound | switches | spread |
|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"""


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    return (
        f"| {row['family']} | {row['calls']:,} | {row['gpus']:,} | `{row['strategy']}` | {row['read_s']:.2f} | {row['plan_s']:.2f} "
        f"| {row['schedules']} | {row['us_a_call']:.1f} | {row['check_s']:.2f} | {row['all_s']:.1f} | {row['peak_mib']} | {row['of_bound']:.3f} "
        f"| {row['switches']:,} | {row['spread']:.1%} |"
    )


def draw(rows: list[dict[str, Any]], file: str) -> None:
    """Left what a call costs, right how far the plans are above the bound, over the number of calls."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (cost, gap) = plt.subplots(1, 2, figsize=(12, 4), layout="constrained")
    for colour, name in zip(("#b0562b", "#2b6cb0"), STRATEGIES, strict=True):
        for style, family in zip(
            ("-", "--", ":", "-.", (0, (1, 3))), dict.fromkeys(row["family"] for row in rows), strict=False
        ):
            mine = [row for row in rows if row["strategy"] == name and row["family"] == family]
            calls = [row["calls"] for row in mine]
            cost.plot(
                calls, [row["us_a_call"] for row in mine], color=colour, linestyle=style, marker="o", markersize=3
            )
            gap.plot(
                calls,
                [100 * (row["of_bound"] - 1) for row in mine],
                color=colour,
                linestyle=style,
                marker="o",
                markersize=3,
                label=f"{name}, {family}",
            )
    cost.set(
        xscale="log",
        yscale="log",
        xlabel="calls",
        ylabel="µs of one core",
        title="What a call costs in one schedule",
        ylim=(0.3, 30),
    )
    gap.set(xscale="log", yscale="log", xlabel="calls", ylabel="% above the bound", title="How good the plans are")
    figure.legend(loc="outside right center", fontsize=7)
    figure.savefig(file, dpi=120)  # fmt: skip


def main() -> None:
    """See the head of the file."""
    said = argparse.ArgumentParser(description=__doc__)
    said.add_argument("--families", default=",".join(FAMILIES))
    said.add_argument("--calls", type=int, default=1_000_000, help="the largest size")
    said.add_argument("--json", help="write the rows to this file")
    said.add_argument("--picture", help="draw them into this file")
    said.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    asked = said.parse_args()
    if asked.one:
        print(json.dumps(one(*asked.one)))
        return
    print(HEAD)
    rows = all_of(asked.families.split(","), asked.calls)
    if asked.json:
        Path(asked.json).write_text(json.dumps(rows, indent=1) + "\n")
    if asked.picture:
        draw(rows, asked.picture)


if __name__ == "__main__":
    main()
