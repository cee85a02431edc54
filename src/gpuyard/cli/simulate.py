"""`gpuyard simulate`: compare policies with the live engine under a virtual clock."""

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.input.options import finite, json_option
from gpuyard.core.domain.errors import WrongInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpuyard.simulator.bootstrap import IntervalsOfRun
    from gpuyard.simulator.clusters import Cluster
    from gpuyard.simulator.comparison import JobSet, PolicyRun
    from gpuyard.simulator.run import ProgressCallback, Result


TITLES = {
    "p95_ftf": ("P95 FTF", "{:.2f}"),
    "worst_ftf": ("WORST FTF", "{:,.1f}"),
    "fragmentation": ("FRAGMENTED", "{:.0%}"),
    "energy_kwh": ("KWH", "{:,.0f}"),
    "gpu_hours_up": ("GPU-HOURS UP", "{:,.0f}"),
    "cost": ("COST", "{:,.0f}"),
    "node_failures": ("FAILURES", "{:,}"),
    "nodes_revoked": ("REVOKED", "{:,}"),
    "attempts_lost": ("LOST", "{:,}"),
    "gpu_hours_lost": ("GPU-HOURS LOST", "{:,.0f}"),
    "preemption_loss_gpu_hours": ("PREEMPTION LOSS", "{:,.0f}"),
}
"""Optional figures, with their formats."""
DIFFERENT_TASKS = "Figures cover only tasks that end, so averages of different rows cover different tasks."
"""Said if tasks are refused or never end."""
LEGEND = (
    "Times in seconds; QUEUE is time without GPUs, SLOWDOWN the mean of time from submission to end over time with GPUs "
    "(which counts as at least 10 s), WORST the largest one, FAIRNESS 1 if all users wait equally long"
)
FURTHER_LEGEND = {
    "p95_ftf": ", FTF time to end over the time with an even share of the GPUs",
    "gpu_hours_up": ", USED the part of all GPU-hours in use, in rows with +elastic or +suspend of the GPU-hours up",
    "preemption_loss_gpu_hours": ", PREEMPTION LOSS the GPU-hours of repeated work, stops and restarts",
}
"""What is added to the legend if the table has this figure."""


class WrongUse(WrongInput):
    """These options cannot be used together."""


class Estimator(StrEnum):
    """See docs/manual/prediction.md."""

    HISTORY = "history"
    LIGHTGBM = "lightgbm"


