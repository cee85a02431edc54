"""GPUs, and how they are split between the two classes of work."""

from collections import Counter
from collections.abc import Iterator

from gpuyard.core.domain.commands import SetSplit
from gpuyard.core.domain.tenant import Split
from gpuyard.core.domain.values import MILLI, TenantId
from gpuyard.core.engine.quota import ClassUsage
from gpuyard.core.engine.state import State
from gpuyard.live.control_plane.access.principal import visible_tenant
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import LargeResponse, Response, encode, encoded, json_response, separated
from gpuyard.live.control_plane.scheduler import Scheduler
from gpuyard.live.control_plane.views import NodeView
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.answers import ClassQuotaFigures, GpuAnswer, QuotaAnswer, read_quota
from gpuyard.live.wire.limits import instant_of
from gpuyard.live.wire.tasks import format_task_id


async def get_gpus(context: AppContext, request: Request) -> Response:
    """List all GPUs."""
    scheduler, views, count = context.scheduler, context.scheduler.views.nodes, Counter[str]()
    seen = visible_tenant(request.principal)

    def each() -> Iterator[GpuAnswer]:
        for name in sorted(views):
            if (view := views.get(name)) is not None:
                for gpu in gpus_of(scheduler, view, seen):
                    count[gpu.status] += 1
                    yield gpu

    gpus = await encoded(each())
    totals = {status: count[status] for status in ("idle", "busy", "external", "offline")}
    head = encode({"total": len(gpus), **totals})
    return LargeResponse([head[:-1], b',"gpus":[', *separated(gpus), b"]}"])


def gpus_of(scheduler: Scheduler, node: NodeView, seen: TenantId | None) -> list[GpuAnswer]:
    """Return the GPUs of one node with the values of its last heartbeat, and users of one tenant (None: of all)."""
    told = scheduler.agents.telemetry.get(node.spec.id)
    uses = {use.index: use for use in told.gpus} if told else {}
    at = instant_of(max(node.changed_at, told.at if told else 0.0))
    return [
        _gpu(node, index, uses.get(index), at, _user(scheduler, node, index, seen))
        for index in range(len(node.spec.gpus))
    ]


def _user(scheduler: Scheduler, node: NodeView, index: int, seen: TenantId | None) -> str | None:
    for task in node.on_gpu[index]:
        view = scheduler.views.tasks.get(task)
        return None if view is None or seen not in {None, view.spec.tenant} else view.spec.user or None
    return None


def _gpu(node: NodeView, index: int, use: pb.GpuUse | None, at: str, user: str | None) -> GpuAnswer:
    gpu, name = node.spec.gpus[index], str(node.spec.id)
    tasks = [format_task_id(task) for task in node.on_gpu[index]]
    status = node.gpu_status(index)
    said = use is not None and not node.is_silent
    return GpuAnswer(
        id=f"{name}/{index}",
        node_id=name,
        device_index=index,
        model=gpu.model,
        memory=gpu.memory_mib,
        status=status,  # type: ignore[arg-type]
        current_task=tasks[0] if tasks else None,
        tasks=tasks,
        user=user,
        updated_at=at,
        uuid=gpu.uuid or None,
        virtual=gpu.virtual,
        why=(use.why or None) if use and status in {"external", "offline"} else None,
        utilization=use.utilization_percent if use and said and use.HasField("utilization_percent") else None,
        memory_used=use.memory_used_mib if use and said and use.HasField("memory_used_mib") else None,
        temperature=use.temperature_c if use and said and use.HasField("temperature_c") else None,
        power_usage=use.power_watts if use and said and use.HasField("power_watts") else None,
    )


def gpus_in(milli: int) -> float:
    """Convert thousandths to GPUs; whole numbers are written without a decimal point."""
    return milli // MILLI if milli % MILLI == 0 else milli / MILLI


async def get_quota(context: AppContext, request: Request) -> Response:  # noqa: ARG001
    """Return the current quota."""
    return json_response(await context.scheduler.queries.look(quota_of))


async def put_quota(context: AppContext, request: Request) -> Response:
    """Change the split from now on. Tasks that run above a lowered share continue until they end."""
    asked = read_quota(await request.body())
    online = asked.online_percent
    batch = round(1 - online, 9) if asked.batch_percent is None else asked.batch_percent

    def order(state: State) -> SetSplit:
        return SetSplit(Split(online, batch, asked.mode or state.split.mode))

    await context.tell(request, order)
    return await get_quota(context, request)


def quota_of(state: State, now: float) -> QuotaAnswer:  # noqa: ARG001
    """Return the split and how much of it is used."""
    online, batch = class_quota(state)
    return QuotaAnswer(
        total_gpus=state.index.gpus_up,
        online=online,
        batch=batch,
        online_percent=state.split.online_percent,
        batch_percent=state.split.batch_percent,
        mode=state.split.mode,
    )


def class_quota(state: State) -> list[ClassQuotaFigures]:
    """Return the figures of the classes, online first."""
    return [_part(usage, state.index.gpus_up) for usage in state.classes]


def _part(usage: ClassUsage, total: int) -> ClassQuotaFigures:
    """Return the figures of one class. Without a split, the share of each class is all GPUs."""
    quota, used = min(usage.guarantee // MILLI, total), gpus_in(usage.used)
    return ClassQuotaFigures(quota, used, max(0, quota - used))
