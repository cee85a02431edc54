"""Daily bursts of tasks of similar length beside the tasks of other users: where `default` may preempt too much.

    .venv/bin/python benchmarks/bursts.py [--seeds 11:16] [--preemptible 0.25,1] [--policies default] [--names one,each,none,hidden]
                                          [--lengths similar,wide,mixed] [--checkpoints drawn] [--json]

Eight days on four nodes of eight GPUs. Each day has a burst of 250 tasks of one user, 30 to 90 minutes long, on 1, 2 or 4 GPUs,
submitted within five minutes, and 80 tasks of four other users at any time, with log-normal run times (median 18 minutes) on 1, 2
or 4 GPUs. The GPUs are offered work for about 85 % of the time. Jobs draw how they save, and all policies run the same jobs.

--names     one: the tasks of a user have one name; each: each has its own, with its parameters; none: they have commands with
            parameters and no names; hidden: neither, as in the public traces
--lengths   similar: as above; wide: the tasks of a burst are log-normal with a spread of 1.5; mixed: nine of ten take 1 to 10
            minutes, one takes 5 to 13 hours. The mean is about an hour in all cases

Each row compares the mean completion time with that of `fifo+backfill`. The same seed gives the same figures.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import exp
from pathlib import Path
from random import Random
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from gpuyard.simulator.comparison import JobSet, simulate, trace_jobs  # noqa: E402

BASE = "fifo+backfill"
CLUSTER = "4x8"
DAYS, DAY = 8, 86_400
EACH_DAY, OTHERS_EACH_DAY = 250, 80
BURST_SECONDS = 300
OTHERS_MEDIAN_SECONDS, OTHERS_SPREAD = 1_080, 1.0
WIDE_SPREAD = 1.5
WIDE_MEDIAN_SECONDS = 3_600 * exp(-WIDE_SPREAD * WIDE_SPREAD / 2)
SHORT, LONG, LONG_SHARE = (60.0, 600.0), (18_000.0, 48_000.0), 0.1
"""With these, the mean run time of the tasks of a burst is about an hour, as it is with `--lengths similar`."""


def write_jobs(path: Path, seed: int, names: str = "one", lengths: str = "similar") -> Path:
    """Write the jobs of one seed as a trace; the random numbers of the jobs do not depend on how they are named."""
    draw, drawn_name = Random(f"bursts {seed}"), Random(f"names {seed}")
    rows: list[tuple[float, float, int, str, str]] = []
    for day in range(DAYS):
        begins = day * DAY + draw.uniform(0, DAY / 2)
        for _ in range(EACH_DAY):
            at, seconds = begins + draw.uniform(0, BURST_SECONDS), draw.uniform(1_800, 5_400)
            if lengths == "wide":
                seconds = min(max(10.0, WIDE_MEDIAN_SECONDS * exp(draw.gauss(0, WIDE_SPREAD))), 2.0 * DAY)
            elif lengths == "mixed":
                seconds = draw.uniform(*(LONG if draw.random() < LONG_SHARE else SHORT))
            gpus = draw.choice((1, 2, 4))
            rows += [(at, seconds, gpus, "sweep", "trial")]
        for _ in range(OTHERS_EACH_DAY):
            user = f"user{draw.randrange(4)}"
            seconds = min(max(10.0, OTHERS_MEDIAN_SECONDS * exp(draw.gauss(0, OTHERS_SPREAD))), 2.0 * DAY)
            rows.append(
                (day * DAY + draw.uniform(0, DAY), seconds, draw.choice((1, 1, 1, 1, 2, 4)), user, f"{user}-work")
            )
    lines = [
        f"{at:.0f},{seconds:.0f},{gpus},{user},{_called(work, names, drawn_name)}"
        for at, seconds, gpus, user, work in sorted(rows)
    ]
    path.write_text("\n".join(["submit_s,duration_s,gpu_num,user,name,command", *lines]) + "\n", encoding="utf-8")
    return path


def _called(work: str, names: str, draw: Random) -> str:
    """Return the name and the command of a task, as cells."""
    rate, seed = draw.choice(("0.1", "0.03", "1e-3", "3e-4")), draw.randrange(10_000)
    if names == "one":
        return f"{work},"
    if names == "each":
        return f"{work}-lr{rate}-seed{seed},"
    return f",python {work}.py --lr {rate} --seed {seed}" if names == "none" else ","


@dataclass(frozen=True, slots=True)
class Draw:
    """Which jobs are drawn, and what they lose when they are preempted."""

    seed: int
    preemptible: float
    lengths: str = "similar"
    checkpoints: str = "drawn"

    def jobs(self, folder: Path, names: str) -> JobSet:
        """Return the jobs under these names."""
        trace = write_jobs(folder / "jobs.csv", self.seed, names, self.lengths)
        return trace_jobs(trace, CLUSTER, preemptible=self.preemptible, checkpoints=self.checkpoints, seed=self.seed)


def one(draw: Draw, names: str, policies: Sequence[str], folder: Path, base: dict[Draw, float]) -> dict[str, Any]:
    """Return the mean completion time of each policy on one draw, and what preemptions cost.

    `base` keeps what was simulated under `fifo+backfill`, which knows no names.
    """
    known = draw in base
    runs = {
        run.name: run.figures for run in simulate(draw.jobs(folder, names), policies if known else (BASE, *policies))
    }
    if not known:
        base[draw] = runs[BASE]["avg_jct_s"]
    row: dict[str, Any] = {**asdict(draw), "names": names, BASE: base[draw]}
    for name in policies:
        ran = runs[name]
        row[name] = {
            "avg_jct_s": ran["avg_jct_s"],
            "ratio": round(ran["avg_jct_s"] / base[draw], 4),
            "preemptions": ran["preemptions"],
            "loss_gpu_hours": ran.get("preemption_loss_gpu_hours"),
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="11:16", help="FIRST:LAST, the last one excluded")
    parser.add_argument("--preemptible", default="0.25,1")
    parser.add_argument("--policies", default="default")
    parser.add_argument("--names", default="one", help="one, each, none or hidden, or several with commas")
    parser.add_argument("--checkpoints", default="drawn", help="what a preempted job loses: drawn or published")
    parser.add_argument("--lengths", default="similar", help="similar, wide or mixed, or several with commas")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    first, last = map(int, args.seeds.split(":"))
    policies = args.policies.split(",")
    groups = [
        (lengths, share, names)
        for lengths in args.lengths.split(",")
        for share in map(float, args.preemptible.split(","))
        for names in args.names.split(",")
    ]
    rows: list[dict[str, Any]] = []
    base: dict[Draw, float] = {}
    with TemporaryDirectory() as folder:
        for lengths, share, names in groups:
            draws = [Draw(seed, share, lengths, args.checkpoints) for seed in range(first, last)]
            of_group = [one(draw, names, policies, Path(folder), base) for draw in draws]
            rows += of_group
            for name in policies:
                ratios = [row[name]["ratio"] for row in of_group]
                slower = sum(ratio > 1 for ratio in ratios)
                print(
                    f"names {names}, lengths {lengths}, {share:.0%} preemptible, {name}: mean {fmean(ratios) - 1:+.1%}, "
                    f"worst {max(ratios) - 1:+.1%}, slower in {slower} of {len(ratios)}, "
                    f"{fmean(row[name]['preemptions'] for row in of_group):.0f} preemptions, "
                    f"{fmean(row[name]['loss_gpu_hours'] or 0.0 for row in of_group):.0f} GPU-hours lost",
                    file=sys.stderr if args.json else sys.stdout,
                    flush=True,
                )
    if args.json:
        json.dump(rows, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
