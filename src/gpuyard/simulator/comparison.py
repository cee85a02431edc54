"""Compare policies on one workload: the entry point of the simulator for Python and for `gpuyard simulate`.

    from gpuyard import simulate
    from gpuyard.simulator import generated_jobs

    for run in simulate(generated_jobs(200, cluster="4x8", seed=1), policies=("fifo", "default")):
        print(run.name, run.measures.avg_jct_s)

This is the only module of the simulator that reads a real clock and creates random generators: it turns seeds into
streams of numbers and measures how long a run took.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Annotated, Any, Literal

from msgspec import Meta

from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.engine.policies.policy import Policy
from gpuyard.core.engine.scheduling.advice import FEATURES, Advisor
from gpuyard.input.arguments import Function, Seed, argument, names
from gpuyard.input.files import path_of, shown_path
from gpuyard.learn.estimates.history import HistoryPredictor, RuntimePredictor
from gpuyard.simulator.bootstrap import IntervalsOfRun, block_intervals
from gpuyard.simulator.clusters import Cluster, parse_cluster
from gpuyard.simulator.finish_time_fairness import fair_jcts, fairness_figures
from gpuyard.simulator.interference import Interference, by_demand
from gpuyard.simulator.job_table import write_job_table
from gpuyard.simulator.measures import SimulationMeasures, as_json, measure, rounded
from gpuyard.simulator.policy_variants import POLICY_VARIANTS, EstimateSource, PolicyVariant, base_name, policy_variant
from gpuyard.simulator.run import ProgressCallback, Result, simulate_policy
from gpuyard.simulator.scenarios import Scenario
from gpuyard.simulator.workloads.arrival import Workload
from gpuyard.simulator.workloads.checkpoints import DRAWN, RandomDraw, RandomStreams, read_checkpoints
from gpuyard.simulator.workloads.converters.convert import Converted, convert, read_instant
from gpuyard.simulator.workloads.gavel import read_gavel
from gpuyard.simulator.workloads.generated import LEAST_LOAD, LOAD, MOST_JOBS, MOST_LOAD, GeneratedJobs
from gpuyard.simulator.workloads.journal import is_database, read_journal
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster, JobSource, fitting
from gpuyard.simulator.workloads.trace import WrongTrace, read_trace
from gpuyard.simulator.workloads.what_if import Changes, LimitName, read_quota

JobCount = Annotated[int, Meta(ge=1, le=MOST_JOBS)]
OfferedLoad = Annotated[float, Meta(ge=LEAST_LOAD, le=MOST_LOAD)]
Fractional = Annotated[float, Meta(ge=0, le=1)]
PreemptibleShare = Annotated[float, Meta(ge=0, le=1)]
PREEMPTIBLE = 0.0
"""Share of preemptible jobs unless another is named: a live task may not be preempted unless its user says so."""
EstimatorName = Literal["history", "lightgbm"]
ORACLE = "+oracle"
"""Added to the name of a run whose policy was given the real run times."""
PolicyChoice = str | Policy | PolicyVariant
"""A policy by name, or a policy of one's own."""
ShowProgress = Callable[[str, int], AbstractContextManager[ProgressCallback]]
"""Called with the name and the number of tasks of each run; yields a callback for the number submitted so far."""


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """The run of one policy."""

    result: Result
    wall_seconds: float
    """Real time the simulation took."""

    @property
    def name(self) -> str:
        """Name of the policy, including what its scenario adds to it."""
        return self.result.policy_variant.name

    @property
    def measures(self) -> SimulationMeasures:
        """Completion and queueing times, utilization, fairness."""
        return self.result.measures

    @property
    def figures(self) -> dict[str, Any]:
        """All figures by name, as `gpuyard simulate --json` prints them."""
        more = {**rounded(self.result.further), "wall_s": round(self.wall_seconds, 3)}
        return {**as_json(self.result.measures), **more}

    @property
    def unfinished(self) -> int:
        """Number of tasks that never end; `result.never_end` says why."""
        return len(self.result.recorder.lives) - self.result.measures.jobs


