"""The policy `dqn` compared with every other on unseen workloads, above all with the hand-written rule that it corrects.

    python benchmarks/dqn.py --venus venus_sept_jobs.csv.gz --philly philly_oct2017_jobs.csv.gz --seeds 120 --workers 16 --json benchmarks/results/dqn.json
    python benchmarks/dqn.py --render benchmarks/results/dqn.json

Unseen are all seeds, two loads, a size, the second half of Venus (the model was trained on the first) and all of Philly. The
*rule* is `dqn` without a model: a task waits for faster GPUs if that saves three tenths of its run. It is a baseline like any
other policy. The *best* policy without learning is the one with the lowest mean over the workloads of a row, which favors it:
it is chosen on what is reported. Ratios are means of the paired ratios (of their logarithms), with 95 % intervals (Student's t).
The tail is the 99.9th percentile of the queueing time of a workload, which is nearly its longest wait; its mean over the workloads.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from math import exp, log
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from gpuyard.core.engine.scheduling.advice import FEATURES, Advisor
from gpuyard.learn.policy_network import DEFAULT, AdvantageAdvisor, load
from gpuyard.learn.training.regimes import DESK, GAVEL, GAVEL_NODES, TRAINED, Regime
from gpuyard.learn.training.train import TEST_SEEDS
from gpuyard.simulator.confidence import mean_of
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.run import simulate_policy
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.trace import read_trace

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common.results import about

RULE = "rule"
PLAIN = (
    "fifo", "fifo+backfill", "sjf", "sjf+backfill", "qssf", "qssf+backfill", "srtf", "default", "levels", "tiresias",
    "small_first", "priority", "fair_share", RULE,
)  # fmt: skip
"""Policies without learning; `rule` is `dqn` without a model."""
KINDS = (
    *TRAINED,
    Regime("desk, busier", "1x4:new+1x4:old", 0.75, DESK),
    Regime("lab, three models, busier", GAVEL_NODES, 0.6, GAVEL),
    Regime("larger lab, 128 GPUs", "6x8:new+10x8:old", 0.6, DESK),
    Regime("one model", "2x8:new", 0.85),
    Regime("three models, later Venus", GAVEL_NODES, 0.45, GAVEL, trace="venus"),
    Regime("three models, Philly", GAVEL_NODES, 0.45, GAVEL, trace="philly"),
    Regime("three models, preemptible", GAVEL_NODES, 0.45, GAVEL, jobs=300, preemptible=True),
    Regime("one model, preemptible", "2x8:new", 0.85, preemptible=True),
)
"""The kinds that the model was trained on, with other seeds; then other loads, another size, other jobs; and preemptible jobs."""


class Times(NamedTuple):
    """What one workload took under one policy, in seconds."""

    average: float
    """Completion time."""
    tail: float
    """99.9th percentile of the queueing time."""


@cache
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


def advisors(models: Mapping[str, Path], *, unguarded: bool) -> dict[str, Advisor]:
    """Each model with its guard, and also without if wanted, by what they are called in the table."""
    found: dict[str, Advisor] = {}
    for name, path in models.items():
        model = load(path, FEATURES)
        found[name] = AdvantageAdvisor(model)
        if unguarded:
            found[f"{name}, no guard"] = AdvantageAdvisor(model, guarded=False)
    return found


def once(
    kind: Regime,
    seed: int,
    models: Mapping[str, Path],
    files: tuple[Path | None, Path | None],
    plain: Sequence[str],
    unguarded: bool,
) -> dict[str, Times]:
    """What one workload took under every policy."""
    workload = kind.workload(seed, traces_of(*files) if kind.trace else {})

    def under(name: str, advisor: Advisor | None = None) -> Times:
        measures = simulate_policy(workload, policy_variant(name), advisor=advisor).measures
        return Times(measures.avg_jct_s, measures.p999_queue_s)

    found = {name: under("dqn" if name == RULE else name) for name in plain}
    return found | {name: under("dqn", advisor) for name, advisor in advisors(models, unguarded=unguarded).items()}


def ratio(runs: Sequence[Mapping[str, Times]], name: str, other: str) -> list[float]:
    """Mean of the paired ratios, and its interval."""
    found = mean_of([log(each[name].average / each[other].average) for each in runs])
    return [exp(found.mean), exp(found.mean - found.ci95), exp(found.mean + found.ci95)]


def compared(runs: Sequence[Mapping[str, Times]], plain: Sequence[str]) -> dict[str, Any]:
    """The figures of one kind."""
    means = {name: sum(each[name].average for each in runs) / len(runs) for name in runs[0]}
    best = min(plain, key=lambda name: means[name])
    learned = [name for name in runs[0] if name not in plain]
    return {
        "best": best,
        "avg_jct_s": {name: round(value, 1) for name, value in means.items()},
        "p999_queue_s": {name: round(sum(each[name].tail for each in runs) / len(runs), 1) for name in runs[0]},
        "over_best": {name: ratio(runs, name, best) for name in learned},
        "over_rule": {name: ratio(runs, name, RULE) for name in (*learned, best)},
        "seeds": len(runs),
    }


def cell(figures: Sequence[float]) -> str:
    """A ratio with its interval; bold if the interval does not contain 1."""
    middle, low, high = figures
    text = f"{middle:.3f} ({low:.3f}–{high:.3f})"
    return f"**{text}**" if high < 1.0 or low > 1.0 else text


def render(data: Mapping[str, Any]) -> str:
    """Three tables in Markdown: each model relative to the rule and to the best policy, all averages, and all tails."""
    kinds: Mapping[str, Any] = data["kinds"]
    learned = list(next(iter(kinds.values()))["over_best"])
    lines = [
        f"| workloads | seeds | best without learning | its average (s) | {' | '.join(f'{name}, over the rule' for name in learned)} | `{learned[0]}` over the best |",
        f"|---|---|---|---|{'---|' * (len(learned) + 1)}",
    ]
    for kind, it in kinds.items():
        cells = " | ".join(cell(it["over_rule"][name]) for name in learned)
        lines.append(
            f"| {kind} | {it['seeds']} | `{it['best']}` | {it['avg_jct_s'][it['best']]:,.0f} | {cells} | {cell(it['over_best'][learned[0]])} |"
        )
    for title, figure in (("average completion time (s)", "avg_jct_s"), ("p99.9 queueing (s)", "p999_queue_s")):
        if any(figure not in it for it in kinds.values()):  # results of before tails were kept
            continue
        lines += ["", f"| {title} | {' | '.join(kinds)} |", f"|---|{'---|' * len(kinds)}"]
        for name in next(iter(kinds.values()))[figure]:
            figures = " | ".join(f"{it[figure][name]:,.0f}" for it in kinds.values())
            lines.append(f"| `{name}` | {figures} |")
    return "\n".join(lines) + "\n"


def draw(data: Mapping[str, Any], path: Path) -> None:
    """The distance of every model from the rule, by kind."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    kinds: Mapping[str, Any] = data["kinds"]
    learned = list(next(iter(kinds.values()))["over_best"])
    figure, axes = plt.subplots(figsize=(9, 0.5 * len(kinds) + 1.2), layout="constrained")
    for place, name in enumerate(learned):
        rows = [kind["over_rule"][name] for kind in kinds.values()]
        middle = [row[0] for row in rows]
        sides = [[row[0] - row[1] for row in rows], [row[2] - row[0] for row in rows]]
        heights = [height + 0.15 * (place - (len(learned) - 1) / 2) for height in range(len(rows))]
        axes.errorbar(middle, heights, xerr=sides, fmt="o", label=name, markersize=4, capsize=2)
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(kinds)), list(kinds))
    axes.invert_yaxis()
    axes.set_xlabel("average completion time over that of the rule (left is better)")
    axes.legend(loc="best")
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    """Simulate everything and write the results."""
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--model", action="append", default=[], metavar="NAME=FILE", help="default: the one that ships")
    ask.add_argument("--venus", type=Path)
    ask.add_argument("--philly", type=Path)
    ask.add_argument("--seeds", type=int, default=10, help="workloads of each kind")
    ask.add_argument("--first", type=int, default=TEST_SEEDS, help="first seed")
    ask.add_argument("--only", default="", help="policies without learning, with commas; default: all")
    ask.add_argument(
        "--kinds", default="", help="kinds of workloads that contain one of these words, with commas; default: all"
    )
    ask.add_argument("--unguarded", action="store_true", help="each model also without its guard")
    ask.add_argument("--workers", type=int, default=1)
    ask.add_argument("--picture", type=Path)
    ask.add_argument("--json", type=Path)
    ask.add_argument("--render", type=Path, help="print the tables of a result file and simulate nothing")
    said = ask.parse_args()
    if said.render:
        print(render(json.loads(said.render.read_text(encoding="utf-8"))))
        return
    models = {name: Path(file) for name, _, file in (each.partition("=") for each in said.model)} or {"dqn": DEFAULT}
    plain = tuple(dict.fromkeys((*said.only.split(","), RULE))) if said.only else PLAIN
    words = said.kinds.split(",") if said.kinds else [""]
    there = {"": True, "venus": said.venus, "philly": said.philly}
    kinds = [kind for kind in KINDS if there[kind.trace] and any(word in kind.name for word in words)]
    data: dict[str, Any] = {
        "about": about(
            " ".join(["benchmarks/dqn.py", *sys.argv[1:]]), list(range(said.first, said.first + said.seeds))
        ),
        "kinds": {},
    }
    with ProcessPoolExecutor(said.workers, mp_context=get_context("spawn")) as pool:
        waiting = {
            kind.name: [
                pool.submit(once, kind, said.first + place, models, (said.venus, said.philly), plain, said.unguarded)
                for place in range(said.seeds)
            ]
            for kind in kinds
        }
        for kind in kinds:
            data["kinds"][kind.name] = compared([each.result() for each in waiting[kind.name]], plain)
            print(f"{kind.name}: {json.dumps(data['kinds'][kind.name])}", file=sys.stderr, flush=True)
            if said.json:
                said.json.parent.mkdir(parents=True, exist_ok=True)
                said.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    if said.picture:
        draw(data, said.picture)
    print(render(data))


if __name__ == "__main__":
    main()
