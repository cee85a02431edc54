"""`gpuyard simulate`: the live engine under a virtual clock, on recorded or drawn jobs, under one policy after another."""

import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.options import finite, json_option
from gpuyard.core.domain.errors import WrongInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuyard.core.engine.advice import Advisor
    from gpuyard.learn.estimates.history import Predictor
    from gpuyard.simulator.clusters import Cluster
    from gpuyard.simulator.interference import Interference
    from gpuyard.simulator.policy_variants import Contender
    from gpuyard.simulator.run import Progress, Result
    from gpuyard.simulator.scenarios import Conditions
    from gpuyard.simulator.workloads.arrival import Workload
    from gpuyard.simulator.workloads.job import Job


TITLES = {
    "fragmentation": ("FRAGMENTED", "{:.0%}"),
    "energy_kwh": ("KWH", "{:,.0f}"),
    "gpu_hours_up": ("GPU-HOURS UP", "{:,.0f}"),
    "cost": ("COST", "{:,.0f}"),
    "node_failures": ("FAILURES", "{:,}"),
    "attempts_lost": ("LOST", "{:,}"),
    "gpu_hours_lost": ("GPU-HOURS LOST", "{:,.0f}"),
}
"""Of figures that only some runs have, with how they are written."""


class WrongUse(WrongInput):
    """The options do not say what to simulate."""


class Predictors(StrEnum):
    """See docs/manual/prediction.md."""

    HISTORY = "history"
    LIGHTGBM = "lightgbm"


