"""Policies on public traces: the rows of the policy tables of docs/manual/simulation.md.

    .venv/bin/python benchmarks/policies.py published|mixes|parts|elastic [--traces FOLDER]… [--windows venus,philly] [--processes 1]

published   all policies under the rules of the published simulators (all jobs preemptible, nothing lost), with their numbers
mixes       0, 25, 50 and 100 % preemptible jobs that draw how they save; windows on which `default` was made, and others
parts       what each part of `default` contributes, under the rules of the published simulators
elastic     elastic pools and sleeping nodes: energy and cost

Each writes benchmarks/results/NAME.json, from which `make tables` makes the tables. A run that is interrupted continues where
it was, as long as the commit is the same. The traces are public and not in this repository; the manual says what the files must look
like. Published numbers are those of the simulator of Lucid (ASPLOS 2023), run on the same jobs.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import process_time
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common.results import about, write_result  # noqa: E402
from gpuyard.cli.input.scenario_options import scenario_of  # noqa: E402
from gpuyard.simulator.bootstrap import IntervalsOfRun, block_intervals  # noqa: E402
from gpuyard.simulator.clusters import parse_cluster, read_nodes  # noqa: E402
from gpuyard.simulator.comparison import JobSet, PolicyRun, generated_jobs, simulate, trace_jobs  # noqa: E402

DAY = 86_400.0
SEED = 0
KNOWN = ", oracle"
"""Marks a row whose policy was given the real run times; no live scheduler has them."""
PUBLISHED_RULE, DRAWN_RULE = "published", "drawn"
BASE = "fifo+backfill"
"""The policy that all others are compared with."""


@dataclass(frozen=True, slots=True)
class Window:
    """Jobs of a trace and the nodes they run on."""

    title: str
    file: str
    cluster: str
    """NODESxGPUS, or a file of nodes with their pools."""
    made_on: bool = False
    """Whether `default` was developed while looking at it."""
    days: float | None = None
    """Only the first days."""


WINDOWS = {
    "venus": Window("Helios Venus, September 2020", "helios-venus/venus_sept_jobs.csv.gz", "helios-venus/venus_vc_nodes.csv", made_on=True),
    "philly": Window("Philly, 9 to 22 October 2017", "philly/philly_oct09_23_jobs.csv.gz", "72x8", made_on=True),
    "philly_sept": Window("Philly, September 2017", "philly_sept2017_jobs.csv.gz", "39x8"),
    "philly_oct24": Window("Philly, 24 October to 6 November 2017", "philly_oct24_nov06_jobs.csv.gz", "78x8"),
    "philly_nov07": Window("Philly, 7 to 20 November 2017", "philly_nov07_20_jobs.csv.gz", "47x8"),
    "philly_nov21": Window("Philly, 21 November to 4 December 2017", "philly_nov21_dec04_jobs.csv.gz", "41x8"),
    "philly_dec05": Window("Philly, 5 to 18 December 2017", "philly_dec05_18_jobs.csv.gz", "24x8"),
    "venus_apr": Window("Venus, April 2020", "venus_apr2020_jobs.csv.gz", "70x8"),
    "venus_may": Window("Venus, May 2020", "venus_may2020_jobs.csv.gz", "67x8"),
    "venus_june": Window("Venus, June 2020", "venus_june2020_jobs.csv.gz", "63x8"),
    "venus_july": Window("Venus, July 2020", "venus_july2020_jobs.csv.gz", "86x8"),
    "venus_aug": Window("Venus, August 2020", "venus_aug2020_jobs.csv.gz", "80x8"),
    "pai_07": Window("Alibaba PAI, days 7 to 20, 2020", "pai_day7_20_jobs.csv.gz", "56x8"),
    "pai_21": Window("Alibaba PAI, days 21 to 34, 2020", "pai_day21_34_jobs.csv.gz", "51x8"),
    "pai_35": Window("Alibaba PAI, days 35 to 48, 2020", "pai_day35_48_jobs.csv.gz", "59x8"),
    "pai_49": Window("Alibaba PAI, days 49 to 62, 2020", "pai_day49_62_jobs.csv.gz", "65x8"),
    "pai_sample_21": Window("Alibaba PAI, sample of GAIA, days 21 to 34", "pai_sample_day21_34_jobs.csv.gz", "57x8"),
    "pai_sample_35": Window("Alibaba PAI, sample of GAIA, days 35 to 48", "pai_sample_day35_48_jobs.csv.gz", "58x8"),
}  # fmt: skip
"""The windows below the first two have as many nodes as give an offered load of 0.9, in one pool; those of Venus and PAI have
no users, and run times above 48 h are cut there, except in the sample of GAIA. That is `pai-100k.csv` of github.com/umassos/GAIA,
which spreads 54 days over a year: every second job, the second first, with its arrival divided by 6.7, and at most 256 GPUs."""

OTHERS = "philly_oct24,philly_dec05,pai_sample_21,pai_sample_35,venus_june,venus_july,venus_aug,pai_21,pai_35,pai_49"
"""Windows of `mixes` on which `default` was not made."""

ALL = (
    BASE, "default", "levels", "srtf", "tiresias", "dqn", "priority", "small_first", "fair_share", "qssf+backfill",
    "sjf+backfill", "fifo", "qssf", f"srtf{KNOWN}", f"sjf+backfill{KNOWN}", f"qssf+backfill{KNOWN}", f"sjf{KNOWN}", f"qssf{KNOWN}",
)  # fmt: skip
MIXED = (
    BASE, "default", "levels", "srtf", "tiresias", "dqn", "priority", "small_first", "fair_share", "qssf+backfill",
    f"sjf+backfill{KNOWN}", f"srtf{KNOWN}",
)  # fmt: skip
MIXED_ELSEWHERE = (BASE, "default", "levels", "srtf", "tiresias", "qssf+backfill", f"srtf{KNOWN}")
MIXES = (0.0, 0.25, 0.5, 1.0)
NEVER_PREEMPT = ("fifo", "sjf", "qssf", "small_first", "fair_share")
"""Policies whose figures are the same whichever jobs may be preempted; they are simulated once."""
PARTS = (
    "default", "levels", "default:preemption=false", "default:backfill=none", "default:backfill=greedy",
    "default:preemption_limit=5", "default:preemption_limit=1000000", "default:preemption_min_run_seconds=0",
    "default:preemption_min_run_seconds=600", "default:score=fragmentation",
    "default:level_seconds=1000000000", "default:level_seconds=345600", "default:level_seconds=86400",
    "default:level_seconds=21600", "default:level_seconds=3600",
)  # fmt: skip
"""The contribution of each part of `default`, and the trade-offs of its settings."""

Only = frozenset[str] | None
"""Labels that were asked for; None means all."""
Published = tuple[float, float, float, int]
PUBLISHED: dict[str, dict[str, Published]] = {
    "venus": {
        "fifo": (65_720.5, 53_951.3, 587_041, 0), f"sjf{KNOWN}": (21_095.0, 9_325.8, 322_077, 0),
        BASE: (15_982.8, 4_213.5, 217_390, 0), f"sjf+backfill{KNOWN}": (13_965.7, 2_196.4, 143_108, 0),
        "tiresias": (14_700.0, 2_916.0, 195_846, 7_466), f"srtf{KNOWN}": (12_609.9, 829.7, 126_902, 5_507),
        "QSSF, LightGBM predictions": (18_797.5, 7_028.2, 690_767, 0),
        "QSSF, predictions of Lucid": (15_548.9, 3_779.6, 214_310, 0),
        "QSSF with backfill, predictions of Lucid": (14_116.5, 2_347.3, 133_099, 0),
        "Lucid (profiles, shares GPUs)": (12_886.2, 915.3, 93_756, 0),
    },
    "philly": {
        "fifo": (21_493.1, 12_398.5, 68_318, 0), f"sjf{KNOWN}": (10_815.1, 1_720.5, 38_604, 0),
        "tiresias": (9_658.8, 555.9, 67_730, 4_846), f"srtf{KNOWN}": (9_482.2, 363.8, 104_813, 15_352),
    },
}  # fmt: skip
"""Average seconds from submission to end, average and 99.9th percentile of the time without GPUs, preemptions."""


# --- running -------------------------------------------------------------------------------------------------------------


def jobs_of(name: str, traces: Sequence[Path], preemptible: float, checkpoints: str) -> JobSet:
    """Return the jobs of a window on its nodes."""
    window = WINDOWS[name]
    pooled = not window.cluster[0].isdigit()
    cluster = read_nodes(found(window.cluster, traces), "vc") if pooled else parse_cluster(window.cluster)
    return trace_jobs(
        found(window.file, traces), cluster, pool="vc" if pooled else None, preemptible=preemptible,
        checkpoints=checkpoints, seed=SEED,
    )  # fmt: skip


def found(file: str, traces: Sequence[Path]) -> Path:
    """Return the file in the first folder that has it, with or without its own folder."""
    for folder in traces:
        for path in (folder / file, folder / Path(file).name):
            if path.is_file():
                return path
    raise SystemExit(f"There is no {file} in {', '.join(map(str, traces))}; name its folder with --traces.")


def chosen(labels: Sequence[str], only: Only) -> tuple[str, ...]:
    """Return the first label, which others are compared with, and those that were asked for."""
    return tuple(label for label in labels if only is None or label in only or label == labels[0])


def one(jobs: JobSet, label: str, **more: Any) -> PolicyRun:
    """Return one policy on jobs."""
    policy, _, known = label.partition(KNOWN[:2])
    began = process_time()
    runs = list(simulate(jobs, policy, oracle=bool(known), **more))
    print(
        f"  {label}: {runs[-1].measures.avg_jct_s:,.1f} s; {process_time() - began:.1f} s of processor time",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    return runs[-1]


def rows_of(jobs: JobSet, labels: Sequence[str]) -> dict[str, Any]:
    """Return the figures of each policy with intervals, and differences to the first policy."""
    runs = {label: one(jobs, label) for label in labels}
    draw = Random(f"intervals {SEED}").random
    sure = block_intervals({label: run.result.recorder.lives for label, run in runs.items()}, draw)
    return {label: {**figures(run), **as_json(sure.get(label))} for label, run in runs.items()}


def figures(run: PolicyRun) -> dict[str, Any]:
    """Return the figures that are the same in every run."""
    return {name: value for name, value in run.figures.items() if name != "wall_s"}


def as_json(it: IntervalsOfRun | None) -> dict[str, Any]:
    """Return the intervals for the file."""
    if it is None:
        return {}
    pairs = {name: [round(value, 1) for value in pair] for name, pair in it.figures.items()}
    apart = {name: [round(value, 1) for value in pair] for name, pair in (it.difference or {}).items()}
    ratios = {name: [round(value, 4) for value in pair] for name, pair in (it.ratio or {}).items()}
    return {"intervals": pairs, "difference": apart, "ratio": ratios, "days": it.days, "block_days": it.block_days}


def published(name: str, traces: Sequence[Path], only: Only) -> dict[str, Any]:
    """Return all policies on one window under the rules of the published simulators."""
    print(f"{name}:", file=sys.stderr, flush=True)
    return rows_of(jobs_of(name, traces, 1.0, PUBLISHED_RULE), chosen(ALL, only))


def mix(name: str, traces: Sequence[Path], only: Only, part: float) -> dict[str, Any]:
    """Return policies on one window, with a part of preemptible jobs."""
    print(f"{name}, {part:.0%} preemptible:", file=sys.stderr, flush=True)
    labels = chosen(MIXED if WINDOWS[name].made_on else MIXED_ELSEWHERE, only)
    if part != MIXES[0]:
        labels = tuple(label for label in labels if label == BASE or not label.startswith(NEVER_PREEMPT))
    return rows_of(jobs_of(name, traces, part, DRAWN_RULE), labels)


def parts(name: str, traces: Sequence[Path], only: Only) -> dict[str, Any]:
    """Return `default` without each of its parts."""
    print(f"{name}:", file=sys.stderr, flush=True)
    return rows_of(jobs_of(name, traces, 1.0, PUBLISHED_RULE), chosen(PARTS, only))


def elastic(name: str, traces: Sequence[Path], only: Only) -> dict[str, Any]:
    """Return a fixed cluster beside an elastic pool or sleeping nodes."""
    print(f"{name}:", file=sys.stderr, flush=True)
    elastic_nodes, policies = ELASTIC[name]
    jobs: JobSet = (
        generated_jobs(4_000, "16x8:A100", seed=GENERATED_SEED, load=0.45)
        if name == "generated"
        else jobs_of(name, traces, 0.0, DRAWN_RULE)
    )
    pools = () if elastic_nodes is None else (elastic_nodes,)
    scenarios = scenario_of(
        SEED, elastic=pools, suspend_idle=None if name == "philly" else "600", price=2.0, failures=None
    )
    return {
        label + suffix: figures(one(jobs, label, scenario={"": scenario}))
        for label in chosen(policies, only)
        for suffix, scenario in scenarios.items()
    }


ELASTIC = {"generated": ("2:16", (BASE,)), "philly": ("8:72", (BASE, "default")), "venus": (None, (BASE, "default"))}
"""The limits of the elastic pool, None where nodes of several pools sleep instead, and the policies."""
GENERATED_SEED = 1


@dataclass(frozen=True, slots=True)
class Experiment:
    """What is simulated for one result."""

    result: str
    make: Callable[..., dict[str, Any]]
    """Makes the rows of one window, or of one window and variant."""
    windows: str
    settings: dict[str, Any]
    variants: tuple[float | None, ...] = (None,)


EXPERIMENTS = {
    "published": Experiment("published_policies", published, "venus,philly", {"preemptible": 1.0, "checkpoints": PUBLISHED_RULE}),
    "mixes": Experiment("preemptible_jobs", mix, f"venus,philly,{OTHERS}", {"preemptible": MIXES, "checkpoints": DRAWN_RULE}, MIXES),
    "parts": Experiment("default_parts", parts, "venus,philly", {"preemptible": 1.0, "checkpoints": PUBLISHED_RULE}),
    "elastic": Experiment("elastic_pools", elastic, "generated,philly,venus", {"preemptible": 0.0, "price": 2.0}),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--traces", type=Path, action="append", help="folder of traces; may be repeated")
    parser.add_argument("--windows", help=f"of {', '.join(WINDOWS)}")
    parser.add_argument("--policies", help="only these rows, such as default,srtf; for a quick look")
    parser.add_argument("--processes", type=int, default=1)
    asked = parser.parse_args()
    it = EXPERIMENTS[asked.experiment]
    names = (asked.windows or it.windows).split(",")
    if unknown := [name for name in names if name not in WINDOWS and name != "generated"]:
        print(f"Unknown windows: {', '.join(unknown)}; there are {', '.join(WINDOWS)}.", file=sys.stderr)
        return 2
    traces = asked.traces or [ROOT.parent / "shared" / "traces"]
    given = {"--windows": asked.windows, "--policies": asked.policies}
    words = "".join(f" {option} {value}" for option, value in given.items() if value)
    made = about(f"benchmarks/policies.py {asked.experiment}{words}", [SEED], **it.settings)
    only = frozenset(asked.policies.split(",")) if asked.policies else None
    unfinished = ROOT / "build" / f"{it.result}.unfinished.json"
    done = _continued(unfinished, made["commit"])
    missing = [(name, variant) for name in names for variant in it.variants if _key(name, variant) not in done]
    with ProcessPoolExecutor(asked.processes) as pool:
        parts_of = {
            (name, variant): pool.submit(it.make, name, traces, only, *(() if variant is None else (variant,)))
            for name, variant in missing
        }
        for (name, variant), future in parts_of.items():
            done[_key(name, variant)] = future.result()
            unfinished.parent.mkdir(exist_ok=True)
            unfinished.write_text(json.dumps({"commit": made["commit"], "rows": done}))
    rows = {_key(name, variant): done[_key(name, variant)] for name in names for variant in it.variants}
    print(f"Written: {write_result(it.result, made, rows).name}", file=sys.stderr)
    unfinished.unlink(missing_ok=True)
    return 0


def _continued(unfinished: Path, commit: str) -> dict[str, Any]:
    """Return what an interrupted run of the same commit had found."""
    if not unfinished.is_file():
        return {}
    before = json.loads(unfinished.read_text())
    rows: dict[str, Any] = before["rows"] if before["commit"] == commit else {}
    return rows


def _key(name: str, variant: float | None) -> str:
    return name if variant is None else f"{name} {variant:g}"


# --- tables --------------------------------------------------------------------------------------------------------------


def published_table(result: dict[str, Any], name: str) -> str:
    """Return all policies on one window beside the published numbers."""
    rows, known = result["rows"][name], PUBLISHED.get(name, {})
    lines = _head(
        WINDOWS[name].title, "published average jct", "average jct", "95 % interval", "median jct", "average queueing",
        "published p99.9 queueing", "p99.9 queueing", "p95 / worst FTF", "preemptions", "fragmentation",
    )  # fmt: skip
    for label, row in sorted(rows.items(), key=lambda it: -it[1]["avg_jct_s"]):
        jct, _, tail, _ = known.get(label, (None, None, None, None))
        low, high = row["intervals"]["avg_jct_s"]
        lines.append(_line(
            _policy(label), "" if jct is None else f"{jct:,.1f}", f"{row['avg_jct_s']:,.1f}", f"{low:,.0f}–{high:,.0f}", f"{row['p50_jct_s']:,.0f}",
            f"{row['avg_queue_s']:,.1f}", "" if tail is None else f"{tail:,.0f}", f"{row['p999_queue_s']:,.0f}", _fairness(row), f"{row['preemptions']:,}",
            f"{row['fragmentation']:.0%}",
        ))  # fmt: skip
    for label, (jct, queue, tail, stops) in known.items():
        if label not in rows:
            lines.append(
                _line(
                    f"published: {label}",
                    f"{jct:,.1f}",
                    "",
                    "",
                    "",
                    f"{queue:,.1f}",
                    f"{tail:,.0f}",
                    "",
                    "",
                    f"{stops:,}",
                    "",
                )
            )
    return "\n".join(lines)


def mix_table(result: dict[str, Any], name: str) -> str:
    """Return one window with all its policies: four mixes beside each other."""
    lines = _head(
        f"{WINDOWS[name].title}: average jct (p99.9 queueing)", *(f"{part:.0%} preemptible" for part in MIXES)
    )
    for label in result["rows"][_key(name, MIXES[0])]:
        cells = [_mixed_row(result, name, part, label) for part in MIXES]
        lines.append(_line(_policy(label), *(f"{row['avg_jct_s']:,.0f} ({row['p999_queue_s']:,.0f})" for row in cells)))
    return "\n".join(lines)


def difference_table(result: dict[str, Any]) -> str:
    """Return by how much policies differ from the base on all windows, with intervals."""
    lines = _head(f"average jct, compared with `{BASE}`", *(f"{part:.0%} preemptible" for part in MIXES))
    for name in _windows(result):
        base = result["rows"][_key(name, MIXES[0])][BASE]["avg_jct_s"]
        lines.append(_line(f"**{WINDOWS[name].title}** (`{BASE}`: {base:,.0f} s)", *("" for _ in MIXES)))
        for label in MIXED_ELSEWHERE[1:]:
            if label not in result["rows"][_key(name, MIXES[0])]:
                continue
            cells = [_mixed_row(result, name, part, label) for part in MIXES]
            lines.append(_line(_policy(label), *(_difference(row, base) for row in cells)))
    return "\n".join(lines)


def tail_table(result: dict[str, Any]) -> str:
    """Return tails, fairness and losses of `default` and of the base on all windows."""
    lines = _head(
        "p99.9 queueing · median jct · p95 / worst FTF · GPU-hours lost", *(f"{part:.0%} preemptible" for part in MIXES)
    )
    for name in _windows(result):
        for label in (BASE, "default"):
            cells = [_mixed_row(result, name, part, label) for part in MIXES]
            lines.append(_line(
                f"{WINDOWS[name].title}, {_policy(label)}",
                *(f"{row['p999_queue_s']:,.0f} · {row['p50_jct_s']:,.0f} · {_fairness(row)} · {row.get('preemption_loss_gpu_hours', 0):,.0f}" for row in cells),
            ))  # fmt: skip
    return "\n".join(lines)


def parts_table(result: dict[str, Any]) -> str:
    """Return what each part of `default` contributes."""
    names = list(result["rows"])
    lines = _head("", *(f"{name.capitalize()}: {what}" for name in names for what in ("average jct", "− `default`, 95 %", "p99.9 queueing", "average slowdown")))  # fmt: skip
    for label in next(iter(result["rows"].values())):
        cells = []
        for name in names:
            row = result["rows"][name][label]
            apart = row["difference"].get("avg_jct_s")
            between = "" if not apart else f"{apart[0]:+,.0f} to {apart[1]:+,.0f}"
            cells += [f"{row['avg_jct_s']:,.1f}", between, f"{row['p999_queue_s']:,.0f}", f"{row['avg_slowdown']:.2f}"]
        shown = label.replace("default:", ":") if label != "default" else label
        lines.append(_line(f"`{shown}`", *cells))
    return "\n".join(lines)


def elastic_table(result: dict[str, Any]) -> str:
    """Return energy and cost of fixed clusters, elastic pools and sleeping nodes."""
    lines = _head("", "average jct (s)", "average queueing", "GPU-hours up", "energy (kWh)", "cost")
    for name, rows in result["rows"].items():
        title = "generated jobs" if name == "generated" else WINDOWS[name].title
        for label, row in rows.items():
            cost = f"{row['cost']:,.0f}" if "cost" in row else ""
            lines.append(_line(
                f"{title}, `{label}`", f"{row['avg_jct_s']:,.0f}", f"{row['avg_queue_s']:,.0f}", f"{row['gpu_hours_up']:,.0f}", f"{row['energy_kwh']:,.0f}", cost,
            ))  # fmt: skip
    return "\n".join(lines)


def _windows(result: dict[str, Any]) -> Iterator[str]:
    """Return the windows of a result with all their mixes."""
    return (name for name in WINDOWS if all(_key(name, part) in result["rows"] for part in MIXES))


def _mixed_row(result: dict[str, Any], name: str, part: float, label: str) -> dict[str, Any]:
    """Return one row; a policy that preempts nothing was simulated once."""
    rows: dict[str, Any] = result["rows"]
    row: dict[str, Any] = rows[_key(name, part)].get(label) or rows[_key(name, MIXES[0])][label]
    return row


def _difference(row: dict[str, Any], base: float) -> str:
    """Return the relative difference; results from before ratios were stored have the difference over the mean of the base."""
    if ratios := row.get("ratio"):
        low, high = (ratio - 1 for ratio in ratios["avg_jct_s"])
    else:
        low, high = (apart / base for apart in row["difference"]["avg_jct_s"])
    return f"{row['avg_jct_s'] / base - 1:+.1%} ({low:+.0%} to {high:+.0%})"


def _policy(label: str) -> str:
    policy = label.removesuffix(KNOWN)
    text = f"`{policy}`" + (" with true run times (oracle)" if KNOWN in label else "")
    return f"**{text}**" if label == "default" else text


def _fairness(row: dict[str, Any]) -> str:
    return f"{row['p95_ftf']:.2f} / {row['worst_ftf']:,.0f}"


def _head(*titles: str) -> list[str]:
    return [_line(*titles), "|" + "---|" * len(titles)]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
