"""HTML report of a comparison: the table and the charts in a single self-contained file."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape

from msgspec.structs import astuple

from gpuyard.simulator.accuracy import accuracy
from gpuyard.simulator.bootstrap import IntervalsOfRun
from gpuyard.simulator.charts import titles
from gpuyard.simulator.measures import as_json, rounded
from gpuyard.simulator.run import Result

COLUMNS = {
    "jobs": "jobs",
    "avg_jct_s": "average jct (s)",
    "p50_jct_s": "median jct",
    "p99_jct_s": "p99 jct",
    "avg_queue_s": "average queueing (s)",
    "p99_queue_s": "p99 queueing",
    "p999_queue_s": "p99.9 queueing",
    "p95_ftf": "p95 finish-time fairness",
    "worst_ftf": "worst finish-time fairness",
    "preemptions": "preemptions",
    "moves": "of these, moves",
    "preemption_loss_gpu_hours": "GPU-hours lost to preemptions",
    "utilization": "utilization",
    "avg_slowdown": "average slowdown",
    "worst_slowdown": "worst slowdown",
    "user_fairness": "fairness of users",
    "makespan_s": "makespan (s)",
    "fragmentation": "fragmentation",
    "energy_kwh": "energy (kWh)",
    "gpu_hours_up": "GPU-hours up",
    "cost": "cost",
    "node_failures": "node failures",
    "nodes_revoked": "nodes taken away",
    "attempts_lost": "attempts lost",
    "gpu_hours_lost": "GPU-hours lost",
}

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1c1c1c; background: #fff }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px }
th, td { padding: .35rem .6rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: #fff }
td.best { font-weight: 600; background: #e8f3ec }
figure { margin: 1.5rem 0 } img { max-width: 100%; height: auto; border: 1px solid #eee }
.wide { overflow-x: auto }
"""

FTF = "Finish-time fairness: jct over the jct with an even share of the GPUs; above 1 the job ends later than with its share. "
UP = "Utilization: the part of all GPU-hours that is in use, in rows with +elastic or +suspend of the GPU-hours up. "
LESS_IS_BETTER = frozenset(name for name in COLUMNS if name not in {"jobs", "utilization", "user_fairness"})


def page(
    title: str,
    note: str,
    results: Sequence[Result],
    pictures: Mapping[str, bytes],
    intervals: Mapping[str, IntervalsOfRun] | None = None,
    missing: Sequence[str] = (),
) -> str:
    """Return the page as HTML; `missing` are sentences about tasks that the figures do not cover."""
    figures = "".join(
        f'<figure><img alt="{escape(title_of)}" src="data:image/png;base64,{b64encode(pictures[name]).decode()}"></figure>'
        for name, title_of in titles().items()
        if name in pictures
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style><h1>{escape(title)}</h1><p>{escape(note)}</p>"
        f"{''.join(f'<p>{escape(sentence)}</p>' for sentence in missing)}"
        f'<div class="wide">{_table(results)}</div>'
        "<p>jct: from submission to end. Queueing: the part of it without GPUs. Slowdown: jct over the time with GPUs, "
        f"which counts as 10 s at least. {UP if any('gpu_hours_up' in it.further for it in results) else ''}{FTF if any('p95_ftf' in it.further for it in results) else ''}"
        "Fairness: Jain's index over users' mean slowdowns, 1 is even.</p>"
        f"{_intervals(intervals or {})}{_accuracies(results)}{figures}</html>\n"
    )


def _table(results: Sequence[Result]) -> str:
    rows = [(result.policy_variant.name, {**as_json(result.measures), **rounded(result.further)}) for result in results]
    columns = {name: title for name, title in COLUMNS.items() if any(name in row for _, row in rows)}
    best = {
        name: (min if name in LESS_IS_BETTER else max)(row[name] for _, row in rows if name in row)
        for name in columns
        if name not in {"jobs", "moves", "gpu_hours_up", "node_failures", "nodes_revoked"} and len(rows) > 1
    }
    head = "".join(f"<th>{escape(title)}</th>" for title in ("policy", *columns.values()))
    body = "".join(
        f"<tr><td>{escape(policy)}</td>"
        + "".join(
            f"<td{' class=best' if best.get(name) == row[name] else ''}>{_spoken(row[name])}</td>"
            if name in row
            else "<td></td>"
            for name in columns
        )
        + "</tr>"
        for policy, row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _intervals(found: Mapping[str, IntervalsOfRun]) -> str:
    """Return the table of confidence intervals; empty if the workload was too short for them."""
    if not found:
        return ""
    base, first = next(iter(found.items()))
    names = {"avg_jct_s": "average jct (s)", "avg_queue_s": "average queueing (s)", "p999_queue_s": "p99.9 queueing"}
    titles = ["policy", *names.values(), *(f"{title} − {base}" for title in names.values())]
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = ""
    for policy, it in found.items():
        pairs = [it.figures[name] for name in names]
        pairs += [it.difference[name] for name in names] if it.difference else []
        cells = "".join(f"<td>{pair.low:,.0f} to {pair.high:,.0f}</td>" for pair in pairs)
        body += f"<tr><td>{escape(policy)}</td>{cells}</tr>"
    return (
        "<h2>95 % intervals</h2>"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f"<p>From blocks of {first.block_days} of the {first.days} days, drawn with replacement; differences are paired "
        "by draw. A difference whose interval contains 0 may be chance.</p>"
    )


def _accuracies(results: Sequence[Result]) -> str:
    """Return the table of prediction accuracy; empty if nothing was predicted."""
    rows = [(result.policy_variant.name, it) for result in results if (it := accuracy(result.forecasts)) is not None]
    if not rows:
        return ""
    titles = ("policy", "predicted", "typical factor", "median error", "rank correlation", "within band", "below high")
    head = "".join(f"<th>{title}</th>" for title in titles)
    body = "".join(
        f"<tr><td>{escape(policy)}</td>{''.join(f'<td>{_spoken(value)}</td>' for value in astuple(it))}</tr>"
        for policy, it in rows
    )
    return (
        "<h2>Predicted run times</h2>"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        "<p>Typical factor: by how much they were wrong on average, up or down. Median error: half were wrong by no more "
        "than this part. Rank correlation: 1, all in the right order. Within band: nine of ten should be; below its high "
        "side, nineteen of twenty.</p>"
    )


def _spoken(value: int | float) -> str:
    return f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:,.2f}"
