"""Submit one task, a batch, a lease or a legacy task. This is the hot path of the server."""

import asyncio
from collections.abc import Sequence
from functools import lru_cache

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from gpuyard.core.domain.gpu_names import matching_gpu_names
from gpuyard.core.domain.node import MAPPED_ONLY
from gpuyard.core.domain.refusals import QuotaForbids, Refusal, UnknownDependency, WorkDoesNotFit
from gpuyard.core.domain.task import Resources, TaskSpec
from gpuyard.core.domain.values import TaskId, TenantId
from gpuyard.core.engine.state import State
from gpuyard.core.placement.shape import Shape
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.principal import ROLE_SCOPES, Action, Scope, is_owner, issuer_of
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.errors import CommandRefused
from gpuyard.live.control_plane.rest.lookup import tenant_of_task
from gpuyard.live.control_plane.rest.previews import preview_of
from gpuyard.live.control_plane.rest.query import switch
from gpuyard.live.control_plane.rest.request import MAX_BATCH_BYTES, Request
from gpuyard.live.control_plane.rest.responses import LargeResponse, Response, encode, encoded, separated
from gpuyard.live.control_plane.stores.blobs import NOT_SHARED, blob_specs
from gpuyard.live.control_plane.submissions import Submission
from gpuyard.live.control_plane.time_slices import TimeSlicer
from gpuyard.live.control_plane.views import TaskView
from gpuyard.live.wire.task_answers import TaskAnswer
from gpuyard.live.wire.tasks import (
    BatchLimit,
    TaskRequest,
    batch_positions,
    check_counts,
    read_batch,
    read_large_batch,
    read_task,
    run_limits_of,
    specs_of,
)

_Names = tuple[str, ...]
_Speeds = tuple[tuple[str, float], ...]
LONGEST_KEY = 255
LARGE_BODY = 32 * 1024
"""A body of this size or more is decoded in a thread."""


class SubmitAnswer(TaskAnswer, frozen=True, kw_only=True):
    """The task that was accepted. Of an array it is the first one, and `tasks` has all of them."""

    tasks: list[TaskAnswer] | UnsetType = UNSET


DRY_RUN = (
    switch("dry_run", "Submit nothing; return where and when the task, of an array the first one, would start."),
)


async def post_task(context: AppContext, request: Request) -> Response:
    """Submit one task, or an array of tasks."""
    body = await request.body()
    task = _read_one(body) if len(body) < LARGE_BODY else await asyncio.to_thread(_read_one, body)
    if request.query.get("dry_run"):
        submission = submission_of(context, request, task)
        await check_dependencies(context, request, [submission], batch=False)
        await check_blobs(context, [submission])
        return await preview_of(context, submission)
    answers = await accept(context, request, [submission_of(context, request, task)], body, run_limits_of([task]))
    if task.array is None:
        return Response(answers[0], 201)
    return LargeResponse([answers[0][:-1], b',"tasks":[', *separated(answers), b"]}"], 201)


async def post_batch(context: AppContext, request: Request) -> Response:
    """Submit many tasks, all or none."""
    body = await request.body(MAX_BATCH_BYTES)
    submissions = []
    read = _read_many(body) if len(body) < LARGE_BODY else await asyncio.to_thread(_read_many, body)
    tasks, limits = read
    turns = TimeSlicer()
    for place, task in enumerate(tasks):
        try:
            submissions.append(submission_of(context, request, task, of=len(tasks)))
        except WrongRequest as wrong:
            raise wrong.within("tasks", place) from None
        if turns.due():
            await turns.give()
    tenants = {submission.specs[0].tenant for submission in submissions}
    if len(tenants) > 1 and request.headers.get("idempotency-key"):
        message = "A batch with an Idempotency-Key must have tasks of one tenant only; send one batch for each tenant."
        raise WrongRequest("SeveralTenants", message, "tasks")
    answers = await accept(context, request, submissions, body, limits, batch=True)
    return LargeResponse([b'{"tasks":[', *separated(answers), b"]}"], 201)


def _read_one(body: bytes) -> TaskRequest:
    request = read_task(body)
    check_counts([request])
    return request


def _read_many(body: bytes) -> tuple[list[TaskRequest], list[BatchLimit]]:
    batch = read_batch(body) if len(body) < LARGE_BODY else read_large_batch(body)
    check_counts(batch.tasks)
    return batch.tasks, run_limits_of(batch.tasks, batch.limits)