def simulate(
    policy: Annotated[str, typer.Option("--policy", metavar="NAME,…", help=(
        "Policies to compare, such as fifo,fifo+backfill,srtf, with settings such as "
        "default:level_seconds=86400; your own as mine.py:POLICY or module:POLICY; with --journal also same: the "
        "settings of the recorded cluster."
    ))] = "",
    trace: Annotated[Path | None, typer.Option("--trace", metavar="FILE", help="Jobs from a CSV file with submit_s, duration_s and gpu_num, plain or gzip.")] = None,
    throughputs: Annotated[Path | None, typer.Option("--throughputs", metavar="FILE", help="Speed of each job type on each GPU model, in Gavel's format; --trace then has job_type, total_steps, scale_factor and arrival_s.")] = None,
    journal: Annotated[Path | None, typer.Option("--journal", metavar="DIR", help="Jobs and nodes of a live cluster, from its data folder or its journal, which is only read.")] = None,
    generate: Annotated[str | None, typer.Option("--generate", metavar="N[:LOAD]", help="N randomly generated jobs that request this part of all GPUs while they arrive (default 0.9).")] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of all random numbers: the same seed gives the same jobs and failures.")] = 0,
    fractional: Annotated[float, typer.Option("--fractional", callback=finite, metavar="PART", help="With --generate: part of the kinds of one-GPU jobs that request a quarter or a half of a GPU.")] = 0.0,
    repeat: Annotated[int, typer.Option("--repeat", metavar="K", min=1, max=10_000, help="K workloads from K seeds, generated or drawn from the tasks of the journal; prints means with 95 % confidence intervals.")] = 1,
    save: Annotated[Path | None, typer.Option("--save", metavar="FILE", help="With --generate: write the jobs as a trace, compressed if the name ends in .gz.")] = None,
    nodes: Annotated[Path | None, typer.Option("--nodes", metavar="FILE", help="Nodes from a CSV file with nodes, and optionally gpus_per_node, model and the pool; with --journal instead of the recorded ones.")] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", metavar="NxG[:MODEL]", help="N equal nodes with G GPUs each; more kinds of nodes after a +; with --journal instead of the recorded ones.")] = None,
    pool: Annotated[str | None, typer.Option("--pool", metavar="COLUMN", help="Column of both files that names the pool; jobs run only on nodes of their pool.")] = None,
    interference: Annotated[Path | None, typer.Option("--interference", metavar="FILE", help="Speed of jobs that share a GPU, from a CSV file with name, beside and speed. Default: speed falls with the share that the others request.")] = None,
    oracle: Annotated[bool, typer.Option("--oracle", help="Give policies the real run times instead of estimates from completed jobs.")] = False,
    estimator: Annotated[Estimator, typer.Option("--estimator", help="How run times are estimated: statistics of completed jobs, or these corrected by LightGBM.")] = Estimator.HISTORY,
    policy_model: Annotated[Path | None, typer.Option("--policy-model", metavar="MODEL", help="Model of the policy dqn, written by gpuyard train policy (default: the one that is shipped).")] = None,
    preemptible: Annotated[float | None, typer.Option("--preemptible", callback=finite, metavar="PART", help="Part of the jobs that may be preempted, drawn from the seed (default 0: a live task may not unless its user says so).")] = None,
    checkpoints: Annotated[str | None, typer.Option("--checkpoints", metavar="published|drawn[:NAME=VALUE]…", help="What a preempted job loses: drawn per job (default), with values such as save_every_seconds=600 or grace_seconds=60, or as in published simulators.")] = None,
    elastic: Annotated[list[str] | None, typer.Option("--elastic", metavar="MIN:MAX[:BOOT_SECONDS[:FAILING]][:NAME=VALUE]…", help="Also run each policy on an elastic pool: nodes are booted when tasks wait and returned when idle. Repeat it for pools of several kinds, with gpus=N, model=MODEL, price=PRICE, spot=HOURS and notice=SECONDS; the cheapest that fits is used.")] = None,
    suspend_idle: Annotated[str | None, typer.Option("--suspend-idle", metavar="IDLE_SECONDS[:WAKE_SECONDS]", help="Also run each policy on nodes that are suspended when idle.")] = None,
    price: Annotated[float | None, typer.Option("--price", callback=finite, metavar="PRICE", help="Price of one GPU for an hour; adds the cost of each run.")] = None,
    failures: Annotated[str | None, typer.Option("--failures", metavar="MTBF_HOURS:REPAIR_HOURS", help="Let nodes fail and be repaired, after random times with these means.")] = None,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE.html", help="Write a page with figures and charts, and the charts as PNG beside it.")] = None,
    quota: Annotated[str | None, typer.Option("--quota", metavar="PART[:MODE]", help="With --journal: another part of the GPUs for online tasks, and strict, borrow or none; 0.6:borrow.")] = None,
    add_nodes: Annotated[str | None, typer.Option("--add-nodes", metavar="NxG[:MODEL]", help="With --journal: more nodes from the beginning, otherwise like the recorded ones.")] = None,
    remove_nodes: Annotated[str | None, typer.Option("--remove-nodes", metavar="NAME,…", help="With --journal: recorded nodes that never join.")] = None,
    tenants: Annotated[list[str] | None, typer.Option("--tenant", metavar="NAME:LIMIT=VALUE…", help="With --journal: other limits of a tenant: max_gpus, guaranteed_gpus, max_open_tasks, weight, gpu_hours, period_seconds; none removes one. Repeatable.")] = None,
    mix: Annotated[str | None, typer.Option("--mix", metavar="TASKS=FACTOR,…", help="With --journal: factors for the number of tasks; TASKS is all, tenant:NAME, user:NAME or class:NAME.")] = None,
    jobs_csv: Annotated[Path | None, typer.Option("--jobs-csv", metavar="FILE", help="Write one row for each job and policy as CSV: times (with --journal Unix time), GPUs, user, preemptions; compressed if the name ends in .gz.")] = None,
    as_json: Annotated[bool, json_option("Print the figures as one JSON object.")] = False,
) -> None:  # fmt: skip
    """Compare scheduling policies on recorded or generated jobs, with the engine of the live cluster."""
    from gpuyard.cli.input.scenario_options import check_pools, scenario_of
    from gpuyard.cli.input.what_if_options import journal_with
    from gpuyard.cli.output.simulation_intervals import as_figures, print_intervals
    from gpuyard.simulator.accuracy import accuracy
    from gpuyard.simulator.comparison import ORACLE, counted, intervals, variant_names, write_jobs
    from gpuyard.simulator.comparison import simulate as simulate_runs

    under = partial(scenario_of, elastic=elastic or (), suspend_idle=suspend_idle, price=price, failures=failures)
    under(seed)  # wrong options are reported before anything is read
    if report is not None:
        _check_report(report)
    if jobs_csv is not None and (not jobs_csv.parent.is_dir() or jobs_csv.is_dir()):
        raise WrongUse(f"--jobs-csv: cannot write {jobs_csv}; use a file in a folder that exists.")
    names = variant_names(policy)
    generated, recorded = generate is not None, journal is not None
    _refuse(
        (sum(source is not None for source in (trace, journal, generate)) != 1, "Choose exactly one workload: --trace, --journal or --generate."),
        (not generated and (fractional or save), "--fractional and --save need --generate."),
        (trace and repeat > 1, "--repeat needs --generate or --journal."),
        (not recorded and (quota or add_nodes or remove_nodes or tenants or mix), "--quota, --add-nodes, --remove-nodes, --tenant and --mix need --journal."),
        (throughputs and (trace is None or pool is not None), "--throughputs needs --trace, and cannot be used with --pool."),
        (not names and save is None, "Name the policies to compare: --policy NAME,…"),
        (recorded and (preemptible is not None or checkpoints is not None), (
            "--preemptible and --checkpoints need --trace or --generate: a journal records for each task whether "
            "it may be preempted."
        )),
        (recorded and (pool or interference), "--pool and --interference need --trace: a journal has its own nodes and run times."),
        (recorded and (elastic or suspend_idle or price is not None or failures), "--elastic, --suspend-idle, --price and --failures need --trace: a journal has its own nodes."),
        (generated and pool is not None, "--pool needs --trace: generated jobs may run on all nodes."),
        (repeat > 1 and (report or save or jobs_csv), "--report, --save and --jobs-csv need a single workload; omit --repeat."),
    )  # fmt: skip
    compare = partial(
        simulate_runs, policies=names, oracle=oracle, estimator=estimator.value, policy_model=policy_model
    )
    saved = {
        name: given for name, given in (("preemptible", preemptible), ("checkpoints", checkpoints)) if given is not None
    }
    what_if = partial(
        journal_with, quota=quota, nodes=nodes, cluster=cluster, add_nodes=add_nodes, remove_nodes=remove_nodes,
        tenants=tenants or (), mix=mix, resample=repeat > 1,
    )  # fmt: skip
    jobs = what_if(journal, seed=seed) if journal is not None else _jobs(trace, generate, _Options(seed, fractional, nodes, cluster, pool, throughputs, interference, saved))  # fmt: skip
    if names:
        compare(jobs)  # wrong names of policies are reported before anything is said or simulated
    for note in jobs.notes:
        print(note, file=sys.stderr)
    if save is not None:
        _save(save, jobs)
        if not names:
            return
    found: list[PolicyRun] = []
    missing: list[str] = []
    for number in range(repeat):
        if number:
            jobs = what_if(journal, seed=seed + number) if journal is not None else _jobs(trace, generate, _Options(seed + number, fractional, nodes, cluster, pool, throughputs, interference, saved))  # fmt: skip
        scenario = under(seed + number)
        check_pools(scenario, jobs.workload)
        note = f" ({number + 1} of {repeat})" if repeat > 1 else ""
        for run in compare(jobs, scenario=scenario, progress=partial(_progress, note)):
            found.append(run)
            if all(run is not one for one in jobs.recorded) and (
                refused := jobs.workload.tasks - len(run.result.recorder.lives)
            ):
                missing.append(f"Under {run.name} {counted(refused, 'task')} {'is' if refused == 1 else 'are'} refused: no node or limit of this cluster allows {'it' if refused == 1 else 'them'}.")  # fmt: skip
                print(missing[-1], file=sys.stderr)
            if run.unfinished:
                missing.append(f"Under {run.name} {counted(run.unfinished, 'task')} never {'ends' if run.unfinished == 1 else 'end'}: {run.result.never_end}.")  # fmt: skip
                print(missing[-1], file=sys.stderr)
    if missing and len({run.name for run in found}) > 1:
        missing.append(DIFFERENT_TASKS)
        print(DIFFERENT_TASKS, file=sys.stderr)
    if oracle and not any(ORACLE in run.name for run in found):
        print("--oracle has no effect: none of these policies uses run times.", file=sys.stderr)
    if repeat > 1:
        _print_means(found, as_json, jobs.assumptions)
        if not as_json:
            _print_recorded_policy(jobs, found)
        return
    sure = intervals(found, seed)
    if report is not None:
        note = f"{jobs.description}{', run times known' if oracle else ''}. {_assumptions(jobs.assumptions)}"
        _write_report(report, note, [run.result for run in found], sure, missing)
    if jobs_csv is not None:
        rows_of = write_jobs(jobs_csv, jobs, found)
        print(f"Written: {jobs_csv}, {_jobs_of([run.name for run in found], rows_of)}.", file=sys.stderr)
    if as_json:
        rows = {run.name: {**run.figures, "prediction": accuracy(run.result.forecasts)} for run in found}
        for name, each in sure.items():
            rows[name]["intervals"] = as_figures(each)
        _print_json(rows, jobs.assumptions)
    else:
        _print_table(found)
        print_intervals(sure)
        _print_recorded_policy(jobs, found)
        _print_assumptions(jobs.assumptions)