def simulate(
    policy: Annotated[str, typer.Option("--policy", metavar="NAME,…", help="Policies to compare, such as fifo,fifo+backfill,srtf, with settings of their own such as default:level_seconds=86400; with --journal also same, the settings it was written under.")] = "",
    trace: Annotated[Path | None, typer.Option("--trace", metavar="FILE", help="Jobs: a CSV file with submit_s, duration_s and gpu_num, or gzip of one.")] = None,
    throughputs: Annotated[Path | None, typer.Option("--throughputs", metavar="FILE", help="How fast types of jobs are on which GPUs, as Gavel has it; --trace then has job_type, total_steps, scale_factor and arrival_s.")] = None,
    journal: Annotated[Path | None, typer.Option("--journal", metavar="DIR", help="What really came to a yard, nodes and all: its data folder or its journal. It is only read.")] = None,
    generate: Annotated[str | None, typer.Option("--generate", metavar="N[:LOAD]", help="N jobs drawn by chance, that ask for this part of all GPUs while they come (else 0.9).")] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="What chance begins with: the same seed, the same jobs and failures.")] = 0,
    light: Annotated[float, typer.Option("--light", callback=finite, metavar="PART", min=0.0, max=1.0, help="With --generate: this part of the kinds of jobs with one GPU asks for a quarter or half of it.")] = 0.0,
    repeat: Annotated[int, typer.Option("--repeat", metavar="K", min=1, max=10_000, help="With --generate: K workloads, of K seeds; means with the interval that holds the true mean 95 times of 100.")] = 1,
    save: Annotated[Path | None, typer.Option("--save", metavar="FILE", help="With --generate: write the jobs as a trace, packed if it ends in .gz.")] = None,
    nodes: Annotated[Path | None, typer.Option("--nodes", metavar="FILE", help="Nodes: a CSV file with nodes, and perhaps gpus_per_node, model and the pool.")] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", metavar="NxG[:MODEL]", help="Nodes: N equal ones of G GPUs; other kinds after a +.")] = None,
    pool: Annotated[str | None, typer.Option("--pool", metavar="COLUMN", help="A column of both files: jobs run only on nodes of the same pool.")] = None,
    interference: Annotated[Path | None, typer.Option("--interference", metavar="FILE", help="How fast jobs run that share a GPU: a CSV file with name, beside and speed. Else the slower, the more of it the others ask for.")] = None,
    oracle: Annotated[bool, typer.Option("--oracle", help="Let policies that go by run times know the real ones, instead of predictions from what had ended.")] = False,
    predictor: Annotated[Predictors, typer.Option("--predictor", help="How run times are predicted: by statistics of what had ended, or these put right by LightGBM.")] = Predictors.HISTORY,
    policy_model: Annotated[Path | None, typer.Option("--policy-model", metavar="MODEL", help="What the policy dqn goes by: a file that gpuyard train policy wrote (default: the one that ships).")] = None,
    unstoppable: Annotated[bool, typer.Option("--unstoppable", help="With --trace or --generate: nobody may stop a job for another, as it is with tasks that do not save themselves.")] = False,
    elastic: Annotated[str | None, typer.Option("--elastic", metavar="MIN:MAX[:BOOT_SECONDS[:FAILING]]", help="Also play each policy on nodes that are hired when tasks wait and given back when idle, beside the fixed cluster.")] = None,
    sleep: Annotated[str | None, typer.Option("--sleep", metavar="IDLE_SECONDS[:WAKE_SECONDS]", help="Also play each policy on nodes that sleep when idle, beside nodes that are always awake.")] = None,
    price: Annotated[float | None, typer.Option("--price", callback=finite, metavar="PRICE", help="Of one GPU for an hour: what the nodes of each run cost.")] = None,
    failures: Annotated[str | None, typer.Option("--failures", metavar="MTBF_HOURS:REPAIR_HOURS", help="Nodes fail and are repaired, after times drawn with these means.")] = None,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE.html", help="Write a page with the figures and pictures, and the pictures as PNG beside it.")] = None,
    as_json: Annotated[bool, json_option("Print the figures as one JSON object.")] = False,
) -> None:  # fmt: skip
    """Compare policies on jobs that were recorded or drawn, with the engine that runs the live yard."""
    from gpuyard.cli.conditions import conditions_of
    from gpuyard.simulator.accuracy import accuracy
    from gpuyard.simulator.policy_variants import contender

    predicts = _predictor(predictor)
    under = partial(conditions_of, elastic=elastic, sleep=sleep, price=price, failures=failures)
    under(seed)  # what can not be is said before anything is read
    if report is not None:
        _check_report(report)
    names = list(dict.fromkeys(name.strip() for name in policy.split(",") if name.strip()))
    drawn, recorded = generate is not None, journal is not None
    _refuse(
        (sum(source is not None for source in (trace, journal, generate)) != 1, "Say what is to be played: --trace FILE, --journal DIR or --generate N, and one of them only."),
        (not drawn and (light or repeat > 1 or save), "--light, --repeat and --save are for jobs that are drawn: they go with --generate."),
        (throughputs and (trace is None or pool is not None), "--throughputs goes with --trace, and not with --pool."),
        (not names and save is None, "Say which policies to compare: --policy NAME,…"),
        (recorded and unstoppable, "--journal says of each task whether it may be stopped; --unstoppable goes with --trace or --generate."),
        (recorded and (nodes or cluster or pool or interference), "--journal has its own nodes and run times; --nodes, --cluster, --pool and --interference go with --trace."),
        (recorded and (elastic or sleep or price is not None or failures), "--journal has its own nodes; --elastic, --sleep, --price and --failures go with --trace."),
        (drawn and pool is not None, "--pool goes with --trace: jobs that are drawn may run on all nodes."),
        (repeat > 1 and (report or save), "--repeat plays many workloads; --report and --save are about one."),
    )  # fmt: skip
    settled = partial(_settled, advisor=_advisor(policy_model, names), unstoppable=unstoppable)
    if journal is not None:
        played = _of_journal(journal, names)
    elif trace is not None:
        chosen = [contender(name) for name in names]
        where = _cluster(nodes, cluster, pool)
        played = _of_trace(trace, _jobs(trace, throughputs, pool, where), where, chosen, _sharing(interference))
    else:
        assert generate is not None
        where, sharing = _cluster(nodes, cluster, None), _sharing(interference)
        many = [settled(_of_chance(generate, seed + place, light, where, names, sharing)) for place in range(repeat)]
        played = many[0]
        if save is not None:
            _save(save, played)
            if not names:
                return
        if repeat > 1:
            _repeat(many, oracle, predicts, as_json, [under(seed + place) for place in range(repeat)])
            return
    results = _play(settled(played), oracle, predicts, under(seed))
    if report is not None:
        note = f"{played.note}{', run times known' if oracle else ''}."
        _write_report(report, note, [result for result, _ in results])
    if as_json:
        _print_json(
            {
                it.contender.name: {**_figures(it, wall_s), "prediction": accuracy(it.forecasts)}
                for it, wall_s in results
            }
        )
    else:
        _print_table(results)