@dataclass(frozen=True, slots=True)
class JobSet:
    """A workload, with notes about how it was read."""

    workload: Workload
    description: str
    notes: tuple[str, ...] = ()
    """Sentences about rows that were left out or corrected while the workload was read."""
    recorded: tuple[PolicyRun, ...] = ()
    """What really happened, if it was recorded: the first row of a comparison."""
    known_policies: Mapping[str, PolicyVariant] = field(default_factory=lambda: POLICY_VARIANTS)
    here: Callable[[PolicyVariant], PolicyVariant] = lambda variant: variant
    """Gives a policy of one's own the settings of this cluster."""
    assumptions: Mapping[str, Any] = field(default_factory=dict)
    """What no trace records and was assumed instead: the share of preemptible jobs, their checkpoints, the seed."""
    recorded_workload: Workload | None = None
    """The tasks of the recorded run; `workload` may have more, fewer or others with the same numbers."""


def trace_jobs(
    trace: Path | str,
    cluster: Cluster | str,
    *,
    pool: str | None = None,
    throughputs: Path | str | None = None,
    interference: Interference = by_demand,
    preemptible: float = PREEMPTIBLE,
    checkpoints: str = DRAWN,
    seed: int = 0,
) -> JobSet:
    """Read jobs from a trace; jobs that the cluster could never run are left out.

    `throughputs`: a file with the speed of job types on GPU models, in Gavel's format. `pool`: a column; jobs run only
    on nodes of the same pool. `preemptible`: the share of the jobs that may be stopped for others, drawn from `seed`.
    `checkpoints`: what these lose, `published` or `drawn` (see the manual), optionally with values:
    `drawn:grace_seconds=60`.
    """
    trace, where, pool = path_of("trace", trace), _cluster(cluster), argument("pool", pool, str | None)
    on_cluster = _on_cluster(interference, preemptible, checkpoints, seed)
    read = read_trace(trace, pool) if throughputs is None else read_gavel(trace, path_of("throughputs", throughputs))
    jobs = fitting(read.jobs, where)
    if not jobs:
        raise WrongTrace(f"{shown_path(trace)}: none of its {len(read.jobs):,} jobs can run on this cluster.")
    counts = {
        "rows were not in the order of submission and were sorted": read.sorted_rows,
        "jobs without GPUs were omitted": read.without_gpus,
        "jobs that cannot run on this cluster were omitted": len(read.jobs) - len(jobs),
    }
    return JobSet(
        on_cluster(jobs, where),
        f"{counted(len(jobs), 'job')} of {trace.name} on {counted(len(where.nodes), 'node')} with {counted(where.gpus, 'GPU')}",
        _notes(counts),
        assumptions={"preemptible": preemptible, "checkpoints": checkpoints, "seed": seed},
    )


def generated_jobs(
    count: int,
    cluster: Cluster | str,
    *,
    seed: int = 0,
    load: float = LOAD,
    fractional: float = 0.0,
    interference: Interference = by_demand,
    preemptible: float = PREEMPTIBLE,
    checkpoints: str = DRAWN,
) -> JobSet:
    """Generate random jobs that request the share `load` of all GPUs while they arrive.

    `fractional`: the share of the one-GPU job kinds that request a quarter or half of a GPU. `preemptible` and
    `checkpoints`: as for `trace_jobs`.
    """
    count, seed = argument("count", count, JobCount), argument("seed", seed, Seed)
    load, fractional = argument("load", load, OfferedLoad), argument("fractional", fractional, Fractional)
    on_cluster = _on_cluster(interference, preemptible, checkpoints, seed)
    where = _cluster(cluster)
    jobs = GeneratedJobs(count, where, lambda: Random(seed).random, load, fractional)  # noqa: S311 - jobs, not secrets
    return JobSet(
        on_cluster(jobs, where),
        (
            f"{counted(count, 'job')} generated from seed {seed} for {load:g} of the {counted(where.gpus, 'GPU')} of "
            f"{counted(len(where.nodes), 'node')}"
        ),
        assumptions={"preemptible": preemptible, "checkpoints": checkpoints, "seed": seed},
    )


