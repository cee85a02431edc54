"""Choose the settings that `heft_affinity` tries: greedily, each the best addition to those before it.

    .venv/bin/python benchmarks/choose_portfolio.py [--candidates 475] [--keep 32] [--sizes 100x2,1000x8,1000x64,10000x64]
                                                    [--pcie 25,1] [--seed 1] [--out portfolio.csv]

Settings of the list scheduler are drawn at random from the values below. Each plans every problem: all families, in all
sizes, with fast and slow loading. Then one after another is taken: the one with which the geometric mean, over the
problems, of the shortest plan so far over the lower bound is least. The table goes to standard output, or to `--out`;
`src/gpuyard/plan/planner/strategies/portfolio.csv` is such a table. With the sizes above 130 million calls are scheduled, at one
or two microseconds each.

Report figures of other seeds than the ones the settings were chosen on.
"""

import argparse
import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np

from gpuyard.plan.planner.bounds import lower_bound
from gpuyard.plan.planner.compiled.decoding import ListSettings
from gpuyard.plan.planner.compiled.list_scheduler import ListScheduler
from gpuyard.plan.planner.generate import FAMILIES, generate
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.problem_file import problem_of
from gpuyard.plan.planner.random_numbers import RandomNumbers

VALUES: dict[str, tuple[Any, ...]] = {
    "wait": (0.0, 0.25, 0.5, 1.0, 2.0),
    "cost": (0.5, 1.0, 1.5, 2.0),
    "soon": (0.0, 0.5, 1.0),
    "later": (0.0, 0.03, 0.1, 0.3, 1.0),
    "first": (1.0, 2.0, 4.0, 8.0, 16.0),
    "urgent": (0.0, 0.5, 1.0, 2.0),
    "calm": (0.5, 0.8, 1.0),
    "least": (0.0, 0.5, 1.0, 2.0),
    "flow": (0.0, 0.0, 0.3, 0.7),
    "level": (0.0, 0.0, 0.5),
    "loads": (0.0, 0.5, 1.0),
    "backwards": (False, True),
}
"""The values of each setting; a value listed twice is drawn twice as often."""


def drawn_settings(count: int, chance: RandomNumbers) -> list[ListSettings]:
    """So many, without repetition."""
    found: dict[ListSettings, None] = {}
    while len(found) < count:
        found[ListSettings(**{name: some[chance.below(len(some))] for name, some in VALUES.items()})] = None
    return list(found)


def drawn_problems(sizes: str, pcie: str, seed: int) -> list[Problem]:
    """Every family in every size and at every speed of loading."""
    return [
        problem_of(generate(family, int(nodes), int(gpus), seed=seed, pcie_gb_s=float(speed)))
        for nodes, gpus in (size.split("x") for size in sizes.split(","))
        for speed in pcie.split(",")
        for family in FAMILIES
    ]


def chosen(log_ratio: Any, keep: int) -> list[int]:
    """Rows of candidates, columns of problems: which candidates, in the order in which they are taken."""
    best = np.full(log_ratio.shape[1], np.inf)
    taken: list[int] = []
    for _ in range(min(keep, len(log_ratio))):
        means = np.minimum(best, log_ratio).mean(axis=1)
        means[taken] = np.inf
        taken.append(int(np.argmin(means)))
        best = np.minimum(best, log_ratio[taken[-1]])
        print(f"{len(taken):3} settings: geometric mean {np.exp(best.mean()):.4f} of the bound", file=sys.stderr)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--candidates", type=int, default=475)
    parser.add_argument("--keep", type=int, default=32)
    parser.add_argument("--sizes", default="100x2,1000x8,1000x64,10000x64")
    parser.add_argument("--pcie", default="25,1")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    candidates = drawn_settings(asked.candidates, RandomNumbers(asked.seed))
    problems = drawn_problems(asked.sizes, asked.pcie, asked.seed)
    log_ratio = np.zeros((len(candidates), len(problems)))
    for column, problem in enumerate(problems):
        scheduler, bound = ListScheduler(problem), lower_bound(problem).seconds
        for row, settings in enumerate(candidates):
            log_ratio[row, column] = np.log(scheduler.plan(settings).makespan_s / bound)
        print(f"problem {column + 1} of {len(problems)}", file=sys.stderr)
    rows = [candidates[place] for place in chosen(log_ratio, asked.keep)]
    with asked.out.open("w", newline="") if asked.out else sys.stdout as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(ListSettings._fields)
        table.writerows([*(f"{value:g}" for value in row[:-1]), "yes" if row.backwards else "no"] for row in rows)


if __name__ == "__main__":
    main()