def _refuse(*rules: tuple[object, str]) -> None:
    """The first of these that is so is what is wrong with the options."""
    for is_so, sentence in rules:
        if is_so:
            raise WrongUse(sentence)


def _play(
    played: "_Played",
    oracle: bool,
    predictor: "Callable[[], Predictor]",
    conditions: "dict[str, Conditions]",
    note: str = "",
) -> "list[tuple[Result, float]]":
    """Every contender in turn under all conditions, after what need not be played."""
    from gpuyard.cli.conditions import check_pools
    from gpuyard.simulator.run import play

    check_pools(conditions, played.workload)
    results = list(played.results)
    for each, (name, condition) in product(played.contenders, conditions.items()):
        contender = replace(each, name=each.name + name)
        began = perf_counter()
        with _progress(f"{contender.name}{note}", played.workload.tasks) as heard:
            result = play(
                played.workload,
                contender,
                oracle=oracle,
                predictor=predictor,
                progress=heard,
                conditions=condition,
                advisor=played.advisor,
            )
        results.append((result, perf_counter() - began))
        if without_end := len(result.recorder.lives) - result.measures.jobs:
            print(f"Under {contender.name} {without_end:,} tasks never end: the nodes that they need are gone.", file=sys.stderr)  # fmt: skip
    return results


def _figures(result: "Result", wall_s: float) -> "dict[str, Any]":
    """All there is to say of one run in numbers."""
    from gpuyard.simulator.measures import as_json, rounded

    return {**as_json(result.measures), **rounded(result.further), "wall_s": round(wall_s, 3)}


def _print_json(policies: "dict[str, Any]") -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode({"policies": policies}), indent=2).decode())


@dataclass(frozen=True, slots=True)
class _Played:
    """What is compared, on what."""

    workload: "Workload"
    contenders: "list[Contender]"
    note: str
    results: "list[tuple[Result, float]]"
    """What need not be simulated, because it happened; the others follow."""
    advisor: "Advisor | None" = None
    """Whom a policy asks that is advised."""


def _settled(played: _Played, *, advisor: "Advisor | None", unstoppable: bool) -> _Played:
    """With an adviser, and with jobs that nobody may stop."""
    from gpuyard.simulator.workloads.on_cluster import JobsOnCluster

    workload = played.workload
    if unstoppable and isinstance(workload, JobsOnCluster):
        workload = replace(workload, stoppable=False)
    return replace(played, workload=workload, advisor=advisor)


def _advisor(model: Path | None, names: list[str]) -> "Advisor | None":
    """Who advises, if a policy is to be compared that asks."""
    asks = any(name.split(":")[0].removesuffix("+backfill") == "dqn" for name in names)
    if not asks:
        if model is not None:
            raise WrongUse("--policy-model is what the policy dqn goes by; it is not among those to compare.")
        return None
    if find_spec("numpy") is None:
        raise WrongUse("The policy dqn needs numpy: pip install 'gpuyard[learn]'.")
    from gpuyard.core.engine.advice import FEATURES
    from gpuyard.learn.policy_network import DEFAULT, Advantage, load

    return Advantage(load(model or DEFAULT, FEATURES))


def _of_trace(
    trace: Path, jobs: "list[Job]", where: "Cluster", contenders: "list[Contender]", sharing: "Interference"
) -> _Played:
    from gpuyard.simulator.workloads.on_cluster import JobsOnCluster

    note = f"{len(jobs):,} jobs of {trace.name} on {len(where.nodes):,} nodes with {where.gpus:,} GPUs"
    return _Played(JobsOnCluster(jobs, where, interference=sharing), contenders, note, [])