def journal_jobs(
    folder: Path | str,
    *,
    quota: str | float | None = None,
    cluster: Cluster | str | None = None,
    add_nodes: Cluster | str | None = None,
    remove_nodes: Sequence[str] | str = (),
    tenants: Mapping[str, Mapping[str, float | None]] | None = None,
    mix: Mapping[str, float] | None = None,
    resample: bool = False,
    seed: int = 0,
) -> JobSet:
    """Read the real workload of a cluster, including its nodes, from its data folder or journal, which is only read.

    Everything else asks what would have been different (`gpuyard.simulator.workloads.what_if`). `quota`: part of the GPUs
    for online tasks, optionally with a mode: `0.5:borrow`. `cluster`, `add_nodes` and `remove_nodes`: other, more and
    fewer nodes. `tenants`: limits by name, such as `{"research": {"max_gpus": 16, "weight": 2}}`. `mix`: factors for the
    number of tasks, such as `{"tenant:research": 2, "class:online": 0.5}`. `resample`: draw the tasks with replacement.
    """
    began = perf_counter()
    source = str(folder) if is_database(folder) else path_of("folder", folder)
    changes = Changes(
        *read_quota(quota),
        cluster=None if cluster is None else _cluster(cluster),
        add_nodes=None if add_nodes is None else _cluster(add_nodes, "add_nodes"),
        remove_nodes=tuple(names("remove_nodes", remove_nodes)),
        tenants=argument("tenants", dict(tenants or {}), dict[str, dict[LimitName, float | None]]),
        mix=argument("mix", dict(mix or {}), dict[str, float]),
        resample=argument("resample", resample, bool),
    )
    seed = argument("seed", seed, Seed)
    try:
        found = read_journal(source)
    except OSError as error:
        raise WrongInput(f"{shown_path(Path(source))}: {error.strerror}.") from None
    happened = PolicyVariant("recorded", found.same.settings)
    result = Result(happened, measure(found.happened, found.gpus), found.happened)
    counts = {
        "tasks were still running at the end of the journal and were omitted": found.still_running,
        "tasks were still waiting then, or depended on one of these, and were omitted": found.still_waiting,
    }
    recorded = found
    if changes != Changes():
        found = changes.apply_to(found, Random(seed).random)  # noqa: S311 - tasks, not secrets
    return JobSet(
        found,
        f"{counted(found.tasks, 'task')} of the journal in {folder}, on at most {counted(found.gpus, 'GPU')}",
        _notes(counts),
        () if resample else (PolicyRun(result, perf_counter() - began),),
        found.variants,
        found.here,
        recorded_workload=recorded,
    )


