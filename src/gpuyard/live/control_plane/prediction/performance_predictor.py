"""Predict run time, memory and utilization of a task on each GPU model of the cluster, from its declared workload.

The model is trained on profiles (`gpuyard train predictor`) and is loaded when the first task with a declared workload
comes. Predictions are written to the journal with the task, like every estimate: from then on they are part of an event, and
a replay needs no model. Without LightGBM nothing is predicted; such tasks are accepted as if they declared no workload.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.refusals import WorkDoesNotFit
from gpuyard.core.domain.task import Estimate, Resources, TaskSpec
from gpuyard.core.domain.workload import Forecast, WorkloadSpec
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.prediction.model_file import ModelFile

if TYPE_CHECKING:
    from gpuyard.learn.performance.model import PerformanceModel

NINE_OVER_FOUR = 1.645 / 1.2816
"""Ratio of the widths of a 90 % and an 80 % interval."""
STEP_MIB = 256
"""Requested memory is a multiple of this, so that similar tasks request the same amount."""
KEPT = 4096
"""Number of cached answers: tasks often come in large groups of the same kind."""

WorkloadQuery = tuple[WorkloadSpec, tuple[str, ...]]
GpuMemoryByModel = Mapping[str, int]
"""The GPU models of the cluster with the memory of the largest GPU of each, in MiB."""


class PerformancePredictor:
    """Queries the model, which is loaded when first needed. Its methods may be called from any thread."""

    def __init__(self, path: Path | None = None) -> None:
        self.models = ModelFile(path)
        self._before: tuple[PerformanceModel | None, dict[WorkloadQuery, tuple[Forecast, ...]]] = (None, {})
        """The model in use and its cached answers; a new model is queried again."""

    def predict_all(
        self, requests: Sequence[Sequence[TaskSpec]], gpu_memory: GpuMemoryByModel
    ) -> "list[Sequence[TaskSpec]] | WorkDoesNotFit":
        """Predict all tasks of some requests; those of one request differ only in their array index."""
        found: list[Sequence[TaskSpec]] = []
        for place, specs in enumerate(requests):
            try:
                told = self.predicted(specs[0], gpu_memory)
            except WrongInput as error:
                wrong = WrongRequest("WrongWork", f"{error}.", "work")
                raise wrong.within("tasks", place) if len(requests) > 1 else wrong from None
            if isinstance(told, WorkDoesNotFit):
                return told
            seen = {"resources": told.resources, "forecasts": told.forecasts}
            found.append(specs if told is specs[0] else [replace(spec, **seen) for spec in specs])
        return found

    def predicted(self, spec: TaskSpec, gpu_memory: GpuMemoryByModel) -> TaskSpec | WorkDoesNotFit:
        """Add predictions to a task. Values of the user take precedence; an invalid workload raises `WrongInput`."""
        if spec.work is None:
            return spec
        allowed = {
            model: mib
            for model, mib in gpu_memory.items()
            if not spec.resources.models or model in spec.resources.models
        }
        forecasts = self.tell(spec.work, allowed)
        if not forecasts:
            return spec
        needs = None if spec.resources.gpu_memory_mib else _needs_mib(forecasts)
        if needs is not None and all(mib < needs for mib in allowed.values()):
            likely = min(one.memory_mib for one in forecasts if one.memory_mib is not None)
            return WorkDoesNotFit(spec.work.model, spec.work.batch, round(likely), max(allowed.values()))
        fitting = [one for one in forecasts if needs is None or allowed[one.gpu_model] >= needs]
        resources = _placed_by(spec.resources, fitting, needs, speeds=len(forecasts) > 1)
        return replace(spec, resources=resources, forecasts=tuple(fitting))

    def tell(self, work: WorkloadSpec, gpu_memory: GpuMemoryByModel) -> tuple[Forecast, ...]:
        """Predict for each of these GPU models that the model knows; empty if there is no model."""
        model = self.models.current()
        if model is None:
            return ()
        by, answers = self._before
        if by is not model or len(answers) >= KEPT:
            self._before = (model, answers := {})
        asked = (work, tuple(sorted(gpu_memory)))
        if asked not in answers:
            answers[asked] = _ask(model, *asked)
        return answers[asked]


def _ask(model: "PerformanceModel", work: WorkloadSpec, gpus: tuple[str, ...]) -> tuple[Forecast, ...]:
    from gpuyard.learn.performance.query import CUDA_CONTEXT_MIB, predict_on_gpus, profile_of

    made = profile_of(work)
    known = {name: chip for name in gpus if (chip := _chip(model, name)) is not None}
    answers = predict_on_gpus(model, work, made, list(known.values()), model.specs) if known else []
    return tuple(
        Forecast(
            gpu_model=name,
            seconds=one.seconds,
            low_seconds=one.step_low_ms * work.steps / 1e3,
            high_seconds=one.step_high_ms * work.steps / 1e3,
            memory_mib=_with(one.memory_mib, CUDA_CONTEXT_MIB),
            memory_low_mib=_with(one.memory_low_mib, CUDA_CONTEXT_MIB),
            memory_high_mib=_with(one.memory_high_mib, CUDA_CONTEXT_MIB),
            utilization=None if one.utilization is None else 100.0 * one.utilization,
            by=model.name,
        )
        for name, one in zip(known, answers, strict=True)
    )


def gpu_memory_by_model(nodes: Iterable[NodeSpec]) -> dict[str, int]:
    """Return the GPU models of a cluster with the memory of the largest GPU of each."""
    gpu_memory: dict[str, int] = {}
    for node in nodes:
        for gpu in node.gpus:
            gpu_memory[gpu.model] = max(gpu_memory.get(gpu.model, 0), gpu.memory_mib)
    return gpu_memory


def estimate_of(spec: TaskSpec) -> Estimate | None:
    """Return the predicted run time on the fastest GPU it may have; None if the task gives no steps."""
    if not spec.forecasts or spec.work is None or spec.work.steps < 2:
        return None
    named = {model for model, _ in spec.resources.speeds}
    best = min(
        (one for one in spec.forecasts if not named or one.gpu_model in named),
        key=lambda one: one.seconds,
        default=None,
    )
    if best is None:
        return None
    low, high = (
        best.seconds * (side / best.seconds) ** NINE_OVER_FOUR for side in (best.low_seconds, best.high_seconds)
    )
    return Estimate(best.seconds, low, high)


def _needs_mib(forecasts: tuple[Forecast, ...]) -> int | None:
    """Return the smallest memory it needs on any GPU model."""
    lows = [one.memory_low_mib for one in forecasts if one.memory_low_mib is not None]
    return ceil(min(lows)) if lows else None


def _placed_by(ask: Resources, fitting: list[Forecast], needs: int | None, *, speeds: bool) -> Resources:
    """Add predicted speeds and memory to a request where the user gave none."""
    said, memory = ask.speeds, ask.gpu_memory_mib
    if speeds and not said and fitting:
        fastest = min(one.seconds for one in fitting)
        said = tuple(sorted((one.gpu_model, max(round(fastest / one.seconds, 3), 1e-3)) for one in fitting))
    if not memory and needs is not None:
        memory = needs // STEP_MIB * STEP_MIB
    return replace(ask, speeds=said, gpu_memory_mib=memory)


def _chip(model: "PerformanceModel", name: str) -> str | None:
    try:
        return model.specs.find(name).gpu
    except WrongInput:
        return None


def _with(mib: float | None, context: float) -> float | None:
    return None if mib is None else mib + context