def submission_of(context: AppContext, request: Request, task: TaskRequest, of: int = 0) -> Submission:
    """Convert a request of this caller to a submission. `of` is the size of its batch; 0: it is not in a batch."""
    tenant = context.tenant_of(request, Action.SUBMIT, task.tenant_id)
    entry = context.settings.tenant_entry(tenant)
    specs = specs_of(
        task,
        default_tenant=tenant,
        default_class=entry.task_class,
        default_priority=entry.priority,
        default_timeout=context.settings.task_timeout_seconds,
        default_grace=context.settings.grace_seconds,
        max_grace=float(context.settings.scheduler.max_grace),
        max_gpu_memory_mib=entry.max_memory_per_gpu,
        user=request.principal.username,
    )
    specs = _fitted(context, request, specs)
    for notice in specs[0].notify:
        if wrong := context.scheduler.notice_policy.wrong(notice.target):
            raise WrongRequest("WrongNotice", wrong, "notify")
    after_success, after_any = batch_positions(task.depends_on), batch_positions(task.after_any)
    for field, places in (("depends_on", after_success), ("after_any", after_any)):
        if places and max(places) >= of:
            alone = f"tasks[{places[0]}] is only valid in a batch."
            message = f"A dependency names tasks[{max(places)}], but the batch has {of} tasks." if of else alone
            raise WrongRequest("UnknownDependency", message, field)
    return Submission(specs, task.secrets or {}, after_success, after_any)


def _fitted(context: AppContext, request: Request, specs: list[TaskSpec]) -> list[TaskSpec]:
    """Complete the specs with cluster data: the GPU models that the names mean, and whether an account is needed."""
    ask = specs[0].resources
    resources = _with_known_models(context, ask) if ask.models or ask.speeds else ask
    if _needs_account(context, request, specs[0]):
        resources = replace(resources, account=(specs[0].tenant, request.principal.username))
    return specs if resources is ask else [replace(spec, resources=resources) for spec in specs]


def _with_known_models(context: AppContext, ask: Resources) -> Resources:
    """Replace lowercase and partial GPU names by the models of the cluster; unknown names stay as they are."""
    models, speeds = _known(ask.models, ask.speeds, context.scheduler.views.gpu_models)
    return ask if (models, speeds) == (ask.models, ask.speeds) else replace(ask, models=models, speeds=speeds)


@lru_cache(maxsize=1024)
def _known(models: _Names, speeds: _Speeds, known: frozenset[str]) -> tuple[_Names, _Speeds]:
    """Resolve model names. Cached, because the tasks of a batch ask for the same few models."""
    by_model = {one: speed for model, speed in speeds for one in matching_gpu_names(model, known) or (model,)}
    meant = dict.fromkeys(one for model in models for one in matching_gpu_names(model, known) or (model,))
    return tuple(meant), tuple(sorted(by_model.items()))


def _needs_account(context: AppContext, request: Request, spec: TaskSpec) -> bool:
    """Whether some nodes cannot run it because neither its tenant nor its user has a system account.

    A lease starts no process, and the scheduler's owner may use the agents' own account. If there is no node yet, such
    nodes may be the first to join.
    """
    if (
        spec.command is None
        or is_owner(issuer_of(request.principal))
        or context.scheduler.stores.system_users.account_of(spec.tenant, request.principal.username)
    ):
        return False
    nodes = context.scheduler.views.nodes
    return not nodes or any(MAPPED_ONLY in node.spec.labels for node in nodes.values())


async def accept(
    context: AppContext,
    request: Request,
    submissions: Sequence[Submission],
    body: bytes,
    limits: Sequence[BatchLimit] = (),
    *,
    batch: bool = False,
) -> list[bytes]:
    """Submit, and return the accepted tasks, each as JSON."""
    await check_dependencies(context, request, submissions, batch=batch)
    await check_blobs(context, submissions)
    views = await submit(context, request, submissions, body, limits, batch=batch)
    if len(views) == sum(len(submission.specs) for submission in submissions):
        if len(views) == 1:
            return [encode(views[0].answer(*await context.scheduler.queries.reason_of_new(views[0])))]
        return await encoded(view.answer() for view in views)
    return await _accepted_before(context, request, submissions[0].specs[0].tenant)


