"""Task requests of /api/v1, and their conversion to TaskSpec.

`TaskRequest` is decoded in one msgspec call that also checks every bound a single field has; `specs_of` checks what
only several fields together can get wrong. Both answer with one sentence (`WrongRequest`).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, MsgspecError, Raw, Struct, field, json
from msgspec.structs import asdict, replace

from gpuyard.core.domain.notice import MOST_NOTICES
from gpuyard.core.domain.precision import Precision
from gpuyard.core.domain.task import (
    CodeSnapshot,
    Console,
    Estimate,
    Resources,
    Share,
    SubmitProcess,
    TaskRange,
    TaskSpec,
    ranges_in,
)
from gpuyard.core.domain.validation import check_spec
from gpuyard.core.domain.values import MILLI, PARAMETER_PREFIX, Link, OnLost, Preemption, TaskClass, TaskId, TenantId
from gpuyard.core.domain.workload import WorkloadSpec
from gpuyard.input.strict import Strict, WrongRequest, repeated_key
from gpuyard.live.wire.blobs import BlobFileName, Sha256
from gpuyard.live.wire.booking_answers import BookingReference, parse_booking_id
from gpuyard.live.wire.limits import (
    AbsolutePath,
    CpuCount,
    Description,
    EnvName,
    GpuCount,
    Labels,
    Mebibytes,
    ModelName,
    NodeCount,
    PositiveSeconds,
    Priority,
    RetryCount,
    SetupLine,
    Speed,
    TenantName,
    Title,
)
from gpuyard.live.wire.notices import NoticeText, notice_of
from gpuyard.live.wire.setup_command import with_setup

HIGH = (TaskClass.ONLINE, 80)
LOW = (TaskClass.BATCH, 20)
MEDIUM_PRIORITY = 50
MOST_BYTES = 128 * 1024
"""The maximum size of command, environment and secrets together: the limit of Linux for one argument, such as a shell line."""
STEPS_SECRET = "SBATCH_STEPS_SECRET"  # noqa: S105 - its name
"""The secret of a job script on several nodes. Nobody knows it: the client draws one for each job."""
MOST_IN_A_BATCH = 100_000
MOST_TASKS = 100_000
"""The maximum number of tasks that one request creates, including arrays."""
MOST_EDGES = 100_000
"""The maximum number of dependencies of all tasks of a request; a range of consecutive tasks counts as one."""
LEAST_RANGE = 16
"""The minimum number of consecutive dependencies that are stored as a range."""
PLACE = "tasks["
"""The prefix of a reference to a task of the same batch: `tasks[2]`."""
LARGEST_ID = 2**63 - 1

RESERVED_VARIABLES = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_VISIBLE_DEVICES",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "NODE_RANK",
    }
)
"""Reserved variables: GPUs and rank of a task. All names that begin with GPUYARD_ are reserved, too, except parameters."""

LimitName: TypeAlias = Literal["nofile", "stack", "memlock", "core"]
"""Resource limits that travel with a task."""
TaskReference: TypeAlias = Annotated[
    Annotated[int, Meta(ge=1, le=LARGEST_ID)]
    | Annotated[str, Meta(pattern=r"^((task-)?[1-9][0-9]{0,18}|tasks\[(0|[1-9][0-9]{0,5})\])$(?!\n)")],
    Meta(
        description=(
            'the number or id of a task, such as 7 or "task-7"; in a batch also "tasks[2]", the third task of the batch'
        )
    ),
]
TaskReferences: TypeAlias = Annotated[list[TaskReference], Meta(max_length=10_000)]
Argument: TypeAlias = Annotated[str, Meta(max_length=MOST_BYTES)]
Environment: TypeAlias = Annotated[dict[EnvName, Argument], Meta(max_length=4096)]


# --- asked --------------------------------------------------------------------------------------------------------------


MaxRunning: TypeAlias = Annotated[int, Meta(ge=1, le=MOST_TASKS)]


class ArrayRequest(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Number of copies of the task; each has its number, by default from 0, in GPUYARD_ARRAY_INDEX."""

    count: Annotated[int, Meta(ge=1, le=10_000)]
    first: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """The number of the first copy; above 0 to submit part of an array again."""
    max_running: MaxRunning | None = None
    """How many copies may run at the same time; null: any number."""


class WorkRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Workload of a task: steps of a machine-learning model."""

    model: Annotated[str, Meta(min_length=1, max_length=200)]
    """A model that `gpuyard predict` knows, such as resnet50; or any other, with flops, activations and parameters."""
    mode: Literal["train", "infer"] = "train"
    batch: Annotated[int, Meta(ge=1, le=10_000_000)] = 32
    """Batch size on each GPU."""
    precision: Precision = "fp32"
    compiled: bool = False
    size: Annotated[int, Meta(ge=1, le=10_000_000)] = 224
    """Size of the input: pixels per side, or tokens."""
    family: Annotated[str, Meta(max_length=200)] = ""
    steps: Annotated[int, Meta(ge=1, le=1_000_000_000_000)] = 1
    """Number of steps; with 1, memory and speeds are predicted but no run time."""
    flops: Annotated[float, Meta(gt=0, le=1e21)] | None = None
    """Of one sample in inference, for an unknown model; the same applies to the next two fields."""
    activations: Annotated[float, Meta(gt=0, le=1e18)] | None = None
    parameters: Annotated[float, Meta(gt=0, le=1e18)] | None = None
    torch: Annotated[float, Meta(ge=1, le=10_000)] = 211.0
    """Its version, in hundredths."""


class SnapshotRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The code of a task, as it was at its submission."""

    manifest: Sha256
    """The blob that lists its files."""
    commit: Annotated[str, Meta(max_length=64, pattern=r"^[0-9a-f]*$(?!\n)")] = ""
    """The commit of the folder; empty: it is not in a repository."""
    dirty: bool = False
    """Whether the folder had changes that are not in the commit."""


class SubmitProcessRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the task gets from the process that submits it, besides environment variables."""

    host: Annotated[str, Meta(max_length=200)] = ""
    """Its machine: name and a hash of its id. On any other machine PATH is limited to the environment and the home folder."""
    python: AbsolutePath | None = None
    """The Python of the virtual or conda environment. It must exist on the node, or the attempt is not launched."""
    umask: Annotated[int, Meta(ge=0, le=0o777)] | None = None
    limits: Annotated[dict[LimitName, Annotated[int, Meta(ge=-1, le=LARGEST_ID)]], Meta(max_length=8)] | None = None
    """Soft limits, up to the hard limits of the node; -1: unlimited."""


class ConsoleRequest(Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """A terminal of a task, or its open standard input."""

    terminal: bool = True
    """False: only standard input is open; output goes to the log as usual."""
    columns: Annotated[int, Meta(ge=1, le=9999)] = 80
    """The size at the start; a client that attaches changes it."""
    rows: Annotated[int, Meta(ge=1, le=9999)] = 24
    linger: Annotated[float, Meta(ge=0, le=604_800)] | None = 900.0
    """Seconds that the task goes on without a client before its terminal is closed; null: for ever."""


class TaskRequest(Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """A task to run. A field that is null counts as omitted."""

    priority: Literal["high", "low"] | Priority | None = None
    """`high` means class online with priority 80, `low` class batch with priority 20; a number keeps the class of the tenant."""
    gpu_count: GpuCount | None = None
    """Whole GPUs on each node. Default: one, unless the task requests a share or only CPUs."""
    gpu_model: ModelName | Annotated[list[ModelName], Meta(min_length=1, max_length=64)] | None = None
    gpu_speeds: Annotated[dict[ModelName, Speed], Meta(min_length=1, max_length=64)] | None = None
    """Relative speed on GPU models. Default: equal on all."""
    command: Argument | Annotated[list[Argument], Meta(min_length=1, max_length=10_000)] | None = None
    """A shell command line, or a list of arguments. Omitted: a lease, GPUs without a process."""
    env: Environment | None = None
    name: Title | None = None
    description: Description | None = None
    tenant_id: TenantName | None = None
    project: Title | None = None
    task_class: TaskClass | None = field(name="class", default=None)
    cpu_count: CpuCount | None = None
    """On each node."""
    memory_mb: Mebibytes | None = None
    """Host memory on each node, in MiB."""
    gpu_memory_mb: Mebibytes | None = None
    """Minimum memory of each whole GPU; for a share, the memory it may use. In MiB."""
    gpu_fraction: Annotated[float, Meta(ge=0, le=1)] | None = None
    """A share of one GPU; see `resources_of`."""
    nodes: NodeCount | None = None
    """More than one: a gang, which starts on all nodes together."""
    labels: Labels | None = None
    """Labels that the node must have."""
    timeout: PositiveSeconds | None = None
    """Maximum run time of one attempt, in seconds; also for leases."""
    grace: PositiveSeconds | None = None
    """Seconds between SIGTERM and SIGKILL when the task is stopped, to save its state. Default: that of the node."""
    console: ConsoleRequest | None = None
    """A terminal, or an open standard input, to which clients are attached. Default: the command reads nothing."""
    retries: RetryCount | None = None
    """Number of retries after failures of the task. A lost node does not count."""
    depends_on: TaskReferences | None = None
    """Start after all of these have succeeded; the task is cancelled if one does not."""
    after_any: TaskReferences | None = None
    """Start after all of these have ended, successfully or not."""
    array: ArrayRequest | None = None
    setup: SetupLine | None = None
    """A line for the shell that runs before the command, in its folder and environment; if it fails, the task fails."""
    work_dir: AbsolutePath | None = None
    secrets: Environment | None = None
    """Secret environment variables; their values are sent only to the nodes that run the task."""
    preemption: Preemption | None = None
    on_lost: OnLost | None = None
    estimated_seconds: PositiveSeconds | None = None
    model: Title | None = None
    """Name of the machine-learning model that the task trains or serves."""
    work: WorkRequest | None = None
    """Workload of the task, from which run time, memory and speeds are predicted."""
    link: Link | None = None
    require_fit: bool | None = None
    """Reject the task if no current node is large enough, instead of waiting for a suitable node to join."""
    snapshot: SnapshotRequest | None = None
    """Run in a fresh copy of these files, which is the work dir."""
    files: Annotated[dict[BlobFileName, Sha256], Meta(max_length=64)] | None = None
    """Blobs that the task finds as files of these names, in the folder GPUYARD_FILES_DIR."""
    store_result: bool | None = None
    """Store the file GPUYARD_RESULT_FILE that the task leaves, as a blob; `result` of the task names it."""
    submit_process: SubmitProcessRequest | None = None
    """Umask, soft limits and machine of the process that submits the task; `gpuyard submit` and `run` send them."""
    booking: BookingReference | None = None
    """Use the GPUs of this booking: start when it begins; after its end the task waits like all others."""
    notify: Annotated[list[NoticeText], Meta(max_length=MOST_NOTICES)] | None = None
    """Who is told about the task, each as `start,end,fail:TARGET`."""
    group: Title | None = None
    """Tasks of one user with the same group are one line of `gpuyard ps`, such as the calls of a map."""


class BatchLimit(Struct, frozen=True, forbid_unknown_fields=True):
    """A limit on the running tasks of a sweep: `count` requests of a batch from position `first` on."""

    first: Annotated[int, Meta(ge=0, lt=MOST_IN_A_BATCH)]
    count: Annotated[int, Meta(ge=1, le=MOST_IN_A_BATCH)]
    max_running: MaxRunning


class BatchRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Several tasks, accepted all or none."""

    tasks: Annotated[list[TaskRequest], Meta(min_length=1, max_length=MOST_IN_A_BATCH)]
    limits: Annotated[list[BatchLimit], Meta(max_length=MOST_IN_A_BATCH)] = []
    """How many of these tasks may run at the same time."""


class _RawBatch(Struct, frozen=True, forbid_unknown_fields=True):
    """A batch whose tasks are not read yet."""

    tasks: Annotated[list[Raw], Meta(min_length=1, max_length=MOST_IN_A_BATCH)]
    limits: Annotated[list[BatchLimit], Meta(max_length=MOST_IN_A_BATCH)] = []


_LIMITS = b'"limits"'
_decode_raw_batch = json.Decoder(_RawBatch).decode
_decode_task = json.Decoder(TaskRequest).decode
_TASK = Strict(TaskRequest)
_BATCH = Strict(BatchRequest)


def read_task(body: bytes) -> TaskRequest:
    """Decode a task request from JSON."""
    return _TASK.json(body)


def read_batch(body: bytes) -> BatchRequest:
    """Decode a batch from JSON; errors name `tasks[i].field`."""
    return _BATCH.json(body)


