"""The process of a background job: a plan or a simulation, with limits on time, memory and output.

    python -m gpuyard.cli.service.background_job PARENT < order > report

The scheduler starts it and reads the report; it never computes such a thing itself. The limits are set here, before
anything large is imported: memory, processor time, size of the report and a low priority. The process ends with its
parent.
"""

import ctypes
import os
import resource
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gpuyard.core.domain.errors import GpuyardError, WrongInput
from gpuyard.core.domain.task import TaskSpec
from gpuyard.core.domain.values import MILLI
from gpuyard.live.wire.job_answers import (
    GenerateJobs,
    JobOrder,
    JobReport,
    ParetoPoint,
    PlanBar,
    PlanOutcome,
    PlanRequest,
    PlanResult,
    PolicyFigures,
    SimulationOutcome,
    SimulationRequest,
)

if TYPE_CHECKING:
    from gpuyard.plan.planner.api import Solution
    from gpuyard.plan.planner.problem import Problem
    from gpuyard.simulator.comparison import JobSet, PolicyRun
    from gpuyard.simulator.workloads.arrival import TimedInput
    from gpuyard.simulator.workloads.journal import JournalWorkload

NICE = 15
CPU_SECONDS = 120
MEMORY_BYTES = 2 << 30
REPORT_BYTES = 16 << 20
MOST_BARS = 8_000
"""Bars of one plan; more calls are drawn together."""
MOST_CALLS = 50_000
PLAIN_CALLS = 1_000
"""The largest problem that is planned by plain Python if the planner is not compiled on this machine."""
MOST_TASKS = 200_000
CDF_POINTS = 60
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Read the order from standard input and write the report to standard output."""
    limit(int(sys.argv[1]))
    report = JobReport(error="The job was not understood.")
    try:
        report = work(msgspec.json.decode(sys.stdin.buffer.read(), type=JobOrder))
    except GpuyardError as error:
        report = JobReport(error=str(error))
    except MemoryError:
        report = JobReport(error=f"The job needs more than {MEMORY_BYTES >> 30} GiB of memory, the maximum.")
    sys.stdout.buffer.write(msgspec.json.encode(report))


def limit(parent: int) -> None:
    """Set the limits of this process."""
    os.nice(NICE)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        os._exit(1)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (REPORT_BYTES, REPORT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def work(order: JobOrder) -> JobReport:
    """Do what the order says."""
    if order.plan is not None:
        return JobReport(plan=planned(order.plan))
    assert order.simulation is not None
    return JobReport(simulation=simulated(order.simulation, order))


# --- plans ------------------------------------------------------------------------------------------------------------


def planned(request: PlanRequest) -> PlanOutcome:
    """Plan a problem with each strategy."""
    if find_spec("numba") is None:
        raise WrongInput("Planning needs numpy and numba on the machine of the scheduler: pip install 'gpuyard[plan]'.")
    from gpuyard.cli.plan.first_use import marker
    from gpuyard.plan.planner import code_mode
    from gpuyard.plan.planner.problem_file import read_problem

    text = request.problem.encode() if isinstance(request.problem, str) else msgspec.json.encode(request.problem)
    problem = read_problem(text)
    problem = replace(problem, name=problem.name or "problem")
    if len(problem.calls) > MOST_CALLS:
        raise WrongInput(f"The problem has {len(problem.calls):,} calls, and {MOST_CALLS:,} are the maximum here.")
    code_mode.plain = len(problem.calls) <= PLAIN_CALLS and not marker().exists()
    from gpuyard.plan.planner.api import compare

    notes: list[str] = []
    names = list(dict.fromkeys(request.strategies))
    solutions: dict[str, Solution] = {}
    for name in names:
        try:
            solutions |= compare(problem, [name], seconds=request.seconds, seed=request.seed)
        except WrongInput as error:
            notes.append(f"{name} is omitted: {error}")
    if not solutions:
        raise WrongInput(notes[0] if notes else "No strategy was given.")
    bound = max(one.lower_bound_s for one in solutions.values())
    results = [_result(problem, name, replace(one, lower_bound_s=bound)) for name, one in solutions.items()]
    pareto = _front(problem, request) if "pareto" in solutions else None
    return PlanOutcome(results, pareto, notes)


def _result(problem: "Problem", name: str, found: "Solution") -> PlanResult:
    from gpuyard.plan.planner.gantt.bars import bars

    drawn = bars(problem, found.plan, MOST_BARS)
    columns = (
        drawn.gpu.tolist(), drawn.begin.tolist(), drawn.end.tolist(), drawn.model.tolist(), drawn.switch.tolist(),
        drawn.calls.tolist(), drawn.first.tolist(),
    )  # fmt: skip
    shown = [
        PlanBar(
            gpu, start, end, "load" if load else "call", problem.models[model].name,
            None if load else _call(problem, first), None if load else _request(problem, first), max(1, calls),
        )
        for gpu, start, end, model, load, calls, first in zip(*columns, strict=True)
    ]  # fmt: skip
    it = found.measures
    return PlanResult(
        name, it.makespan_s, found.lower_bound_s, found.gap, it.switches, it.switch_time_s, it.utilization_mean,
        found.planning_s, shown,
    )  # fmt: skip


def _request(problem: "Problem", call: int) -> str:
    return str(problem.requests.ids[int(problem.calls.request[call])])


def _call(problem: "Problem", call: int) -> str:
    workflow = problem.workflows[int(problem.requests.workflow[int(problem.calls.request[call])])]
    return str(workflow.nodes[int(problem.calls.position[call])])


def _front(problem: "Problem", request: PlanRequest) -> list[ParetoPoint]:
    from time import perf_counter

    from gpuyard.plan.planner.api import Watch, budget_of
    from gpuyard.plan.planner.strategies.pareto import pareto_front

    began = perf_counter()
    budget = budget_of(request.seconds, None, request.seed, lambda: perf_counter() - began, Watch())
    front = pareto_front(problem, budget, None)
    return [
        ParetoPoint(
            point.measures.makespan_s, point.energy_kwh, point.measures.switches, point.measures.utilization_spread,
            place == front.chosen,
        )
        for place, point in enumerate(front.points)
    ]  # fmt: skip


# --- simulations ------------------------------------------------------------------------------------------------------


class _Life(NamedTuple):
    """What the figures need of one task."""

    user: str
    submitted: float
    ended: float
    held: float
    preemptions: int


def simulated(request: SimulationRequest, order: JobOrder) -> SimulationOutcome:
    """Simulate each policy on the same tasks."""
    from gpuyard.simulator.comparison import generated_jobs, simulate

    if isinstance(request.source, GenerateJobs):
        assert request.nodes is not None
        made = request.source
        jobs = generated_jobs(
            made.generate, request.nodes, seed=made.seed, load=made.load, preemptible=made.preemptible
        )
        notes, recorded = list(jobs.notes), None
    else:
        jobs, recorded, notes = _past(request, order)
    names = [name for name in dict.fromkeys(request.policies) if name in jobs.known_policies]
    if left := [name for name in request.policies if name not in jobs.known_policies]:
        notes.append(f"{', '.join(left)}: only a whole journal records the policy; omitted.")
    if not names:
        raise WrongInput("None of these policies can be simulated on these tasks.")
    found = [] if recorded is None else [recorded]
    for run in simulate(replace(jobs, recorded=()), names):
        found.append(_figures_of(run))
        if run.unfinished:
            notes.append(f"Under {run.name} {run.unfinished:,} tasks never end: nodes that they need are missing.")
    return SimulationOutcome(found, notes)


def _figures_of(run: "PolicyRun") -> PolicyFigures:
    lives = [
        _Life(life.user, life.submitted, life.ended, life.held, life.preemptions)
        for life in run.result.recorder.lives.over()
        if life.ended is not None
    ]
    return figures(run.name, lives, run.result.recorder.gpu_seconds)


def figures(name: str, lives: Sequence[_Life], gpu_seconds: float) -> PolicyFigures:
    """Return the figures of one policy."""
    from gpuyard.simulator.measures import jain_index, percentile

    waits = sorted(max(0.0, life.ended - life.submitted - life.held) for life in lives)
    slow: dict[str, list[float]] = {}
    for life in lives:
        slowdown = max(1.0, (life.ended - life.submitted) / max(life.held, 10.0))
        slow.setdefault(life.user, []).append(slowdown)
    points = sorted({round(place * (len(waits) - 1) / (CDF_POINTS - 1)) for place in range(CDF_POINTS)})
    return PolicyFigures(
        name,
        len(lives),
        fmean(waits),
        percentile(waits, 0.5),
        percentile(waits, 0.95),
        percentile(waits, 0.99),
        [(waits[place], (place + 1) / len(waits)) for place in points],
        fmean(life.ended - life.submitted for life in lives),
        jain_index([fmean(values) for values in slow.values()]),
        gpu_seconds / 3600.0,
        max(life.ended for life in lives) - min(life.submitted for life in lives),
        sum(life.preemptions for life in lives),
    )


def _past(request: SimulationRequest, order: JobOrder) -> tuple["JobSet", PolicyFigures | None, list[str]]:
    """Return the past of the cluster: from its journal if that is whole, otherwise from the archive of ended tasks."""
    from gpuyard.simulator.comparison import journal_jobs
    from gpuyard.simulator.workloads.journal import JournalWorkload, NothingToReplay

    try:
        jobs = journal_jobs(order.journal, quota=request.quota, cluster=request.nodes)
    except NothingToReplay:
        if request.quota is not None:
            raise
        return _archived(request, order)
    workload = jobs.workload
    assert isinstance(workload, JournalWorkload)
    if order.since is not None or order.until is not None:
        jobs = replace(jobs, workload=_between(workload, order.since, order.until))
    lives = [
        _Life(life.user, life.submitted, life.ended, life.held, life.preemptions)
        for life in workload.happened.lives.over()
        if life.ended is not None and _within(life.submitted, order)
    ]
    if not lives or not jobs.workload.tasks:
        raise WrongInput("No task was submitted and ended in this time, so there is nothing to simulate.")
    part = len(lives) / max(1, sum(1 for _ in workload.happened.lives.over()))
    recorded = figures("recorded", lives, workload.happened.gpu_seconds * part)
    notes = list(jobs.notes)
    if part < 1:
        notes.append("gpu_hours of recorded is its part of all tasks by number.")
    return jobs, recorded, notes


def _within(submitted: float, order: JobOrder) -> bool:
    return (order.since is None or submitted >= order.since) and (order.until is None or submitted < order.until)


def _between(workload: "JournalWorkload", since: float | None, until: float | None) -> "JournalWorkload":
    """Leave out tasks that were submitted at another time, and dependencies on them; nodes and settings stay."""
    from gpuyard.core.domain import commands as command

    kept: set[int] = set()
    came: list[TimedInput] = []
    for at, coming in workload.came:
        if isinstance(coming, command.Command):
            task = getattr(coming, "task", None)
            if task is None or task in kept:
                came.append((at, coming))
        elif (since is None or at >= since) and (until is None or at < until):
            kept.update(arrival.task for arrival in coming)
            came.append((at, tuple(one._replace(spec=_without(one.spec, kept)) for one in coming)))
    return replace(workload, came=came)


def _without(spec: TaskSpec, kept: set[int]) -> TaskSpec:
    """Return the task without dependencies on tasks that are left out."""
    if not spec.has_prerequisites:
        return spec
    return msgspec.structs.replace(
        spec,
        after_success=tuple(task for task in spec.after_success if task in kept),
        after_any=tuple(task for task in spec.after_any if task in kept),
        after_success_ranges=tuple(pair for pair in spec.after_success_ranges if pair[0] in kept and pair[1] in kept),
        after_any_ranges=tuple(pair for pair in spec.after_any_ranges if pair[0] in kept and pair[1] in kept),
    )


def _archived(request: SimulationRequest, order: JobOrder) -> tuple["JobSet", PolicyFigures | None, list[str]]:
    """Return the ended tasks of the archive, on the nodes of today or on other ones."""
    from gpuyard.live.control_plane.stores.archive import newest_ended
    from gpuyard.live.wire.task_answers import TaskAnswer
    from gpuyard.simulator.clusters import Cluster, parse_cluster
    from gpuyard.simulator.comparison import JobSet
    from gpuyard.simulator.workloads.job import Job
    from gpuyard.simulator.workloads.on_cluster import JobsOnCluster, fitting

    decode = msgspec.json.Decoder(TaskAnswer).decode
    where = parse_cluster(request.nodes, "nodes") if request.nodes else Cluster(tuple(order.nodes))
    jobs: list[Job] = []
    lives: list[_Life] = []
    gpu_seconds = 0.0
    told = [decode(answer) for _, answer in newest_ended(Path(order.archive), MOST_TASKS)]
    told.sort(key=lambda task: task.created_at)
    began = _instant(told[0].created_at) if told else 0.0
    for task in told:
        submitted, ran, share = _instant(task.created_at), task.run_seconds or 0.0, task.gpu_fraction
        gpus = 1 if share else task.gpu_count * task.nodes
        if not gpus or not ran or not _within(submitted, order) or task.finished_at is None:
            continue
        models = (task.gpu_model,) if isinstance(task.gpu_model, str) else tuple(task.gpu_model or ())
        milli = round((share or 1.0) * MILLI)
        command = shlex.join(task.command) if isinstance(task.command, list) else task.command or ""
        jobs.append(Job(submitted - began, ran, gpus, task.user, "", task.name, milli, models, command=command))
        lives.append(_Life(task.user, submitted, _instant(task.finished_at), ran, max(0, task.attempts - 1)))
        gpu_seconds += ran * gpus * milli / MILLI
    fits = fitting(jobs, where)
    if not fits:
        raise WrongInput("No task in the archive ended in this time after it ran on GPUs of these nodes.")
    notes = [
        (
            "The journal no longer has its first events: the tasks are those of the archive, with their run times, on "
            "the nodes of today; settings, limits of tenants and dependencies are left out."
        )
    ]
    if len(fits) < len(jobs):
        notes.append(f"{len(jobs) - len(fits):,} tasks that cannot run on these nodes were omitted.")
    workload = JobsOnCluster(fits, where, preemptible=0.0)
    return JobSet(workload, "the archive"), figures("recorded", lives, gpu_seconds), notes


def _instant(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


if __name__ == "__main__":
    main()
