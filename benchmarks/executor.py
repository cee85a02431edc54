"""The makespan of executed plans, compared with the plan and with a plan that knew the real durations.

    .venv/bin/python benchmarks/executor.py [--calls 1000 --gpus 8] [--seeds 3] [--families chain,tiny] [--live] [--json FILE]

The executor is the real one, under a virtual clock (`testing/rehearsal.py`). Problems are generated from seeds. Rows:

    exact     calls take what was planned: makespan / the plan's
    noise     each call takes between 0.7 and 1.3 of what was planned, drawn for each call by itself
    bias      the same, drawn once for each node of a workflow: all its calls are off together

`noise` and `bias` are makespans beside a plan that the same strategy made knowing the true durations:

    as is     the assignment and order of the plan are kept to, whatever happens
    order     beside that, GPUs fill gaps from their own queue
    steal     beside that, idle GPUs steal
    again     beside that, what is left is planned again: how `gpuyard plan run` does it

`--live` follows one plan of each family with real worker processes and virtual models, `--speed-up` times faster.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from math import exp, log
from pathlib import Path
from random import Random
from time import monotonic, process_time
from typing import Any

import numpy as np

from gpuyard.plan.executor.executor import Executor, Rules
from gpuyard.plan.planner.compiled.timing import order_of, timed
from gpuyard.plan.planner.generate import generate
from gpuyard.plan.planner.instance import write_instance
from gpuyard.plan.planner.plan import Plan
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.problem_file import read_problem
from gpuyard.plan.planner.strategies import SearchBudget, strategy
from gpuyard.plan.workers.follow import FollowOptions, OwnGpus, follow
from gpuyard.plan.workers.local import LocalPool
from gpuyard.plan.workers.plans import assignment_of, replanner, work_of
from gpuyard.plan.workers.settings import all_virtual
from gpuyard.testing.rehearsal import rehearse

FAMILIES = "chain,fanout,diamond,agentic,hot_model,tiny,huge,multi_gpu,hetero_time,tight_chain,switch_heavy"
FIRST_SEED = 500
OFF = 0.3
RULES = {
    "order": Rules(steals=False, replans=False),
    "steal": Rules(replans=False),
    "again": Rules(),
}
Solve = Callable[[Problem], Plan]


def main() -> None:
    said = _arguments()
    solve = _solver(said.strategy)
    rows = []
    for family in said.families.split(","):
        for seed in range(FIRST_SEED, FIRST_SEED + said.seeds):
            problem = read_problem(write_instance(generate(family, said.calls, said.gpus, seed=seed)))
            row = {"family": family, "seed": seed, **_row(problem, solve, seed)}
            if said.live and seed == FIRST_SEED:
                row["live"] = _live(problem, solve, said.speed_up)
            rows.append(row)
            print(_line(row), file=sys.stderr, flush=True)
    means = {
        name: exp(sum(log(row[name]) for row in rows if name in row) / sum(name in row for row in rows))
        for name in rows[0]
        if name not in {"family", "seed", "cpu_us_a_call"}
    }
    worst = {name: max(row[name] for row in rows if name in row) for name in means}
    print(_line({"family": "mean", "seed": "", **means}), file=sys.stderr)
    print(_line({"family": "worst", "seed": "", **worst}), file=sys.stderr)
    found = {**vars(said), "rows": rows, "geometric_mean": means, "worst": worst}
    found.pop("json")
    if said.json is None:
        print(json.dumps(found))
    else:
        said.json.write_text(json.dumps(found, indent=1))


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--families", default=FAMILIES)
    parser.add_argument("--strategy", default="heft_affinity")
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--speed-up", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _solver(name: str) -> Solve:
    solve = strategy(name)
    return lambda problem: solve(problem, SearchBudget(seed=0, rounds=8))


def _row(problem: Problem, solve: Solve, seed: int) -> dict[str, float]:
    plan = solve(problem)
    began = process_time()
    exact = rehearse(_executor(problem, plan, Rules()), plan=replanner(problem, solve))
    row = {"exact": exact / plan.makespan_s, "cpu_us_a_call": (process_time() - began) / len(problem.calls) * 1e6}
    chance = Random(seed)
    drawn = {kind: chance.uniform(1 - OFF, 1 + OFF) for kind in sorted(set(work_of(problem).kind))}
    factors = {
        "noise": [chance.uniform(1 - OFF, 1 + OFF) for _ in range(len(problem.calls))],
        "bias": [drawn[kind] for kind in work_of(problem).kind],
    }
    for name, factor in factors.items():
        true = replace(problem, calls=replace(problem.calls, seconds=problem.calls.seconds * np.array(factor)))
        known = solve(true).makespan_s
        row[f"{name}, as is"] = timed(true, plan.gpu, order_of(problem, plan)).makespan_s / known
        for words, rules in RULES.items():
            executor = _executor(problem, plan, rules)
            end = rehearse(
                executor,
                seconds=lambda call, factor=factor: call.seconds * factor[call.call],
                plan=replanner(problem, solve),
            )
            assert executor.is_over
            row[f"{name}, {words}"] = end / known
    return row


def _executor(problem: Problem, plan: Plan, rules: Rules) -> Executor:
    return Executor(work_of(problem), assignment_of(problem, plan), rules)


def _live(problem: Problem, solve: Solve, speed_up: float) -> float:
    plan = solve(problem)
    gpus = len(problem.gpus)
    pool = LocalPool([str(gpu) for gpu in range(gpus)])
    began = monotonic()
    try:
        done = follow(
            FollowOptions(problem, plan, all_virtual(problem), pool, OwnGpus(gpus), solve, speed_up=speed_up)
        ).executor
    finally:
        pool.close()
    print(f"{problem.name}: {monotonic() - began:.0f} s of {done.done} calls on {gpus} workers", file=sys.stderr)
    return max(run.end_s for run in done.runs) / plan.makespan_s


def _line(row: dict[str, Any]) -> str:
    figures = (f"{name} {value:.3f}" for name, value in row.items() if isinstance(value, float) and "cpu" not in name)
    return f"{row['family']:12} {row['seed']:>4} " + "  ".join(figures)


if __name__ == "__main__":
    main()