def _of_chance(
    asked: str, seed: int, light: float, cluster: "Cluster", names: list[str], sharing: "Interference"
) -> _Played:
    """Chance is made here: the simulator has none of its own."""
    from random import Random

    from gpuyard.simulator.policy_variants import contender
    from gpuyard.simulator.workloads.generated import GeneratedJobs, read_count
    from gpuyard.simulator.workloads.on_cluster import JobsOnCluster

    count, load = read_count(asked)
    jobs = GeneratedJobs(count, cluster, lambda: Random(seed).random, load, light)  # noqa: S311
    note = f"{count:,} jobs drawn from seed {seed} for {load:g} of the {cluster.gpus:,} GPUs of {len(cluster.nodes):,} nodes"
    return _Played(JobsOnCluster(jobs, cluster, interference=sharing), [contender(name) for name in names], note, [])


def _save(path: Path, played: _Played) -> None:
    from gpuyard.simulator.workloads.on_cluster import JobsOnCluster
    from gpuyard.simulator.workloads.trace import write_trace

    assert isinstance(played.workload, JobsOnCluster)
    try:
        write_trace(path, played.workload.jobs)
    except OSError as error:
        raise WrongUse(f"--save: {path} can not be written: {error.strerror}.") from None
    print(f"Written: {path}, {played.note}.", file=sys.stderr)


def _repeat(
    drawn: list[_Played],
    oracle: bool,
    predictor: "Callable[[], Predictor]",
    as_json: bool,
    conditions: "list[dict[str, Conditions]]",
) -> None:
    """All workloads under all contenders; what is printed are means and how sure they are."""
    from gpuyard.cli.repeating import as_figures, print_means

    found: dict[str, list[dict[str, float]]] = {}
    for place, (played, under) in enumerate(zip(drawn, conditions, strict=True), start=1):
        for result, wall_s in _play(played, oracle, predictor, under, f" ({place} of {len(drawn)})"):
            found.setdefault(result.contender.name, []).append(_figures(result, wall_s))
    if as_json:
        _print_json(as_figures(found))
    else:
        print_means(found)


def _of_journal(folder: Path, names: list[str]) -> _Played:
    """What really happened is the first row; what was left out is said, on standard error."""
    from gpuyard.simulator.measures import measure
    from gpuyard.simulator.policy_variants import Contender, contender
    from gpuyard.simulator.run import Result
    from gpuyard.simulator.workloads.journal import read_journal

    began = perf_counter()
    found = read_journal(folder)
    contenders = [contender(name, found.contenders) for name in names]
    notes = {
        "tasks still ran at the end of the journal and were left out": found.still_running,
        "tasks still waited then, or for one of these, and were left out": found.still_waiting,
    }
    for sentence, count in notes.items():
        if count:
            print(f"{count:,} {sentence}.", file=sys.stderr)
    happened = Contender("recorded", found.same.settings)
    recorded = Result(happened, measure(found.happened, found.gpus), found.happened)
    note = f"{found.tasks:,} tasks of the journal in {folder}, on {found.gpus:,} GPUs at the most"
    return _Played(found, contenders, note, [(recorded, perf_counter() - began)])


def _sharing(path: Path | None) -> "Interference":
    from gpuyard.simulator.interference import by_demand, by_pairs, read_pairs

    return by_demand if path is None else by_pairs(read_pairs(path))


def _cluster(nodes: Path | None, cluster: str | None, pool: str | None) -> "Cluster":
    from gpuyard.simulator.clusters import equal_nodes, read_nodes

    if (nodes is None) == (cluster is None):
        raise WrongUse("Say which nodes there are: with --nodes FILE or with --cluster NxG, and not with both.")
    if cluster is None:
        assert nodes is not None
        return read_nodes(nodes, pool)
    if pool is not None:
        raise WrongUse("--pool needs a file of nodes that says which pool each is in: --nodes FILE.")
    return equal_nodes(cluster)