def read_large_batch(body: bytes) -> BatchRequest:
    """Decode a batch task by task: in a thread this lets other threads run, which a single call would not."""
    if b"\\u0000" not in body and body.count(b'"tasks"') == 1:
        try:
            batch = _decode_raw_batch(body)
            raws = [bytes(raw) for raw in batch.tasks]
            tasks = [_decode_task(raw) for raw in raws]
            own = body.count(_LIMITS) - sum(raw.count(_LIMITS) for raw in raws)  # a task may have such a key, too
            if own <= 1 and not any(repeated_key(raw) for raw in raws):
                return BatchRequest(tasks, batch.limits)
        except (MsgspecError, ValueError, RecursionError):
            pass  # what is wrong is said below
    return read_batch(body)


# --- meant --------------------------------------------------------------------------------------------------------------


def specs_of(
    request: TaskRequest,
    *,
    default_tenant: str,
    default_class: TaskClass = TaskClass.BATCH,
    default_priority: int = MEDIUM_PRIORITY,
    default_timeout: float | None = None,
    default_grace: float | None = None,
    max_grace: float | None = None,
    max_gpu_memory_mib: int | None = None,
    user: str = "",
) -> list[TaskSpec]:
    """Return the tasks of a request: one, or all tasks of its array. Only the names of secrets are included.

    The defaults are those of the tenant of the task; `max_gpu_memory_mib` is the most memory it may request on one
    GPU, `max_grace` the longest grace.
    """
    task_class, priority = class_and_priority(request, default_class, default_priority)
    if max_gpu_memory_mib and (request.gpu_memory_mb or 0) > max_gpu_memory_mib:
        message = (
            f"gpu_memory_mb is {request.gpu_memory_mb}; the maximum of this tenant is {max_gpu_memory_mib} on one GPU."
        )
        raise WrongRequest("QuotaForbids", message, "gpu_memory_mb", status=409)
    if max_grace is not None and (request.grace or 0) > max_grace:
        message = f"grace is {request.grace:g} s; the maximum of this cluster is {max_grace:g} s (scheduler.max_grace)."
        raise WrongRequest("OutOfRange", message, "grace")
    seconds = request.estimated_seconds
    after_success, after_success_ranges = _task_ids(request.depends_on)
    after_any, after_any_ranges = _task_ids(request.after_any)
    spec = TaskSpec(
        TenantId(request.tenant_id or default_tenant),
        resources_of(request),
        name=request.name or "",
        user=user,
        project=request.project or "",
        description=request.description or "",
        task_class=task_class,
        priority=priority,
        priority_in_words=isinstance(request.priority, str),
        command=command_of(request.command),
        env=_env_of(request),
        setup=request.setup or "",
        work_dir=request.work_dir or "",
        timeout_seconds=request.timeout or default_timeout,
        retries=request.retries or 0,
        after_success=after_success,
        after_any=after_any,
        after_success_ranges=after_success_ranges,
        after_any_ranges=after_any_ranges,
        preemption=request.preemption or Preemption.NEVER,
        on_lost=request.on_lost or OnLost.RERUN,
        estimate=Estimate(seconds, seconds, seconds) if seconds else None,
        require_fit=bool(request.require_fit),
        secrets=tuple(sorted(request.secrets)) if request.secrets else (),
        model_name=request.model or "",
        work=work_of(request),
        grace_seconds=None if request.command is None else request.grace or default_grace,
        snapshot=None if request.snapshot is None else CodeSnapshot(**asdict(request.snapshot)),
        files=tuple(sorted(request.files.items())) if request.files else (),
        store_result=bool(request.store_result),
        submit_process=_submit_process_of(request.submit_process),
        console=console_of(request),
        group=_one_group(request.group) if request.group else "",
    )
    if request.notify:
        spec = replace(spec, notify=tuple(notice_of(text) for text in request.notify))
    if request.command is None:
        _check_lease(request)
    if request.store_result and (request.nodes or 1) > 1:
        message = f"store_result needs a task on one node, but nodes is {request.nodes}: its parts would leave several results."
        raise WrongRequest("Contradiction", message, "store_result")
    if wrong := check_spec(spec):
        raise WrongRequest(wrong.code, wrong.sentence())
    if request.array is None:
        return [spec]
    first = request.array.first
    indices = range(first, first + request.array.count)
    if not spec.notify or request.array.count == 1:
        return [replace(spec, array_index=index) for index in indices]
    return [
        replace(
            spec,
            array_index=index,
            notify=tuple(replace(one, place=index - first, count=request.array.count) for one in spec.notify),
        )
        for index in indices
    ]


