"""The answer of /api/v1 about a task: request, placement and result."""

from msgspec import Struct, field
from msgspec.structs import asdict

from gpuyard.core.domain.actual import Actual
from gpuyard.core.domain.placement import Placement
from gpuyard.core.domain.task import Console, SubmitProcess, TaskRange, TaskSpec
from gpuyard.core.domain.values import MILLI, Link, OnLost, Preemption, TaskClass, TaskId, TaskStatus
from gpuyard.live.wire.booking_answers import format_booking_id
from gpuyard.live.wire.limits import Instant, instant_of
from gpuyard.live.wire.notices import notice_text
from gpuyard.live.wire.tasks import (
    LEAST_RANGE,
    ConsoleRequest,
    SnapshotRequest,
    SubmitProcessRequest,
    WorkRequest,
    format_priority,
    format_task_id,
)


class ForecastAnswer(Struct, frozen=True, kw_only=True):
    """Prediction of a workload on one GPU model, with ranges that hold for four of five tasks."""

    gpu_model: str
    seconds: float
    low_seconds: float
    high_seconds: float
    memory_mib: float | None
    """On each GPU, including the memory of CUDA itself."""
    memory_low_mib: float | None
    memory_high_mib: float | None
    utilization: float | None
    """In percent."""
    by: str = ""
    """The performance model that made the prediction."""


class TaskAnswer(Struct, frozen=True, kw_only=True, gc=False):
    """A task. Some fields have two names, for clients that use either."""

    task_id: str
    id: str
    status: TaskStatus
    priority: str | int
    task_class: TaskClass = field(name="class")
    gpu_count: int
    """Whole GPUs on each node; 0 for a share, see `gpu_fraction`."""
    command: str | list[str] | None
    created_at: Instant
    started_at: Instant | None
    finished_at: Instant | None
    exit_code: int | None
    signal: int | None
    attempts: int
    origins: list[list[int]]
    """Pairs of an attempt and the random number of the scheduler start that placed it and later ones. They distinguish two
    tasks with the same number, for example after a restored backup."""
    allocated_gpus: list[str]
    """As `NODE/INDEX`, the ids of GET /gpus; they stay listed after the end."""
    assigned_gpus: list[str]
    node_id: str | None
    node_ids: list[str]
    reason: str | None
    """Why the task waits, or how it ended."""
    reason_code: str | None
    tenant_id: str
    user: str
    project: str
    name: str
    description: str
    created_by: str
    env: dict[str, str]
    secrets: list[str]
    """Their names only."""
    work_dir: str | None
    labels: dict[str, str]
    gpu_model: str | list[str] | None
    gpu_speeds: dict[str, float] | None
    gpu_memory_mb: int | None
    gpu_fraction: float | None
    cpu_count: int
    memory_mb: int
    nodes: int
    link: Link
    retries: int
    timeout: float | None
    depends_on: list[str]
    after_any: list[str]
    array_index: int | None
    preemption: Preemption
    on_lost: OnLost
    estimated_seconds: float | None
    """Expected run time: submitted with the task, or predicted."""
    model: str | None
    require_fit: bool
    estimated_low_seconds: float | None = None
    estimated_high_seconds: float | None = None
    """The range holds for nine of ten tasks."""
    predicted_from: int | None = None
    """Number of similar runs from which the estimate was predicted; null: it was submitted, or there is none."""
    run_seconds: float | None = None
    """Run time without suspensions; null: the task runs, or has not started."""
    running_since: Instant | None = None
    """Since when it runs without interruption; null: it does not run."""
    ran_before_seconds: float | None = None
    """Run time before `running_since`, as it was suspended or its progress was saved; null: it does not run."""
    gpu_memory_peak_mib: int | None = None
    """Peak memory of the last attempt on one of its GPUs, after its end; null: not measured."""
    gpu_utilization: float | None = None
    """Average GPU utilization of that attempt, in percent."""
    ran_on: str | None = None
    """GPU model of the current or last attempt."""
    work: WorkRequest | None = None
    forecasts: list[ForecastAnswer] = []
    """Predictions from its workload for each suitable GPU model of the cluster, made at submission."""
    request_id: str | None = None
    """The id of the request that submitted it (header `X-Request-ID`)."""
    grace: float | None = None
    """Seconds between SIGTERM and SIGKILL when it is stopped; null: that of its node."""
    snapshot: SnapshotRequest | None = None
    """The code that it runs in; null: the folder as it is."""
    files: dict[str, str] = {}
    """Blobs that it finds as files, by name."""
    store_result: bool = False
    """Whether the file that it leaves as its result is stored."""
    result: str | None = None
    """The SHA-256 of the blob with its result; null: none was stored."""
    setup: str | None = None
    """The line that runs before its command."""
    submit_process: SubmitProcessRequest | None = None
    """Machine, umask and soft limits of the process that submitted it; null: not known."""
    booking: str | None = None
    """The booking whose GPUs it uses."""
    notify: list[str] = []
    """Who is told about it, as in the request."""
    console: ConsoleRequest | None = None
    """The terminal or open standard input of its command; null: it has none."""
    max_running: int | None = None
    """How many tasks of its array or sweep may run at the same time; null: any number."""
    group: str | None = None
    """Tasks of one user with the same group are one line of `gpuyard ps`; null: it is in none."""


class BatchAnswer(Struct, frozen=True):
    """The tasks of a batch in the order of the request; an array is listed as all its tasks."""

    tasks: list[TaskAnswer]