def simulate(
    jobs: JobSet,
    policies: "Sequence[PolicyChoice] | PolicyChoice" = ("default",),
    *,
    oracle: bool = False,
    estimator: EstimatorName = "history",
    policy_model: Path | str | None = None,
    scenario: Mapping[str, Scenario] | None = None,
    progress: ShowProgress = lambda _name, _tasks: nullcontext(lambda _: None),
) -> Iterator[PolicyRun]:
    """Run the live engine under a virtual clock, once for each policy; a recorded run comes first.

    `policies` are those of the manual's page on policies, optionally with settings: `default:level_seconds=86400`. Your
    own are `mine.py:POLICY`, `module:POLICY` or a `gpuyard.core.engine.policies.policy.Policy`.
    `oracle`: policies that use run times get the real ones, and `+oracle` is added to their names. `estimator`: where they get run times otherwise.
    `policy_model`: a file written by `gpuyard train policy`, for the policy `dqn`. `scenario`: elastic pools, sleeping
    nodes, prices and failures (`gpuyard.simulator.scenarios`), by the suffix they add to a policy's name. Arguments are
    checked at once; each policy is simulated when the iterator reaches it.
    """
    if not isinstance(jobs, JobSet):
        raise WrongInput("jobs are those that trace_jobs, generated_jobs or journal_jobs return.")
    chosen = _chosen(policies)
    if not chosen:
        raise WrongInput("Name the policies to compare, such as fifo,default.")
    variants = [policy_variant(one, jobs.known_policies, jobs.here) for one in chosen]
    predictor = _predictor(argument("estimator", estimator, EstimatorName))
    advisor = _advisor(None if policy_model is None else path_of("policy_model", policy_model), variants)
    oracle, progress = argument("oracle", oracle, bool), argument("progress", progress, Function)
    under: Any = {"": Scenario()} if scenario is None else scenario
    if not isinstance(under, Mapping) or not all(
        isinstance(added, str) and isinstance(one, Scenario) for added, one in under.items()
    ):
        raise WrongInput("scenario must be a mapping from suffixes of policy names to scenarios.")
    under = under or {"": Scenario()}

    def simulated() -> Iterator[PolicyRun]:
        yield from jobs.recorded
        on = jobs.workload
        fair = fair_jcts(on.jobs, on.cluster) if isinstance(on, JobsOnCluster) else None
        for variant, (added, condition) in product(variants, under.items()):
            named = replace(variant, name=_full_name(variant, oracle) + added)
            began = perf_counter()
            with progress(named.name, jobs.workload.tasks) as heard:
                result = simulate_policy(
                    jobs.workload, named, oracle=oracle, predictor=predictor, progress=heard, scenario=condition,
                    advisor=advisor,
                )  # fmt: skip
            if fair is not None:
                further = {**fairness_figures(result.recorder.lives, fair), **result.further}
                result = replace(result, further=further)
            yield PolicyRun(result, perf_counter() - began)

    return simulated()


def write_jobs(path: Path | str, jobs: JobSet, runs: Sequence[PolicyRun]) -> list[int]:
    """Write a CSV file with one row for each job and policy (`gpuyard.simulator.job_table` has the columns).

    Return the number of rows of each run: a task that a run refused has none.
    """
    to = path_of("path", path)
    recorded = jobs.workload if jobs.recorded_workload is None else jobs.recorded_workload
    try:
        return write_job_table(
            to,
            ((recorded if any(run is one for one in jobs.recorded) else jobs.workload, run.result) for run in runs),
        )
    except OSError as error:
        raise WrongInput(f"{shown_path(to)} cannot be written: {error.strerror}.") from None