def _submit_process_of(request: SubmitProcessRequest | None) -> SubmitProcess | None:
    if request is None:
        return None
    limits = tuple(sorted((request.limits or {}).items()))
    return SubmitProcess(request.host, request.python or "", request.umask, limits)


def console_of(request: TaskRequest) -> Console | None:
    """Return the console of a request; it belongs to one command on one node."""
    asked = request.console
    if asked is None:
        return None
    for name, given in (("nodes", (request.nodes or 1) > 1), ("array", request.array is not None)):
        if given:
            message = f"A task with a console has one command on one node; omit {name} or console."
            raise WrongRequest("Contradiction", message, "console")
    return Console(asked.terminal, asked.columns, asked.rows, asked.linger)


def work_of(request: TaskRequest) -> WorkloadSpec | None:
    """Return the declared work of a request; predictions need whole GPUs."""
    if request.work is None:
        return None
    if request.gpu_fraction not in {None, 1} or request.gpu_count == 0 or request.command is None:
        message = (
            "work describes the workload of a command on whole GPUs; specify a command and at least one whole GPU."
        )
        raise WrongRequest("Contradiction", message, "work")
    return WorkloadSpec(**asdict(request.work))


def class_and_priority(
    request: TaskRequest, default_class: TaskClass, default_priority: int = MEDIUM_PRIORITY
) -> tuple[TaskClass, int]:
    """Return class and priority. `class` may repeat the meaning of `high` and `low`, but not contradict it."""
    said = request.priority
    if isinstance(said, str):
        task_class, priority = HIGH if said == "high" else LOW
        if request.task_class is not None and request.task_class is not task_class:
            message = (
                f'priority "{said}" means class {task_class}, but class is {request.task_class}; give '
                "the priority as a number from 0 to 100, or omit class."
            )
            raise WrongRequest("Contradiction", message, "class")
        return task_class, priority
    return request.task_class or default_class, default_priority if said is None else said


def format_priority(task_class: TaskClass, priority: int, in_words: bool) -> str | int:
    """Return the priority as it was sent: a word while the task still has its value, otherwise a number."""
    if in_words and (task_class, priority) == HIGH:
        return "high"
    return "low" if in_words and (task_class, priority) == LOW else priority


def resources_of(request: TaskRequest) -> Resources:
    """Return the resources that a request needs on each node.

    - `gpu_count` n: n whole GPUs, and `gpu_memory_mb` is the least memory each of them must have.
    - `gpu_fraction` f below 1: a share of one GPU. Its compute is f; its memory is `gpu_memory_mb`, or f of the GPU's
      memory if that is omitted. `gpu_fraction` 0 with `gpu_memory_mb` limits memory only. `gpu_count` may be left out,
      0 or 1 beside it.
    - `gpu_fraction` 1 is one whole GPU.
    - Neither: one whole GPU, or none if `cpu_count` is given and no field mentions a GPU.
    """
    fraction, memory = request.gpu_fraction, request.gpu_memory_mb or 0
    gpus, share = _gpus_of(request), None
    if fraction is not None:
        if gpus > 1:
            message = f"gpu_fraction requests a share of one GPU and gpu_count {gpus} whole ones; use only one of them."
            raise WrongRequest("Contradiction", message, "gpu_fraction")
        if fraction < 1 and (request.nodes or 1) > 1:
            message = f"gpu_fraction requests a share of one GPU, which is on one node, but nodes is {request.nodes}."
            raise WrongRequest("Contradiction", message, "nodes")
        gpus, share = (1, None) if fraction == 1 else (0, _share_of(fraction, memory))
    if not gpus and share is None:
        _check_no_gpu(request)
    models = request.gpu_model
    return Resources(
        gpus=gpus,
        share=share,
        nodes=request.nodes or 1,
        models=() if models is None else (models,) if isinstance(models, str) else tuple(models),
        gpu_memory_mib=0 if share else memory,
        cpus=request.cpu_count or 0,
        memory_mib=request.memory_mb or 0,
        labels=tuple(sorted(request.labels.items())) if request.labels else (),
        link=request.link or Link.ANY,
        speeds=tuple(sorted(request.gpu_speeds.items())) if request.gpu_speeds else (),
        booking=0 if request.booking is None else parse_booking_id(request.booking),
    )


