"""Faults against the real scheduler and real agents in one process, under a virtual clock.

    .venv/bin/python benchmarks/faults.py --seeds 0:100 [--faults 50] [--only KIND,...] [--workers 2] [--json FILE]
    .venv/bin/python benchmarks/faults.py --seeds 17 --trace

Each seed is one scenario of a small cluster: nodes, tasks and faults are drawn from it. At its end everything is
repaired, all tasks end, and what the tasks recorded themselves is compared with the journal. A scenario in which
something is wrong is printed with the command that repeats it; the same seed gives the same trace, byte for byte.
"""

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.simulation.faults.scenario import FAULTS, Outcome, run_scenario  # noqa: E402

SHOWN = 3
"""Violations of a scenario that are printed; the rest is counted."""


def main() -> int:
    """Read the command line, run the scenarios, and report what was found."""
    asked = parse()
    first, _, last = asked.seeds.partition(":")
    seeds = range(int(first), int(last) if last else int(first) + 1)
    began, faults, wrongs = time.perf_counter(), Counter[str](), Counter[str]()
    failed: list[dict[str, Any]] = []
    tasks = runs = 0
    seconds = 0.0
    run = partial(run_scenario, faults=asked.faults, only=tuple(asked.only), keeps_exit_codes=asked.keeps_exit_codes)
    if asked.workers > 1:
        with ProcessPoolExecutor(asked.workers) as pool:
            scenarios = list(progress(asked, pool.map(run, seeds), len(seeds)))
    else:
        scenarios = list(progress(asked, map(run, seeds), len(seeds)))
    for outcome in scenarios:
        faults += outcome.faults
        wrongs += Counter(wrong.kind for wrong in outcome.wrongs)
        tasks, runs, seconds = tasks + outcome.tasks, runs + outcome.runs, seconds + outcome.seconds
        if outcome.wrongs:
            failed.append({"seed": outcome.seed, "digest": outcome.digest, "wrongs": outcome.wrongs})
    report = {
        "scenarios": len(scenarios),
        "faults": sum(faults.values()),
        "faults_by_kind": dict(faults.most_common()),
        "tasks": tasks,
        "processes": runs,
        "virtual_hours": round(seconds / 3600, 1),
        "seconds": round(time.perf_counter() - began, 1),
        "failed_scenarios": len(failed),
        "wrong": dict(wrongs.most_common()),
        "failed": failed,
    }
    if asked.json:
        Path(asked.json).write_text(json.dumps(report, indent=2) + "\n")
    print(
        f"{report['scenarios']} scenarios, {report['faults']} faults, {tasks} tasks, {runs} processes, "
        f"{report['virtual_hours']} virtual hours in {report['seconds']} s: "
        f"{len(failed)} scenarios failed{', ' + str(report['wrong']) if failed else ''}"
    )
    return 1 if failed else 0


def progress(asked: argparse.Namespace, outcomes: Any, count: int) -> Any:
    """Each scenario as it ends; those that failed are printed."""
    for done, outcome in enumerate(outcomes, start=1):
        yield summary(asked, outcome)
        if sys.stderr.isatty():
            print(f"\r{done} of {count} scenarios", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(file=sys.stderr)


def summary(asked: argparse.Namespace, outcome: Outcome) -> Outcome:
    """Print the result of a scenario."""
    if asked.trace:
        print("\n".join(outcome.trace))
        print(f"seed {outcome.seed}: trace {outcome.digest}, {len(outcome.trace)} lines")
    if outcome.wrongs:
        kinds = dict(Counter(wrong.kind for wrong in outcome.wrongs))
        again = f"python benchmarks/faults.py --seeds {outcome.seed} --faults {asked.faults}"
        again += f" --only {','.join(asked.only)}" if asked.only else ""
        again += "" if asked.keeps_exit_codes else " --loses-exit-codes"
        print(f"FAILED seed {outcome.seed} {kinds} trace {outcome.digest}: {again} --trace", flush=True)
        for wrong in outcome.wrongs[:SHOWN]:
            print(f"    {wrong.kind} {wrong.token}: {wrong.sentence}", flush=True)
    if not asked.trace:
        outcome.trace = [] if not outcome.wrongs else outcome.trace
    return outcome


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:20", help="one seed, or FIRST:LAST without the last (default 0:20)")
    parser.add_argument("--faults", type=int, default=50, help="faults in each scenario (default 50)")
    parser.add_argument("--only", default="", help=f"kinds of faults, of: {', '.join(FAULTS)}")
    parser.add_argument("--workers", type=int, default=1, help="processes that run scenarios in parallel")
    parser.add_argument("--trace", action="store_true", help="print everything that happened")
    parser.add_argument("--json", default="", help="write the figures to this file")
    parser.add_argument(
        "--loses-exit-codes",
        dest="keeps_exit_codes",
        action="store_false",
        help="nothing outlives a killed supervisor that knows how its tasks end",
    )
    asked = parser.parse_args()
    asked.only = [name for name in asked.only.split(",") if name]
    if unknown := [name for name in asked.only if name not in FAULTS]:
        parser.error(f"unknown kinds of faults: {', '.join(unknown)}; choose from {', '.join(FAULTS)}")
    return asked


if __name__ == "__main__":
    sys.exit(main())