def answer_of(
    id: TaskId,  # noqa: A002 - the field has this name
    spec: TaskSpec,
    *,
    status: TaskStatus,
    priority: int,
    submitted_at: float,
    started_at: float | None,
    finished_at: float | None,
    exit_code: int | None,
    signal: int | None,
    attempts: int,
    origins: tuple[tuple[int, int], ...] = (),
    placement: Placement | None,
    reason: str | None,
    reason_code: str | None,
    created_by: str,
    run_seconds: float | None = None,
    running_since: float | None = None,
    ran_before_seconds: float = 0.0,
    actual: Actual | None = None,
    ran_on: str | None = None,
    request_id: str = "",
    result: str = "",
    max_running: int = 0,
) -> TaskAnswer:
    """Build the answer about a task. `priority` is its current one, `placement` its latest one."""
    ask, name = spec.resources, format_task_id(id)
    gpus = gpu_ids(placement)
    nodes = [str(part.node) for part in placement.slices] if placement else []
    share, estimate = ask.share, spec.estimate
    models = list(ask.models)
    return TaskAnswer(
        task_id=name,
        id=name,
        status=status,
        priority=format_priority(spec.task_class, priority, spec.priority_in_words),
        task_class=spec.task_class,
        gpu_count=ask.gpus,
        command=list(spec.command) if isinstance(spec.command, tuple) else spec.command,
        created_at=instant_of(submitted_at),
        started_at=None if started_at is None else instant_of(started_at),
        finished_at=None if finished_at is None else instant_of(finished_at),
        exit_code=exit_code,
        signal=signal,
        attempts=attempts,
        origins=[list(pair) for pair in origins],
        allocated_gpus=gpus,
        assigned_gpus=gpus,
        node_id=nodes[0] if nodes else None,
        node_ids=nodes,
        reason=reason,
        reason_code=reason_code,
        tenant_id=spec.tenant,
        user=spec.user,
        project=spec.project,
        name=spec.name,
        description=spec.description,
        created_by=created_by,
        env=dict(spec.env),
        secrets=list(spec.secrets),
        work_dir=spec.work_dir or None,
        labels=dict(ask.labels),
        gpu_model=models[0] if len(models) == 1 else models or None,
        gpu_speeds=dict(ask.speeds) or None,
        gpu_memory_mb=ask.gpu_memory_asked_mib or None,
        gpu_fraction=share.fraction_milli / MILLI if share else None,
        cpu_count=ask.cpus,
        memory_mb=ask.memory_mib,
        nodes=ask.nodes,
        link=ask.link,
        retries=spec.retries,
        timeout=spec.timeout_seconds,
        grace=spec.grace_seconds,
        submit_process=_submit_process(spec.submit_process),
        depends_on=_spoken_dependencies(spec.after_success, spec.after_success_ranges),
        after_any=_spoken_dependencies(spec.after_any, spec.after_any_ranges),
        array_index=spec.array_index,
        max_running=max_running or None,
        preemption=spec.preemption,
        on_lost=spec.on_lost,
        estimated_seconds=estimate.seconds if estimate else None,
        estimated_low_seconds=estimate.low_seconds if estimate else None,
        estimated_high_seconds=estimate.high_seconds if estimate else None,
        predicted_from=(estimate.runs or None) if estimate else None,
        run_seconds=run_seconds,
        running_since=None if running_since is None else instant_of(running_since),
        ran_before_seconds=None if running_since is None else ran_before_seconds,
        gpu_memory_peak_mib=actual.gpu_memory_peak_mib if actual else None,
        gpu_utilization=actual.gpu_utilization if actual else None,
        ran_on=ran_on,
        work=WorkRequest(**asdict(spec.work)) if spec.work else None,
        forecasts=[ForecastAnswer(**asdict(one)) for one in spec.forecasts],
        model=spec.model_name or None,
        require_fit=spec.require_fit,
        request_id=request_id or None,
        snapshot=SnapshotRequest(**asdict(spec.snapshot)) if spec.snapshot else None,
        files=dict(spec.files),
        store_result=spec.store_result,
        setup=spec.setup or None,
        result=result or None,
        notify=[notice_text(notice) for notice in spec.notify],
        booking=format_booking_id(ask.booking) if ask.booking else None,
        console=_spoken_console(spec.console),
        group=spec.group or None,
    )


def _spoken_console(console: Console | None) -> ConsoleRequest | None:
    if console is None:
        return None
    return ConsoleRequest(
        terminal=console.terminal, columns=console.columns, rows=console.rows, linger=console.linger_seconds
    )


def _spoken_dependencies(tasks: tuple[TaskId, ...], ranges: tuple[TaskRange, ...]) -> list[str]:
    """`task-7`, and `task-1..task-2000` for a long range: an answer never lists the tasks of a large array one by one."""
    spoken = [format_task_id(task) for task in tasks]
    for first, last in ranges:
        if last - first + 1 < LEAST_RANGE:
            spoken += [format_task_id(TaskId(task)) for task in range(first, last + 1)]
        else:
            spoken.append(f"{format_task_id(first)}..{format_task_id(last)}")
    return spoken


def gpu_ids(placement: Placement | None) -> list[str]:
    """`NODE/INDEX` of every GPU in a placement."""
    if placement is None:
        return []
    return [f"{part.node}/{index}" for part in placement.slices for index in part.gpus]


def origin_of(told: TaskAnswer, attempt: int) -> int:
    """Return the origin of an attempt: the random number of the scheduler that placed it."""
    return next((origin for first, origin in reversed(told.origins) if first <= attempt), 0)


def _submit_process(found: SubmitProcess | None) -> SubmitProcessRequest | None:
    if found is None:
        return None
    limits = dict(found.limits) or None
    return SubmitProcessRequest(host=found.host, python=found.python or None, umask=found.umask, limits=limits)  # type: ignore[arg-type]
