"""Ended tasks with declared work, for tests."""

import time
from pathlib import Path
from random import Random

from gpuyard.core.domain.actual import Actual
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.task import TaskSpec
from gpuyard.core.domain.values import NodeId, TaskId, TaskStatus
from gpuyard.core.domain.workload import WorkloadSpec
from gpuyard.learn.performance.model import SHIPPED, PerformanceModel, load
from gpuyard.learn.performance.query import CUDA_CONTEXT_MIB, predict_on_gpus, profile_of
from gpuyard.live.control_plane.stores.archive import Archive
from gpuyard.live.control_plane.stores.archiver import archive_row
from gpuyard.live.control_plane.views import TaskView
from tests.unit.live.control_plane.clusters import spec

MODELS = ("resnet50", "resnet18", "vgg16", "densenet121", "mobilenet_v2", "efficientnet_b0")
GPU = "NVIDIA H200"


def over(number: int, asked: TaskSpec, seconds: float, at: float, peak_mib: int | None = None) -> TaskView:
    """A task that ended well, at an instant."""
    return TaskView(
        TaskId(number),
        asked,
        at - seconds,
        status=TaskStatus.SUCCESS,
        cause=Cause(CauseKind.SUCCEEDED),
        finished_at=at,
        run_seconds=seconds,
        ran_on=GPU,
        actual=Actual(peak_mib, 90.0),
        placement=Placement((Slice(NodeId("n"), (0,)),)),
    )


def works(count: int, seed: int = 1) -> list[WorkloadSpec]:
    luck = Random(seed)
    return [
        WorkloadSpec(
            model=luck.choice(MODELS), batch=luck.choice((16, 32, 64, 128, 256)), precision="amp", steps=100_000
        )
        for _ in range(count)
    ]


def ended(count: int, slower: float, model: PerformanceModel | None = None, seed: int = 1) -> list[TaskView]:
    """Tasks of the last hours that took so many times as long as the model that ships says, within a few percent."""
    model, luck, now = model or load(SHIPPED), Random(seed), time.time()
    views = []
    for number, work in enumerate(works(count, seed), start=1):
        (said,) = predict_on_gpus(model, work, profile_of(work), [GPU], model.specs)
        seconds = said.seconds * slower * luck.uniform(0.97, 1.03)
        peak = None if said.memory_mib is None else int(said.memory_mib * 1.1 + CUDA_CONTEXT_MIB)
        views.append(over(number, spec(work=work), max(seconds, 60.0), now - 60.0 * (count - number), peak))
    return views


def archive_of(folder: Path, views: list[TaskView]) -> Archive:
    """An archive that holds them."""
    archive = Archive.open(folder / "archive.sqlite")
    archive.add([archive_row(view) for view in views], 1)
    return archive