def _jobs_of(names: list[str], counts: list[int]) -> str:
    """Say how many jobs each policy has: 3 jobs of each policy, or 3 jobs of recorded, 6 jobs of same."""
    from gpuyard.simulator.comparison import counted

    if len(set(counts)) == 1:
        return f"{counted(counts[0], 'job')} of each policy"
    return ", ".join(f"{counted(count, 'job')} of {name}" for name, count in zip(names, counts, strict=True))


def _refuse(*rules: tuple[object, str]) -> None:
    """Reject the options with the first of these sentences that applies."""
    for applies, sentence in rules:
        if applies:
            raise WrongUse(sentence)


@dataclass(frozen=True, slots=True)
class _Options:
    """The options that determine how jobs are read or generated."""

    seed: int
    fractional: float
    nodes: Path | None
    cluster: str | None
    pool: str | None
    throughputs: Path | None
    interference: Path | None
    saved: "dict[str, Any]"
    """Which jobs may be preempted and what they lose, where options name it."""


def _jobs(trace: Path | None, generate: str | None, options: _Options) -> "JobSet":
    from gpuyard.simulator.comparison import generated_jobs, trace_jobs
    from gpuyard.simulator.interference import by_demand, by_pairs, read_pairs
    from gpuyard.simulator.workloads.generated import read_count

    where = _cluster(options.nodes, options.cluster, options.pool if trace is not None else None)
    sharing = by_demand if options.interference is None else by_pairs(read_pairs(options.interference))
    if trace is not None:
        return trace_jobs(
            trace, where, pool=options.pool, throughputs=options.throughputs, interference=sharing,
            seed=options.seed, **options.saved,
        )  # fmt: skip
    assert generate is not None
    count, load = read_count(generate)
    return generated_jobs(
        count, where, seed=options.seed, load=load, fractional=options.fractional, interference=sharing,
        **options.saved,
    )  # fmt: skip