def convert_trace(
    kind: str,
    source: Path | str,
    target: Path | str,
    *,
    begin: str | None = None,
    end: str | None = None,
    rename_vc: Mapping[str, str] | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> Converted:
    """Convert a native trace (`helios`, `philly`, `pai` or `acme`) to the columns of `trace_jobs`.

    `begin` and `end` are dates, for `pai` times since its beginning such as `14d`; jobs submitted before `end` are
    kept. `rename_vc`: virtual clusters that are part of others.
    """
    kind = argument("kind", kind, Literal["helios", "philly", "pai", "acme"])
    begins, ends = (
        None if text is None else read_instant(kind, argument(name, text, str), name)
        for name, text in (("begin", begin), ("end", end))
    )
    renamed = argument("rename_vc", dict(rename_vc or {}), dict[str, str])
    read_from, write_to = path_of("source", source), path_of("target", target)
    try:
        return convert(kind, read_from, write_to, begin=begins, end=ends, rename_vc=renamed, progress=progress)
    except OSError as error:
        raise WrongInput(f"{shown_path(write_to)} cannot be written: {error.strerror}.") from None


def _full_name(variant: PolicyVariant, oracle: bool) -> str:
    """Return the name of a run; those that were given the real run times say so."""
    return variant.name + (ORACLE if oracle and variant.estimate_source is not EstimateSource.NONE else "")


def _chosen(policies: Any) -> list["PolicyChoice"]:
    """Return the policies to compare, names without duplicates."""
    if isinstance(policies, Policy | PolicyVariant):
        return [policies]
    if isinstance(policies, list | tuple) and any(isinstance(one, Policy | PolicyVariant) for one in policies):
        found: dict[int | str, PolicyChoice] = {}
        for one in policies:
            if isinstance(one, Policy | PolicyVariant):
                found[id(one)] = one
            else:
                found |= {name: name for name in names("policies", [one])}
        return list(found.values())
    return list(variant_names(policies))


def intervals(runs: Sequence[PolicyRun], seed: int = 0) -> dict[str, IntervalsOfRun]:
    """Return 95 % intervals of the figures of one workload, by name of the run, and of the differences to the first run.

    They come from resampled days; a workload of fewer than five days has none. See `gpuyard.simulator.bootstrap`.
    """
    draw = Random(f"intervals {argument('seed', seed, Seed)}").random  # noqa: S311 - no secrets
    return block_intervals({run.name: run.result.recorder.lives for run in runs}, draw)


def variant_names(policies: Sequence[str] | str) -> list[str]:
    """Return policy names without duplicates, from a list or a comma-separated string."""
    return list(dict.fromkeys(names("policies", policies)))


def _cluster(cluster: Cluster | str, name: str = "cluster") -> Cluster:
    return cluster if isinstance(cluster, Cluster) else parse_cluster(argument(name, cluster, str), name)


def _on_cluster(
    interference: Interference, preemptible: float, checkpoints: str, seed: int
) -> Callable[[JobSource, Cluster], JobsOnCluster]:
    """Check the arguments that all jobs have in common."""
    interference = argument("interference", interference, Function)
    preemptible = argument("preemptible", preemptible, PreemptibleShare)
    saving = read_checkpoints(argument("checkpoints", checkpoints, str))
    chance = _streams(argument("seed", seed, Seed))
    return lambda jobs, where: JobsOnCluster(
        jobs, where, interference=interference, preemptible=preemptible, checkpoints=saving, chance=chance
    )


def _streams(seed: int) -> RandomStreams:
    def stream(name: str) -> RandomDraw:
        return Random(f"{name} {seed}").random  # noqa: S311 - jobs, not secrets

    return stream


def counted(count: int, word: str) -> str:
    """Return a count with its noun: 1 job, 1,000 jobs."""
    return f"{count:,} {word if count == 1 else word + 's'}"


def _notes(counts: Mapping[str, int]) -> tuple[str, ...]:
    return tuple(
        f"{count:,} {sentence if count > 1 else _singular(sentence)}." for sentence, count in counts.items() if count
    )


def _singular(sentence: str) -> str:
    """Return the sentence about one job or task."""
    return re.sub(r"^(job|task)s\b", r"\1", sentence).replace(" were ", " was ")


def _predictor(named: str) -> Callable[[], RuntimePredictor]:
    if named == "history":
        return HistoryPredictor
    if find_spec("lightgbm") is None:
        raise WrongInput("Run-time estimates with LightGBM need it: pip install 'gpuyard[learn]'.")
    from gpuyard.learn.estimates.learned import LearnedPredictor

    return LearnedPredictor


def _advisor(model: Path | None, variants: Sequence[PolicyVariant]) -> Advisor | None:
    """Load the trained network if one of the policies needs it, otherwise return None."""
    if not any(base_name(it.name) == "dqn" or (it.own is not None and it.own.advised) for it in variants):
        if model is not None:
            raise WrongInput(
                "A policy model is only used by the policy dqn, and dqn is not among the policies to compare."
            )
        return None
    if find_spec("numpy") is None:
        raise WrongInput("The policy dqn needs numpy: pip install 'gpuyard[learn]'.")
    from gpuyard.learn.policy_network import DEFAULT, AdvantageAdvisor, load

    return AdvantageAdvisor(load(model or DEFAULT, FEATURES))