def _gpus_of(request: TaskRequest) -> int:
    if request.gpu_count is not None:
        return request.gpu_count
    if request.gpu_fraction is not None:
        return 0
    only_cpus = request.cpu_count and request.gpu_model is None and not (request.gpu_memory_mb or request.gpu_speeds)
    return 0 if only_cpus else 1


def _share_of(fraction: float, memory_mib: int) -> Share:
    milli = round(fraction * MILLI)
    if not milli and (fraction or not memory_mib):
        message = (
            f"gpu_fraction is {fraction:g}; the smallest share is 0.001, or 0 with gpu_memory_mb to limit memory only."
        )
        raise WrongRequest("OutOfRange", message, "gpu_fraction")
    return Share(milli, memory_mib)


def _check_no_gpu(request: TaskRequest) -> None:
    for name in ("gpu_model", "gpu_memory_mb", "gpu_speeds"):
        if getattr(request, name):
            raise WrongRequest("Contradiction", f"{name} is given, but gpu_count is 0: request at least one GPU.", name)
    if not request.cpu_count:
        message = "The task requests no GPU and no CPU; specify gpu_count or cpu_count."
        raise WrongRequest("NothingAsked", message, "gpu_count")


def command_of(command: str | list[str] | None) -> tuple[str, ...] | str | None:
    """Return the command in the form of TaskSpec."""
    if command is None:
        return None
    if not (command.strip() if isinstance(command, str) else command[0]):
        message = (
            "command is empty; give a shell command line or a list that begins with a program, or omit it for a lease."
        )
        raise WrongRequest("EmptyCommand", message, "command")
    return command if isinstance(command, str) else tuple(command)


def _check_lease(request: TaskRequest) -> None:
    """Refuse fields of a process in a request without a command: a lease has no process, so the command is missing."""
    process_fields = (
        "env",
        "secrets",
        "setup",
        "work_dir",
        "retries",
        "grace",
        "snapshot",
        "files",
        "store_result",
        "submit_process",
        "console",
    )
    for name in process_fields:
        if getattr(request, name):
            raise WrongRequest("MissingField", f"{name} is given, but the task has no command.", "command")


def _env_of(request: TaskRequest) -> tuple[tuple[str, str], ...]:
    env, secrets = request.env or {}, request.secrets or {}
    if not env and not secrets:
        _check_size(request, env, secrets)
        return ()
    for where, names in (("env", env), ("secrets", secrets)):
        check_names(where, names)
    if twice := env.keys() & secrets.keys():
        name = min(twice)
        raise WrongRequest("Contradiction", f"{name} is in env and in secrets; remove one of them.", f"secrets.{name}")
    _check_size(request, env, secrets)
    return _one_of_equals(tuple(sorted(env.items())))


