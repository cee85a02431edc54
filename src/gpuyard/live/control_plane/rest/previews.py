"""Preview a submission: what the engine would do with a task, without submitting it."""

from typing import Literal

from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import TaskSpec
from gpuyard.core.domain.values import MILLI
from gpuyard.core.engine.preview import Preview
from gpuyard.core.engine.quota import UNLIMITED
from gpuyard.core.engine.state import State
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.errors import CommandRefused
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.control_plane.submissions import Submission
from gpuyard.live.wire.limits import instant_of
from gpuyard.live.wire.preview_answers import (
    PredictedUse,
    PreviewAnswer,
    QuotaEffect,
    QuotaFigures,
    SecondsRange,
    StartRange,
)
from gpuyard.live.wire.task_answers import gpu_ids
from gpuyard.live.wire.tasks import format_task_id


async def preview_of(context: AppContext, submission: Submission) -> Response:
    """Answer what would happen to the first task of a submission; a task that would be refused is refused."""
    spec = await context.scheduler.submissions.predicted(submission)
    if isinstance(spec, Refusal):
        raise CommandRefused(spec)
    found = await context.scheduler.queries.preview(spec)
    if isinstance(found, Refusal):
        raise CommandRefused(found)
    now = context.scheduler.loop.clock()
    reason, code = _reason(found)
    placement = found.placement
    starts = (now, now, now) if placement else (found.starts_low, found.starts_at, found.starts_high)
    low, likely, high = (None if at is None else instant_of(max(now, at)) for at in starts)
    return json_response(
        PreviewAnswer(
            would_start=_when(found),
            node_id=placement.nodes[0] if placement else None,
            gpus=gpu_ids(placement),
            expected_start=StartRange(low, likely, high),
            reason=reason,
            reason_code=code,
            ahead=found.ahead,
            preempts=[format_task_id(task) for task in found.preempts],
            predicted=_predicted(context, spec, found),
            quota=await context.scheduler.queries.look(lambda state, _: _quota(state, spec, found)),
        )
    )


def _when(found: Preview) -> Literal["now", "later", "never"]:
    if found.never is not None or found.fails_with is not None:
        return "never"
    return "now" if found.placement or found.preempts else "later"


def _reason(found: Preview) -> tuple[str | None, str | None]:
    if found.fails_with is not None:
        return f"{format_task_id(found.fails_with)}, on whose success it depends, did not succeed.", "dependency"
    if found.waits_for:
        tasks = "1 task that has" if found.waits_for == 1 else f"{found.waits_for} tasks that have"
        return f"It would wait for {tasks} to end first.", "WaitingForTasks"
    if found.preempts:
        several = len(found.preempts) > 1
        return f"{len(found.preempts)} running task{'s' if several else ''} would be preempted for it.", "preempted"
    refusal = found.never or found.reason
    return (None, None) if refusal is None else (refusal.sentence(), refusal.code)


def _predicted(context: AppContext, spec: TaskSpec, found: Preview) -> PredictedUse:
    estimate = spec.estimate
    seconds = SecondsRange(estimate.low_seconds, estimate.seconds, estimate.high_seconds) if estimate else None
    nodes = context.scheduler.views.nodes
    models = {
        node.spec.gpus[gpu].model
        for part in (found.placement.slices if found.placement else ())
        if (node := nodes.get(part.node)) is not None
        for gpu in part.gpus
    }
    memory = [one.memory_mib for one in spec.forecasts if one.memory_mib and (not models or one.gpu_model in models)]
    runs = (estimate.runs or None) if estimate else None
    return PredictedUse(seconds, round(max(memory)) if memory else None, runs)


def _quota(state: State, spec: TaskSpec, found: Preview) -> QuotaEffect:
    of_class, of_tenant = state.classes[found.class_index], state.tenants.get(spec.tenant)
    default = state.default_tenant.max_gpus
    tenant_limit = default if of_tenant is None else _gpus(of_tenant.limit)
    before = QuotaFigures(
        _gpus(of_class.limit), of_class.used / MILLI, tenant_limit, of_tenant.used / MILLI if of_tenant else 0.0
    )
    need = found.charge_milli / MILLI
    after = QuotaFigures(before.class_limit, before.class_used + need, before.tenant_limit, before.tenant_used + need)
    return QuotaEffect(before, after)


def _gpus(milli: int) -> float | None:
    return None if milli >= UNLIMITED else milli / MILLI