def _jobs(trace: Path, throughputs: Path | None, pool: str | None, cluster: "Cluster") -> "list[Job]":
    """The jobs that can be simulated; what was left out or put right is said, on standard error."""
    from gpuyard.simulator.workloads.gavel import read_gavel
    from gpuyard.simulator.workloads.on_cluster import fitting
    from gpuyard.simulator.workloads.trace import WrongTrace, read_trace

    read = read_trace(trace, pool) if throughputs is None else read_gavel(trace, throughputs)
    jobs = fitting(read.jobs, cluster)
    if not jobs:
        raise WrongTrace(f"{trace}: none of its {len(read.jobs):,} jobs could ever run on this cluster.")
    notes = {
        "rows were not in the order of submission and were sorted": read.sorted_rows,
        "jobs without GPUs were left out": read.without_gpus,
        "jobs that this cluster could never run were left out": len(read.jobs) - len(jobs),
    }
    for sentence, count in notes.items():
        if count:
            print(f"{count:,} {sentence}.", file=sys.stderr)
    return jobs


@contextmanager
def _progress(name: str, jobs: int) -> "Iterator[Progress]":
    """A bar on the terminal while a policy is simulated; elsewhere nothing, so that files stay clean."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description:20}"), BarColumn(), TextColumn("{task.completed:,.0f} of {task.total:,.0f} jobs"), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task(name, total=jobs)
        yield lambda count: bar.update(row, completed=count)


def _print_table(results: "list[tuple[Result, float]]") -> None:
    from gpuyard.cli.printing import print_table

    names = ("POLICY", "JOBS", "AVG JCT", "P50 JCT", "P99 JCT", "AVG QUEUE", "P99.9 QUEUE", "PREEMPTIONS", "USED", "SLOWDOWN", "WORST", "FAIRNESS", "TOOK")  # fmt: skip
    rows = []
    for result, wall_s in results:
        it = result.measures
        rows.append((
            result.contender.name, f"{it.jobs:,}", f"{it.avg_jct_s:,.0f}", f"{it.p50_jct_s:,.0f}", f"{it.p99_jct_s:,.0f}",
            f"{it.avg_queue_s:,.0f}", f"{it.p999_queue_s:,.0f}", f"{it.preemptions:,}", f"{it.utilisation:.0%}",
            f"{it.avg_slowdown:.2f}", f"{it.worst_slowdown:,.0f}", f"{it.user_fairness:.2f}", f"{wall_s:.1f} s",
        ))  # fmt: skip
    further = list(dict.fromkeys(name for result, _ in results for name in result.further))
    titles = (*names, *(TITLES[name][0] for name in further))
    cells = [
        [TITLES[name][1].format(result.further[name]) if name in result.further else "" for name in further]
        for result, _ in results
    ]
    print_table(titles, [(*row, *more) for row, more in zip(rows, cells, strict=True)], right=titles[1:])
    print("Seconds; QUEUE is time without GPUs, SLOWDOWN time from submission to end over time with GPUs, FAIRNESS 1 when all users wait alike.")  # fmt: skip


def _predictor(named: Predictors) -> "Callable[[], Predictor]":
    if named is Predictors.HISTORY:
        from gpuyard.learn.estimates.history import History

        return History
    if find_spec("lightgbm") is None:
        raise WrongUse("--predictor lightgbm needs LightGBM: pip install 'gpuyard[learn]'.")
    from gpuyard.learn.estimates.learned import Learned

    return Learned


def _check_report(path: Path) -> None:
    """Before anything is simulated: can the page be drawn and written?"""
    if find_spec("matplotlib") is None:
        raise WrongUse("--report needs matplotlib: pip install 'gpuyard[simulate]'.")
    if not path.parent.is_dir() or path.is_dir():
        raise WrongUse(f"--report: {path} can not be written; name a file in a folder that exists.")


def _write_report(path: Path, note: str, results: "list[Result]") -> None:
    from gpuyard.simulator.charts import pictures
    from gpuyard.simulator.report import page

    drawn = pictures(results)
    try:
        for name, content in drawn.items():
            path.with_name(f"{path.stem}-{name}.png").write_bytes(content)
        path.write_text(page("Policies compared", note, results, drawn), encoding="utf-8")
    except OSError as error:
        raise WrongUse(f"--report: {path} can not be written: {error.strerror}.") from None
    print(f"Written: {path} and {len(drawn)} pictures beside it.", file=sys.stderr)
