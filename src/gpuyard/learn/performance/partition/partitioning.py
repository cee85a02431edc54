"""Entry point: count a model, predict the time of its parts, and rank every way to divide it."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.workload import WorkloadSpec
from gpuyard.input.arguments import argument
from gpuyard.input.error_location import shortened
from gpuyard.input.files import path_of
from gpuyard.learn.performance import gpu_specs as gpu_table
from gpuyard.learn.performance.operation_profile import OperationProfile
from gpuyard.learn.performance.partition.counting import counted
from gpuyard.learn.performance.partition.plans import PartitionPlan, Setting, omitted_ways, plans
from gpuyard.learn.performance.query import PRECISIONS

PartitionGpus = Annotated[int, Meta(ge=1, le=1024)]
MicroBatches = Annotated[int, Meta(ge=1, le=1_000_000)] | None
LinkBandwidth = Annotated[float, Meta(ge=0.001, le=1_000_000)] | None
LimitSeconds = Annotated[float, Meta(ge=1, le=31_536_000)]


class Partitioning(Struct, frozen=True, kw_only=True):
    """A counted model and every way to divide it over the GPUs."""

    model: str
    batch: int
    gpu: str
    gpus: int
    precision: str
    training: bool
    flops: float
    """FLOPs of one step with the whole batch."""
    parameters: float
    shared: tuple[tuple[str, str], ...]
    """Pairs of blocks that use the same parameters."""
    plans: tuple[PartitionPlan, ...]
    """The fastest plan that fits comes first; those that do not fit in memory come last."""
    omitted: tuple[str, ...] = ()
    """Ways that are not possible, each with the reason."""

    @property
    def best_pipeline(self) -> PartitionPlan | None:
        """The first plan with more than one stage; None if there is none."""
        return next((plan for plan in self.plans if len(plan.stages) > 1), None)


def partition(
    path: Path | str,
    model: str,
    inputs: Sequence[str],
    *,
    gpu: str = "H100",
    gpus: int = 4,
    precision: str = "amp",
    training: bool = True,
    micro_batches: int | None = None,
    link_gbs: float | None = None,
    specs: gpu_table.GpuSpecs | None = None,
    python: str = sys.executable,
    limit_seconds: float = 120.0,
) -> Partitioning:
    """Divide `model` of the file `path` over `gpus` GPUs; `inputs` are shapes such as `32x3x224x224` or `8x1024:int64`.

    The file is imported and one step of the model is run on torch's meta device, by `python`, in a separate process.
    """
    path, inputs = path_of("path", path), argument("inputs", inputs, list[str])
    model, gpu, python = argument("model", model, str), argument("gpu", gpu, str), argument("python", python, str)
    gpus, micro_batches = argument("gpus", gpus, PartitionGpus), argument("micro_batches", micro_batches, MicroBatches)
    precision, training = argument("precision", precision, str), argument("training", training, bool)
    link_gbs = argument("link_gbs", link_gbs, LinkBandwidth)
    limit_seconds = argument("limit_seconds", limit_seconds, LimitSeconds)
    if find_spec("lightgbm") is None:
        raise WrongInput("Predicting how long stages take needs LightGBM: pip install 'gpuyard[learn]'.")
    from gpuyard.learn.performance.model import SHIPPED, load
    from gpuyard.learn.performance.query import predict_steps_ms

    if specs is not None and not isinstance(specs, gpu_table.GpuSpecs):
        raise WrongInput("specs must be a GpuSpecs, as read_specs returns it.")
    if precision not in PRECISIONS:
        raise WrongInput(f"Unknown precision {shortened(precision)!r}; known precisions: {', '.join(PRECISIONS)}.")
    known = gpu_table.shipped() if specs is None else specs
    spec = known.find(gpu)
    counts = counted(path, model, inputs, training=training, python=python, limit_seconds=limit_seconds)
    predictor = load(SHIPPED)
    work = WorkloadSpec(model=counts.name, mode="train" if training else "infer", precision=precision)

    def cost(steps: Sequence[tuple[OperationProfile, int]]) -> list[float]:
        return [ms / 1e3 for ms in predict_steps_ms(predictor, work, steps, spec.gpu, known)]

    setting = Setting(spec, gpus, training, precision, micro_batches, link_gbs)
    found = plans(counts.parts, counts.batch, cost, setting)
    if not found:
        raise WrongInput(
            f"A batch of {counts.batch} cannot be divided over {gpus} GPUs with {micro_batches or 'any number of'} "
            "micro-batches; choose a batch that both divide."
        )
    return Partitioning(
        model=counts.name,
        batch=counts.batch,
        gpu=spec.gpu,
        gpus=gpus,
        precision=precision,
        training=training,
        flops=sum(float(part.profile.groups[:, 2].sum()) for part in counts.parts) * counts.batch,
        parameters=sum(part.profile.parameter_bytes for part in counts.parts) / 4,
        shared=counts.shared,
        plans=tuple(found),
        omitted=tuple(omitted_ways(len(counts.parts), counts.batch, setting)),
    )