@lru_cache(64)
def _one_of_equals(variables: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return the same object for equal environments: those of the tasks of a sweep or of a user take memory once."""
    return variables


@lru_cache(64)
def _one_group(group: str) -> str:
    """Return the same object for equal groups, which many tasks have."""
    return group


def check_names(where: str, names: Mapping[str, str]) -> None:
    """Refuse variables that only gpuyard sets."""
    for name in names:
        if name in RESERVED_VARIABLES or (name.startswith("GPUYARD_") and not name.startswith(PARAMETER_PREFIX)):
            message = f"{name} is set by gpuyard for every task; remove it from {where}."
            if name == "GPUYARD_TOKEN":
                message = (
                    "A task gets no GPUYARD_TOKEN, so that no task acts as you by accident; pass the token as a secret with "
                    "another name, such as MY_TOKEN, and give it to the client in the task (token=, --token)."
                )
            raise WrongRequest("ReservedName", message, f"{where}.{name}")


def _check_size(request: TaskRequest, env: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    """Check the size as Linux counts it: each string with its terminator, each variable with its equals sign."""
    command: Sequence[str] | str | None = request.command
    if request.setup and command is not None:
        command = with_setup(request.setup, command)  # both, as one argument of a shell
    if isinstance(command, str):
        size = len(command.encode()) + 1
    else:
        size = sum(len(part.encode()) + 1 for part in command or ())
    for variables in (env, secrets):
        for name, value in variables.items():
            size += len(name.encode()) + len(value.encode()) + 2
    if size > MOST_BYTES:
        message = (
            f"command, setup, env and secrets take {size:,} bytes together; the maximum is {MOST_BYTES:,}. "
            "Put long content in a file."
        )
        raise WrongRequest("TooLarge", message, "command")


def check_counts(requests: Sequence[TaskRequest]) -> None:
    """Refuse a request that would create too much, before anything is created. A batch is checked as a whole."""
    tasks = named = edges = 0
    for place, request in enumerate(requests):
        count = 1 if request.array is None else request.array.count
        tasks += count
        if tasks > MOST_TASKS:
            message = (
                f"The arrays of this batch have more than {MOST_TASKS:,} tasks together, the maximum "
                "of one request; send several requests."
            )
            raise WrongRequest("TooManyTasks", message, f"tasks[{place}].array.count")
        if request.depends_on is None and request.after_any is None:
            continue
        for name, refs in (("depends_on", request.depends_on), ("after_any", request.after_any)):
            if not refs:
                continue
            named += len(refs)
            if count == 1:
                edges += len(refs)
            else:
                single, ranges = _task_ids(refs)
                edges += count * (len(single) + len(ranges) + len(batch_positions(refs)))
            if named > MOST_EDGES or edges > MOST_EDGES:
                message = (
                    f"The tasks of this request have more than {MOST_EDGES:,} dependencies together, "
                    "the maximum of one request; an array or a range of consecutive tasks counts as "
                    "one. Send several requests, or make one task depend on many and the others "
                    "depend on that one."
                )
                raise WrongRequest(
                    "TooManyDependencies", message, name if len(requests) == 1 else f"tasks[{place}].{name}"
                )


def run_limits_of(requests: Sequence[TaskRequest], limits: Sequence[BatchLimit] = ()) -> list[BatchLimit]:
    """Return the limits on running tasks of a batch and of its arrays. A request can have only one."""
    of_arrays = {
        place: BatchLimit(place, 1, request.array.max_running)
        for place, request in enumerate(requests)
        if request.array is not None and request.array.max_running is not None
    }
    limited: set[int] = set(of_arrays)
    for number, limit in enumerate(limits):
        within = range(limit.first, limit.first + limit.count)
        if within[-1] >= len(requests):
            message = (
                f"The limit is for tasks[{within[0]}] to tasks[{within[-1]}], but the batch has {len(requests)} tasks."
            )
            raise WrongRequest("OutOfRange", message, f"limits[{number}]")
        if not limited.isdisjoint(within):
            message = f"tasks[{min(limited.intersection(within))}] has another limit on running tasks already."
            raise WrongRequest("Contradiction", message, f"limits[{number}]")
        limited.update(within)
    return [*of_arrays.values(), *limits]


def _task_ids(refs: list[str | int] | None) -> tuple[tuple[TaskId, ...], tuple[TaskRange, ...]]:
    """Return the dependencies on tasks that were accepted earlier: single ones and ranges."""
    if not refs:
        return (), ()
    known = (ref for ref in refs if not _is_place(ref))
    return ranges_in((TaskId(ref) if isinstance(ref, int) else parse_task_id(ref) for ref in known), LEAST_RANGE)


def batch_positions(refs: list[str | int] | None) -> tuple[int, ...]:
    """Return the dependencies on tasks of the same batch, by their positions."""
    return tuple(dict.fromkeys(int(str(ref)[len(PLACE) : -1]) for ref in refs or () if _is_place(ref)))


def _is_place(ref: str | int) -> bool:
    return isinstance(ref, str) and ref.startswith(PLACE)


def parse_task_id(text: str) -> TaskId:
    """Parse `task-7` or `7`; text that is not a task ID is treated like an unknown task."""
    digits = text.removeprefix("task-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 19 and 1 <= int(digits) <= LARGEST_ID:
        return TaskId(int(digits))
    shown = text if len(text) <= 40 and text.isprintable() else f"{text[:40]!r}…"
    raise WrongRequest(
        "UnknownTask", f'Task {shown} does not exist; ids have the form "task-7".', "task_id", status=404
    )


def format_task_id(task: TaskId) -> str:
    """`task-7`."""
    return f"task-{task}"