def _cluster(nodes: Path | None, cluster: str | None, pool: str | None) -> "Cluster":
    from gpuyard.simulator.clusters import parse_cluster, read_nodes

    if (nodes is None) == (cluster is None):
        raise WrongUse("Choose the nodes: either --nodes FILE or --cluster NxG.")
    if cluster is None:
        assert nodes is not None
        return read_nodes(nodes, pool)
    if pool is not None:
        raise WrongUse("--pool needs a file with the pool of each node: --nodes FILE.")
    return parse_cluster(cluster, "--cluster")


def _save(path: Path, jobs: "JobSet") -> None:
    from gpuyard.simulator.workloads.on_cluster import JobsOnCluster
    from gpuyard.simulator.workloads.trace import write_trace

    assert isinstance(jobs.workload, JobsOnCluster)
    try:
        write_trace(path, jobs.workload.jobs)
    except OSError as error:
        raise WrongUse(f"--save: cannot write {path}: {error.strerror}.") from None
    print(f"Written: {path}, {jobs.description}.", file=sys.stderr)


def _print_means(found: "list[PolicyRun]", as_json: bool, assumed: "Mapping[str, Any]") -> None:
    """Print the means over all workloads with their confidence intervals."""
    from gpuyard.cli.output.simulation_means import as_figures, print_means

    figures: dict[str, list[dict[str, float]]] = {}
    for run in found:
        figures.setdefault(run.name, []).append(run.figures)
    if as_json:
        _print_json(as_figures(figures), assumed)
    else:
        print_means(figures)
        _print_assumptions(assumed)