async def submit(
    context: AppContext,
    request: Request,
    submissions: Sequence[Submission],
    body: bytes,
    limits: Sequence[BatchLimit] = (),
    *,
    batch: bool = False,
) -> list[TaskView]:
    """Submit; a refusal names the task of the batch that caused it."""
    answer = await context.scheduler.submissions.submit(
        submissions,
        request.principal,
        key=idempotency_key(request),
        body=body,
        request_id=request.request_id,
        limits=limits,
    )
    if not isinstance(answer, Refusal):
        return answer
    place = await _place_of(context, answer, submissions) if batch else None
    raise CommandRefused(answer, None if place is None else f"tasks[{place}]")


def idempotency_key(request: Request) -> str:
    """Return the idempotency key of the request; empty if it has none."""
    keys = request.headers.getlist("idempotency-key")
    if not keys:
        return ""
    if len(keys) > 1:
        raise WrongRequest("BadKey", "Send one Idempotency-Key.", "Idempotency-Key")
    key = keys[0]
    if not 1 <= len(key) <= LONGEST_KEY or not key.isprintable():
        message = f"The Idempotency-Key must have 1 to {LONGEST_KEY} printable characters."
        raise WrongRequest("BadKey", message, "Idempotency-Key")
    return key


async def _accepted_before(context: AppContext, request: Request, tenant: TenantId) -> list[bytes]:
    """Return the tasks of a repeated request whose tasks have ended and are in the archive."""
    kept = await asyncio.to_thread(context.scheduler.stores.archive.lookup, tenant, idempotency_key(request))
    answers = [await context.scheduler.queries.answer(task) for task in kept.tasks] if kept else []
    if not answers or None in answers:
        message = "This Idempotency-Key was used for tasks that are no longer kept; use a new key for a new request."
        raise WrongRequest("KeyUsedBefore", message, "Idempotency-Key", status=409)
    return [answer[1] for answer in answers if answer is not None]


async def check_dependencies(
    context: AppContext, request: Request, submissions: Sequence[Submission], *, batch: bool
) -> None:
    """Refuse dependencies on other tenants' tasks if the caller sees only one tenant: they reveal how those end."""
    if ROLE_SCOPES[Action.SEE][request.principal.role] is Scope.ALL:
        return
    turns = TimeSlicer()
    for place, submission in enumerate(submissions):
        spec = submission.specs[0]
        for first, last, needs_success in spec.prerequisites():
            for task in range(first, last + 1):
                if await tenant_of_task(context.scheduler, TaskId(task)) != spec.tenant:
                    field = "depends_on" if needs_success else "after_any"
                    wrong = WrongRequest("UnknownDependency", f"The dependency task-{task} does not exist.", field)
                    raise wrong.within("tasks", place) if batch else wrong
                if turns.due():
                    await turns.give()


async def check_blobs(context: AppContext, submissions: Sequence[Submission]) -> None:
    """Refuse tasks that refer to blobs which are not stored. The tasks of an array refer to the same ones."""
    specs = blob_specs(submission.specs[0] for submission in submissions)
    if not specs and not any(submission.specs[0].store_result for submission in submissions):
        return
    store = context.scheduler.stores.blobs
    if store is None:
        raise WrongRequest("BlobsNotShared", NOT_SHARED, status=409)
    await context.scheduler.worker_pools.blobs.run(store.check, specs)


async def _place_of(context: AppContext, refusal: Refusal, submissions: Sequence[Submission]) -> int | None:
    """Return the position of the task that the engine refused: the first that the refusal fits; None if none does."""

    def fits(spec: TaskSpec, state: State) -> bool:
        ask = spec.resources
        if isinstance(refusal, QuotaForbids):
            return (spec.tenant, ask.all_gpus) == (refusal.tenant, refusal.needed)
        if isinstance(refusal, UnknownDependency):
            return spec.depends_on(refusal.dependency)
        if isinstance(refusal, WorkDoesNotFit):
            return spec.work is not None and (spec.work.model, spec.work.batch) == (refusal.model, refusal.batch)
        return spec.require_fit and Shape(ask).never(state.index) == refusal

    def find(state: State, now: float) -> int | None:  # noqa: ARG001
        return next((place for place, it in enumerate(submissions) if fits(it.specs[0], state)), None)

    return await context.scheduler.queries.look(find)
