"""Tasks on /api/v1: what a client may ask for, and the TaskSpec it means.

`TaskRequest` is decoded in one msgspec call that also checks every bound a single field has; `specs_of` checks what
only several fields together can get wrong. Both answer with one sentence (`WrongRequest`).
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, MsgspecError, Raw, Struct, field, json
from msgspec.structs import asdict, replace

from gpuyard.core.domain.precision import Precision
from gpuyard.core.domain.task import Estimate, Resources, Share, TaskRange, TaskSpec, ranges_in
from gpuyard.core.domain.validation import check_spec
from gpuyard.core.domain.values import MILLI, Link, OnLost, Preemption, TaskClass, TaskId, TenantId
from gpuyard.core.domain.workload import WorkloadSpec
from gpuyard.input.strict import Strict, WrongRequest
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
    Retries,
    Speed,
    TenantName,
    Title,
)

HIGH = (TaskClass.ONLINE, 80)
LOW = (TaskClass.BATCH, 20)
MEDIUM_PRIORITY = 50
MOST_BYTES = 128 * 1024
"""Of command, environment and secrets together: Linux takes no single argument longer than this, and a shell line is one."""
MOST_IN_A_BATCH = 100_000
MOST_TASKS = 100_000
"""That one request may create, arrays included."""
MOST_EDGES = 100_000
"""Dependencies of all tasks of a request together; a range of consecutive tasks counts as one."""
LEAST_RANGE = 16
"""So many consecutive dependencies are kept as one range."""
PLACE = "tasks["
"""How a task of the same batch begins: `tasks[2]`."""
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
"""Variables that say which GPUs and which place in a gang a task has. So do all that begin with GPUYARD_."""

TaskReference: TypeAlias = Annotated[
    Annotated[int, Meta(ge=1, le=LARGEST_ID)]
    | Annotated[str, Meta(pattern=r"^((task-)?[1-9][0-9]{0,18}|tasks\[(0|[1-9][0-9]{0,5})\])$(?!\n)")],
    Meta(description='a task\'s number or id, such as 7 or "task-7"; in a batch also "tasks[2]", the third of it'),
]
TaskReferences: TypeAlias = Annotated[list[TaskReference], Meta(max_length=10_000)]
Argument: TypeAlias = Annotated[str, Meta(max_length=MOST_BYTES)]
Environment: TypeAlias = Annotated[dict[EnvName, Argument], Meta(max_length=4096)]


# --- asked --------------------------------------------------------------------------------------------------------------


class ArrayRequest(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Submit the task so many times; each copy finds its number, from 0, in GPUYARD_ARRAY_INDEX."""

    count: Annotated[int, Meta(ge=1, le=10_000)]


class WorkRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a task computes: steps of a machine-learning model."""

    model: Annotated[str, Meta(min_length=1, max_length=200)]
    """As `gpuyard predict` knows it, such as resnet50; or any other, with its totals."""
    mode: Literal["train", "infer"] = "train"
    batch: Annotated[int, Meta(ge=1, le=10_000_000)] = 32
    """Samples in a step, on each GPU."""
    precision: Precision = "fp32"
    compiled: bool = False
    size: Annotated[int, Meta(ge=1, le=10_000_000)] = 224
    """Of the input: pixels a side, or tokens."""
    family: Annotated[str, Meta(max_length=200)] = ""
    steps: Annotated[int, Meta(ge=1, le=1_000_000_000_000)] = 1
    """How many; 1: memory and speeds are foreseen, and no run time."""
    flops: Annotated[float, Meta(gt=0, le=1e21)] | None = None
    """Of one sample in inference, for a model nobody has counted; so are the next two."""
    activations: Annotated[float, Meta(gt=0, le=1e18)] | None = None
    parameters: Annotated[float, Meta(gt=0, le=1e18)] | None = None
    torch: Annotated[float, Meta(ge=1, le=10_000)] = 211.0
    """Its version, in hundredths."""


class TaskRequest(Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """A task to be run. A field that is null counts as left out."""

    priority: Literal["high", "low"] | Priority | None = None
    """`high` is online work with priority 80, `low` is batch work with priority 20; a number keeps the tenant's class."""
    gpu_count: GpuCount | None = None
    """Whole GPUs, on each node. Left out: one, unless the task asks for a share or only for CPUs."""
    gpu_model: ModelName | Annotated[list[ModelName], Meta(min_length=1, max_length=64)] | None = None
    gpu_speeds: Annotated[dict[ModelName, Speed], Meta(min_length=1, max_length=64)] | None = None
    """How fast it is on GPU models; only the ratios count. Left out: as fast on all."""
    command: Argument | Annotated[list[Argument], Meta(min_length=1, max_length=10_000)] | None = None
    """A line for the shell, or a list of arguments. Left out: a lease, GPUs without a process."""
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
    """Least memory of each whole GPU; of a share, the memory it may use. In MiB."""
    gpu_fraction: Annotated[float, Meta(ge=0, le=1)] | None = None
    """A share of one GPU; see `resources_of`."""
    nodes: NodeCount | None = None
    """More than one: a gang, which starts on all of them together or not at all."""
    labels: Labels | None = None
    """Labels the node must carry."""
    timeout: PositiveSeconds | None = None
    """Longest run of one attempt, in seconds. A lease ends by it too."""
    retries: Retries | None = None
    """Further attempts after its own failures. A lost node does not count."""
    depends_on: TaskReferences | None = None
    """Starts after all of these succeeded; cancelled if one does not."""
    after_any: TaskReferences | None = None
    """Starts after all of these ended, however they did."""
    array: ArrayRequest | None = None
    work_dir: AbsolutePath | None = None
    secrets: Environment | None = None
    """Environment variables whose values are told to the nodes that run it and to nobody else."""
    preemption: Preemption | None = None
    on_lost: OnLost | None = None
    estimated_seconds: PositiveSeconds | None = None
    model: Title | None = None
    """Which machine-learning model it trains or serves, in your own words."""
    work: WorkRequest | None = None
    """What it computes: run time, memory and speeds are foreseen from that."""
    link: Link | None = None
    require_fit: bool | None = None
    """Refuse it at once if no node of today could ever hold it, instead of waiting for one that joins."""


class BatchRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Many tasks, accepted together or not at all."""

    tasks: Annotated[list[TaskRequest], Meta(min_length=1, max_length=MOST_IN_A_BATCH)]


class _RawBatch(Struct, frozen=True, forbid_unknown_fields=True):
    """A batch whose tasks are not read yet."""

    tasks: Annotated[list[Raw], Meta(min_length=1, max_length=MOST_IN_A_BATCH)]


_decode_raw_batch = json.Decoder(_RawBatch).decode
_decode_task = json.Decoder(TaskRequest).decode
_TASK = Strict(TaskRequest)
_BATCH = Strict(BatchRequest)


def read_task(body: bytes) -> TaskRequest:
    """A task request from JSON."""
    return _TASK.json(body)


def read_batch(body: bytes) -> BatchRequest:
    """A batch from JSON; what is wrong in it is named `tasks[i].field`."""
    return _BATCH.json(body)


def read_large_batch(body: bytes) -> list[TaskRequest]:
    """The same, task by task: in a thread of its own it lets others run meanwhile, which one call for all would not."""
    if b"\\u0000" not in body:
        try:
            return [_decode_task(raw) for raw in _decode_raw_batch(body).tasks]
        except (MsgspecError, ValueError, RecursionError):
            pass  # what is wrong is said below
    return read_batch(body).tasks


# --- meant --------------------------------------------------------------------------------------------------------------


def specs_of(
    request: TaskRequest,
    *,
    default_tenant: str,
    default_class: TaskClass = TaskClass.BATCH,
    default_priority: int = MEDIUM_PRIORITY,
    default_timeout: float | None = None,
    max_gpu_memory_mib: int | None = None,
    user: str = "",
) -> list[TaskSpec]:
    """The tasks a request means: one, or as many as its array counts. Of secrets only the names go in.

    The defaults are those of the tenant that will have the task; `max_gpu_memory_mib` is the most it may ask for on
    one GPU.
    """
    task_class, priority = class_and_priority(request, default_class, default_priority)
    if max_gpu_memory_mib and (request.gpu_memory_mb or 0) > max_gpu_memory_mib:
        message = (
            f"gpu_memory_mb is {request.gpu_memory_mb}, and this tenant may ask for {max_gpu_memory_mib} at most on "
            "one GPU."
        )
        raise WrongRequest("QuotaForbids", message, "gpu_memory_mb", status=409)
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
    )
    if request.command is None:
        _check_lease(request)
    if wrong := check_spec(spec):
        raise WrongRequest(wrong.code, wrong.sentence())
    if request.array is None:
        return [spec]
    return [replace(spec, array_index=index) for index in range(request.array.count)]


def work_of(request: TaskRequest) -> WorkloadSpec | None:
    """What a request says that it computes; only whole GPUs can be foreseen."""
    if request.work is None:
        return None
    if request.gpu_fraction not in {None, 1} or request.gpu_count == 0 or request.command is None:
        message = "work says what a command computes on whole GPUs; give a command and at least one whole GPU."
        raise WrongRequest("Contradiction", message, "work")
    return WorkloadSpec(**asdict(request.work))


def class_and_priority(
    request: TaskRequest, default_class: TaskClass, default_priority: int = MEDIUM_PRIORITY
) -> tuple[TaskClass, int]:
    """Which class and which place in it. `class` may say again what `high` and `low` mean, but not the opposite."""
    said = request.priority
    if isinstance(said, str):
        task_class, priority = HIGH if said == "high" else LOW
        if request.task_class is not None and request.task_class is not task_class:
            message = (
                f'priority "{said}" means {task_class} work and class says {request.task_class}; '
                "give the priority as a number from 0 to 100, or leave class out."
            )
            raise WrongRequest("Contradiction", message, "class")
        return task_class, priority
    return request.task_class or default_class, default_priority if said is None else said


def format_priority(task_class: TaskClass, priority: int, in_words: bool) -> str | int:
    """As it was sent: a word while the task still has what the word means, otherwise a number."""
    if in_words and (task_class, priority) == HIGH:
        return "high"
    return "low" if in_words and (task_class, priority) == LOW else priority


def resources_of(request: TaskRequest) -> Resources:
    """What a request asks for on each node.

    - `gpu_count` n: n whole GPUs, and `gpu_memory_mb` is the least memory each of them must have.
    - `gpu_fraction` f below 1: a share of one GPU. Its compute is f; its memory is `gpu_memory_mb`, or f of the card's
      memory if that is left out. `gpu_fraction` 0 with `gpu_memory_mb` limits memory only. `gpu_count` may be left out,
      0 or 1 beside it.
    - `gpu_fraction` 1 is one whole GPU.
    - Neither: one whole GPU, or none if `cpu_count` is given and nothing speaks of a GPU.
    """
    fraction, memory = request.gpu_fraction, request.gpu_memory_mb or 0
    gpus, share = _gpus_of(request), None
    if fraction is not None:
        if gpus > 1:
            message = (
                f"gpu_fraction asks for a share of one GPU and gpu_count for {gpus} whole ones; use one or the other."
            )
            raise WrongRequest("Contradiction", message, "gpu_fraction")
        if fraction < 1 and (request.nodes or 1) > 1:
            message = f"gpu_fraction asks for a share of one GPU, which lies on one node, not on {request.nodes}."
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
            raise WrongRequest("Contradiction", f"{name} is given, but gpu_count is 0: ask for at least one GPU.", name)
    if not request.cpu_count:
        message = "The task asks for no GPU and no CPU; give gpu_count or cpu_count."
        raise WrongRequest("NothingAsked", message, "gpu_count")


def command_of(command: str | list[str] | None) -> tuple[str, ...] | str | None:
    """As the domain holds it."""
    if command is None:
        return None
    if not (command.strip() if isinstance(command, str) else command[0]):
        message = (
            "command is empty; give a shell line or a list that begins with a program, or leave it out for a lease."
        )
        raise WrongRequest("EmptyCommand", message, "command")
    return command if isinstance(command, str) else tuple(command)


def _check_lease(request: TaskRequest) -> None:
    """A lease has no process: what speaks of one was meant for a command that is missing."""
    for name in ("env", "secrets", "work_dir", "retries"):
        if getattr(request, name):
            raise WrongRequest("MissingField", f"{name} is given, but there is no command it could be for.", "command")


def _env_of(request: TaskRequest) -> tuple[tuple[str, str], ...]:
    env, secrets = request.env or {}, request.secrets or {}
    if not env and not secrets:
        _check_size(request.command, env, secrets)
        return ()
    for where, names in (("env", env), ("secrets", secrets)):
        check_names(where, names)
    if twice := env.keys() & secrets.keys():
        name = min(twice)
        raise WrongRequest(
            "Contradiction", f"{name} stands in env and in secrets; keep one of them.", f"secrets.{name}"
        )
    _check_size(request.command, env, secrets)
    return tuple(sorted(env.items()))


def check_names(where: str, names: Mapping[str, str]) -> None:
    """Refuse variables that are ours to set."""
    for name in names:
        if name in RESERVED_VARIABLES or name.startswith("GPUYARD_"):
            message = f"{name} is set by gpuyard for every task and can not be given in {where}; leave it out."
            raise WrongRequest("ReservedName", message, f"{where}.{name}")


def _check_size(command: str | list[str] | None, env: Mapping[str, str], secrets: Mapping[str, str]) -> None:
    """Bytes as Linux counts them: every string with its end, every variable with its equals sign."""
    if isinstance(command, str):
        size = len(command.encode()) + 1
    else:
        size = sum(len(part.encode()) + 1 for part in command or ())
    for variables in (env, secrets):
        for name, value in variables.items():
            size += len(name.encode()) + len(value.encode()) + 2
    if size > MOST_BYTES:
        message = (
            f"command, env and secrets take {size:,} bytes together, and {MOST_BYTES:,} is the most a process can be "
            "given; put what is long into a file."
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
                f"The arrays of this batch have more than {MOST_TASKS:,} tasks together, the most that one request may "
                "create; send several requests."
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
                    f"The tasks of this request have more than {MOST_EDGES:,} dependencies together, the most that one "
                    "request may have; an array or a row of consecutive tasks counts as one. Send several requests, or "
                    "let one task wait for many and the others for that one."
                )
                raise WrongRequest(
                    "TooManyDependencies", message, name if len(requests) == 1 else f"tasks[{place}].{name}"
                )


def _task_ids(refs: list[str | int] | None) -> tuple[tuple[TaskId, ...], tuple[TaskRange, ...]]:
    """Tasks that were accepted before, single ones and ranges."""
    if not refs:
        return (), ()
    known = (ref for ref in refs if not _is_place(ref))
    return ranges_in((TaskId(ref) if isinstance(ref, int) else parse_task_id(ref) for ref in known), LEAST_RANGE)


def batch_positions(refs: list[str | int] | None) -> tuple[int, ...]:
    """Those that stand in the same batch, by their places in it."""
    return tuple(dict.fromkeys(int(str(ref)[len(PLACE) : -1]) for ref in refs or () if _is_place(ref)))


def _is_place(ref: str | int) -> bool:
    return isinstance(ref, str) and ref.startswith(PLACE)


def parse_task_id(text: str) -> TaskId:
    """The number in `task-7` or `7`. What can not be a task's id is no task, as an unknown number is none."""
    digits = text.removeprefix("task-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 19 and 1 <= int(digits) <= LARGEST_ID:
        return TaskId(int(digits))
    shown = text if len(text) <= 40 and text.isprintable() else f"{text[:40]!r}…"
    raise WrongRequest("UnknownTask", f'There is no task {shown}; ids look like "task-7".', "task_id", status=404)


def format_task_id(task: TaskId) -> str:
    """`task-7`."""
    return f"task-{task}"
