"""Turn a plan into a request for `divided_training`, which runs it."""

from collections.abc import Sequence
from pathlib import Path

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.error_location import shortened
from gpuyard.learn.performance.partition.counting import locate, read_input
from gpuyard.learn.performance.partition.divided_training import TrainingRequest
from gpuyard.learn.performance.partition.partitioning import Partitioning
from gpuyard.learn.performance.partition.plans import PartitionPlan


def chosen_plan(found: Partitioning, stages: int | None) -> PartitionPlan:
    """Return the fastest plan with this number of stages; without a number, the fastest one that fits."""
    for plan in found.plans:
        if plan.fits if stages is None else len(plan.stages) == stages:
            return plan
    if stages is None:
        raise WrongInput(
            f"No plan fits in the memory of {found.gpus} {found.gpu}; choose one with --stages, or more GPUs."
        )
    known = sorted({len(plan.stages) for plan in found.plans})
    raise WrongInput(f"There is no plan with {stages} stages; plans have {', '.join(map(str, known))}.")


def training_request(
    found: Partitioning,
    plan: PartitionPlan,
    path: Path,
    model: str,
    inputs: Sequence[str],
    *,
    nodes: int = 1,
    steps: int = 100,
    learning_rate: float = 1e-3,
    data: str = "",
    loss: str = "",
) -> TrainingRequest:
    """Return the request that trains a model as a plan divides it, on this number of nodes."""
    if not found.training:
        raise WrongInput("A plan for inference cannot be trained; leave out --inference.")
    if nodes < 1 or found.gpus % nodes:
        raise WrongInput(f"{found.gpus} GPUs cannot be divided over {nodes} nodes with equal parts; change --nodes.")
    if steps < 1:
        raise WrongInput(f"steps is {steps}; it must be at least 1.")
    if not 0 < learning_rate < 1e6:
        raise WrongInput(f"The learning rate is {learning_rate:g}; it must be above 0 and below 1,000,000.")
    if len(plan.stages) > 1 and found.shared:
        one, other = found.shared[0]
        raise WrongInput(f"{one} and {other} share parameters, which a pipeline would separate; use --stages 1.")
    for name in (data, loss):
        if name and not name.isidentifier():
            raise WrongInput(f"{shortened(name)!r} is not the name of a function.")
    place = locate(path, model)
    return TrainingRequest(
        folder=str(place.folder),
        module=place.module,
        name=place.name,
        inputs=[read_input(text) for text in inputs],
        stages=[stage.first for stage in plan.stages],
        replicas=plan.replicas,
        micro_batches=plan.micro_batches,
        gpus_per_node=found.gpus // nodes,
        precision=found.precision,
        steps=steps,
        learning_rate=learning_rate,
        data=data,
        loss=loss,
        predicted_ms=plan.seconds * 1e3,
    )