def _print_json(policies: "dict[str, Any]", assumed: "Mapping[str, Any]") -> None:
    import msgspec

    answer = {"policies": policies, **({"assumptions": assumed} if assumed else {})}
    print(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())


def _print_assumptions(assumed: "Mapping[str, Any]") -> None:
    if assumed:
        print(_assumptions(assumed))


def _assumptions(assumed: "Mapping[str, Any]") -> str:
    """Say which jobs could be preempted; empty for a journal, which records it."""
    if not assumed:
        return ""
    if not assumed["preemptible"]:
        return "No job may be preempted, like a live task by default; --preemptible 0.5 lets half of them be preempted."
    return f"{assumed['preemptible']:.0%} of the jobs may be preempted; checkpoints: {assumed['checkpoints']}."


@contextmanager
def _progress(note: str, name: str, jobs: int) -> "Iterator[ProgressCallback]":
    """Show a progress bar while a policy is simulated; only on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:20}"), BarColumn(), TextColumn("{task.completed:,.0f} of {task.total:,.0f} jobs"), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task(name + note, total=jobs)
        yield lambda count: bar.update(row, completed=count)


def _print_table(runs: "list[PolicyRun]") -> None:
    from gpuyard.cli.output.printing import print_table

    names = ("POLICY", "JOBS", "AVG JCT", "P50 JCT", "P99 JCT", "AVG QUEUE", "P99.9 QUEUE", "PREEMPTIONS", "USED", "SLOWDOWN", "WORST", "FAIRNESS", "TOOK")  # fmt: skip
    rows = []
    for run in runs:
        it = run.measures
        rows.append((
            run.name, f"{it.jobs:,}", f"{it.avg_jct_s:,.0f}", f"{it.p50_jct_s:,.0f}", f"{it.p99_jct_s:,.0f}",
            f"{it.avg_queue_s:,.0f}", f"{it.p999_queue_s:,.0f}", f"{it.preemptions:,}", f"{it.utilization:.0%}",
            f"{it.avg_slowdown:.2f}", f"{it.worst_slowdown:,.0f}", f"{it.user_fairness:.2f}", f"{run.wall_seconds:.1f} s",
        ))  # fmt: skip
    further = list(dict.fromkeys(name for run in runs for name in run.result.further))
    titles = (*names, *(TITLES[name][0] for name in further))
    cells = [
        [TITLES[name][1].format(run.result.further[name]) if name in run.result.further else "" for name in further]
        for run in runs
    ]
    print_table(titles, [(*row, *more) for row, more in zip(rows, cells, strict=True)], right=titles[1:])
    print(f"{LEGEND}{''.join(text for name, text in FURTHER_LEGEND.items() if name in further)}.")


def _print_recorded_policy(jobs: "JobSet", runs: "list[PolicyRun]") -> None:
    """Say which policy `same` is, if it was simulated; the journal may have changed it over time."""
    from gpuyard.simulator.policy_variants import base_name
    from gpuyard.simulator.workloads.journal import SAME

    if SAME in jobs.known_policies and any(base_name(run.name) == SAME for run in runs):
        recorded = jobs.known_policies[SAME].settings
        print(
            f"same: the policy and settings of the journal; at its end policy {recorded.policy}, backfill "
            f"{recorded.backfill}, preemption {'on' if recorded.preemption else 'off'}."
        )


def _check_report(path: Path) -> None:
    """Check before the simulation that the report can be drawn and written."""
    if find_spec("matplotlib") is None:
        raise WrongUse("--report needs matplotlib: pip install 'gpuyard[simulate]'.")
    if not path.parent.is_dir() or path.is_dir():
        raise WrongUse(f"--report: cannot write {path}; use a file in a folder that exists.")


def _write_report(
    path: Path, note: str, results: "list[Result]", sure: "dict[str, IntervalsOfRun]", missing: list[str]
) -> None:
    from gpuyard.simulator.charts import charts_of
    from gpuyard.simulator.report import page

    drawn = charts_of(results)
    try:
        for name, content in drawn.items():
            path.with_name(f"{path.stem}-{name}.png").write_bytes(content)
        path.write_text(page("Policies compared", note, results, drawn, sure, missing), encoding="utf-8")
    except OSError as error:
        raise WrongUse(f"--report: cannot write {path}: {error.strerror}.") from None
    print(f"Written: {path} and {len(drawn)} pictures beside it.", file=sys.stderr)
