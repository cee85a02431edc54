"""The policy `dqn` compared with every other on unseen workloads: which has the lowest average completion time?

    python benchmarks/dqn.py --venus venus_sept_jobs.csv.gz --philly philly_oct2017_jobs.csv.gz --table table.md --picture dqn.png

Unseen are all seeds, a load, a size, the second half of Venus (the model was trained on the first) and all of Philly. Each
kind of workload is generated ten times and simulated under every policy. The *best* heuristic of a kind is the one with the
lowest mean over those ten, which favors the heuristics: it is chosen on what is reported. Ratios are means of the ten
paired ratios (of their logarithms), with the interval that holds the true mean 95 times of 100. Beside `dqn` as it ships stand the
same networks without their guard, and the rule of thumb that the networks begin with, alone. CPU time is that of the simulation.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import exp, log
from multiprocessing import get_context
from pathlib import Path
from time import process_time

import numpy as np

from gpuyard.core.engine.scheduling.advice import FEATURES, Advisor
from gpuyard.learn.policy_network import DEFAULT, AdvantageAdvisor, Layer, load
from gpuyard.learn.training.regimes import DESK, GAVEL, GAVEL_NODES, TRAINED, Regime
from gpuyard.learn.training.train import TEST_SEEDS
from gpuyard.simulator.confidence import mean_of
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.run import simulate_policy
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.trace import read_trace

HEURISTICS = (
    "fifo", "fifo+backfill", "sjf", "sjf+backfill", "qssf", "qssf+backfill", "srtf", "default", "levels", "tiresias",
    "small_first", "priority", "fair_share",
)  # fmt: skip
LEARNED = ("dqn", "dqn, no guard", "rule of thumb")
KINDS = (
    *TRAINED,
    Regime("one model", "2x8:new", 0.85),
    Regime("desk, busier", "1x4:new+1x4:old", 0.75, DESK),
    Regime("larger lab, 128 GPUs", "6x8:new+10x8:old", 0.6, DESK),
    Regime("three models, later Venus", GAVEL_NODES, 0.45, GAVEL, trace="venus"),
    Regime("three models, Philly", GAVEL_NODES, 0.45, GAVEL, trace="philly"),
    Regime("three models, may be stopped", GAVEL_NODES, 0.45, GAVEL, jobs=300, preemptible=True),
    Regime("one model, may be stopped", "2x8:new", 0.85, preemptible=True),
)
"""The first three with other seeds only; then another load, another size, other jobs; and two in which jobs are preemptible."""


def traces_of(venus: Path | None, philly: Path | None) -> dict[str, list[Job]]:
    """Recorded jobs: of Venus those that the model was not trained on."""
    found = {}
    if venus is not None:
        jobs = read_trace(venus).jobs
        half = (jobs[0].submit + jobs[-1].submit) / 2
        found["venus"] = [job for job in jobs if job.submit > half]
    if philly is not None:
        found["philly"] = read_trace(philly).jobs
    return found


def advisors(path: Path) -> dict[str, Advisor]:
    """By what they are called in the table."""
    model = load(path, FEATURES)
    silent = tuple(tuple(Layer(np.zeros_like(it.weights), np.zeros_like(it.bias)) for it in net) for net in model.nets)
    return {
        "dqn": AdvantageAdvisor(model),
        "dqn, no guard": AdvantageAdvisor(model, guarded=False),
        "rule of thumb": AdvantageAdvisor(model._replace(nets=silent), guarded=False),
    }


def once(
    kind: Regime, place: int, path: Path, venus: Path | None, philly: Path | None
) -> dict[str, tuple[float, float]]:
    """One workload under every policy: average completion time, and CPU seconds."""
    workload = kind.workload(TEST_SEEDS + place, traces_of(venus, philly) if kind.trace else {})
    advise = advisors(path)
    found = {}
    for name in (*HEURISTICS, *LEARNED):
        began = process_time()
        figures = simulate_policy(
            workload, policy_variant("dqn" if name in advise else name), advisor=advise.get(name)
        ).measures
        found[name] = figures.avg_jct_s, process_time() - began
    return found


def compared(runs: Sequence[Mapping[str, tuple[float, float]]]) -> dict[str, object]:
    """The figures of one kind."""
    means = {name: sum(run[name][0] for run in runs) / len(runs) for name in runs[0]}
    best = min(HEURISTICS, key=lambda name: means[name])
    ratios = {}
    for name in LEARNED:
        ratio = mean_of([log(run[name][0] / run[best][0]) for run in runs])
        ratios[name] = {
            "ratio": exp(ratio.mean),
            "low": exp(ratio.mean - ratio.ci95),
            "high": exp(ratio.mean + ratio.ci95),
        }
    cpu = {name: sum(run[name][1] for run in runs) / len(runs) for name in (best, "dqn")}
    return {
        "best": best,
        "avg_jct_s": means,
        "ratios": ratios,
        "cpu_s": cpu,
        "runs": [{n: r[n][0] for n in r} for r in runs],
    }


def written(found: Mapping[str, dict[str, object]], seeds: int) -> str:
    """Two tables in Markdown: `dqn` and the best heuristic, and all policies."""
    lines = [f"| workloads ({seeds} each) | best heuristic | its average (s) | `dqn` over it | no guard | rule of thumb |", "|---|---|---|---|---|---|"]  # fmt: skip
    for kind, it in found.items():
        cells = [f"{r['ratio']:.3f} ({r['low']:.3f}–{r['high']:.3f})" for r in it["ratios"].values()]  # type: ignore[attr-defined]
        lines.append(
            f"| {kind} | `{it['best']}` | {it['avg_jct_s'][it['best']]:,.0f} | **{cells[0]}** | {cells[1]} | {cells[2]} |"
        )  # type: ignore[index]
    lines += ["", f"| average completion time (s) | {' | '.join(found)} |", f"|---|{'---|' * len(found)}"]
    for name in (*HEURISTICS, *LEARNED):
        figures = " | ".join(f"{it['avg_jct_s'][name]:,.0f}" for it in found.values())  # type: ignore[index]
        lines.append(f"| {name if name in LEARNED[1:] else f'`{name}`'} | {figures} |")
    return "\n".join(lines) + "\n"


def draw(found: Mapping[str, dict[str, object]], path: Path) -> None:
    """The distance of every policy from the best heuristic, by kind."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 0.5 * len(found) + 1.2), layout="constrained")
    for place, (name, colour) in enumerate(zip(LEARNED, ("tab:blue", "tab:orange", "tab:grey"), strict=True)):
        rows = [kind["ratios"][name] for kind in found.values()]  # type: ignore[index]
        middle = [row["ratio"] for row in rows]
        sides = [[row["ratio"] - row["low"] for row in rows], [row["high"] - row["ratio"] for row in rows]]
        heights = [height + 0.2 * (place - 1) for height in range(len(rows))]
        axes.errorbar(middle, heights, xerr=sides, fmt="o", color=colour, label=name, markersize=4, capsize=2)
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.set_xlabel("average completion time over that of the best heuristic (left is better)")
    axes.legend(loc="best")
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    """Simulate everything and write the results."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--model", type=Path, default=DEFAULT)
    ask.add_argument("--venus", type=Path)
    ask.add_argument("--philly", type=Path)
    ask.add_argument("--seeds", type=int, default=10)
    ask.add_argument("--workers", type=int, default=1)
    ask.add_argument("--table", type=Path)
    ask.add_argument("--picture", type=Path)
    ask.add_argument("--json", type=Path)
    said = ask.parse_args()
    there = {"": True, "venus": said.venus, "philly": said.philly}
    kinds = [kind for kind in KINDS if there[kind.trace]]
    with ProcessPoolExecutor(said.workers, mp_context=get_context("spawn")) as pool:
        waiting = {
            kind.name: [
                pool.submit(once, kind, place, said.model, said.venus, said.philly) for place in range(said.seeds)
            ]
            for kind in sorted(kinds, key=lambda kind: -kind.jobs)
        }
        found = {}
        for kind in kinds:
            found[kind.name] = compared([each.result() for each in waiting[kind.name]])
            print(
                f"{kind.name}: {json.dumps({k: v for k, v in found[kind.name].items() if k != 'runs'})}",
                file=sys.stderr,
                flush=True,
            )
            if said.json:
                said.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    if said.picture:
        draw(found, said.picture)
    table = written(found, said.seeds)
    print(table)
    if said.table:
        said.table.write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
