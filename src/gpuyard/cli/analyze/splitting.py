"""`gpuyard analyze --model`: a PyTorch model divided over GPUs, and what that would bring."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gpuyard.core.domain.errors import WrongInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuyard.learn.analysis.splitting.asking import Counted
    from gpuyard.learn.analysis.splitting.partition import Plan
    from gpuyard.learn.performance.operation_profile import Anatomy

SHOWN = 6


def split(
    source: Path, model: str, inputs: list[str], *, gpu: str, gpus: int, precision: str, micro_batches: int | None,
    training: bool, link: float | None, limit: float, python: str, specs: Path | None, calibration: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Count it, plan it, tell."""
    if find_spec("lightgbm") is None or find_spec("numpy") is None:
        raise WrongInput("Predicting how long stages take needs LightGBM: pip install 'gpuyard[learn]'.")
    from gpuyard.cli.printing import print_json
    from gpuyard.cli.train.files import read_specs
    from gpuyard.core.domain.workload import Work
    from gpuyard.learn.analysis.splitting.asking import counted
    from gpuyard.learn.analysis.splitting.partition import Setting, plans
    from gpuyard.learn.performance.model import SHIPPED, load
    from gpuyard.learn.performance.query import PRECISIONS, steps_ms

    if precision not in PRECISIONS:
        raise WrongInput(f"{precision!r} is no precision; known: {', '.join(PRECISIONS)}.")
    known = read_specs(specs, calibration)
    card = known.find(gpu)
    if not source.exists():
        raise WrongInput(f"{source}: there is no such file or folder.")
    counts = counted(source, model, inputs, training=training, python=python, limit_seconds=limit)
    learnt = load(SHIPPED)
    work = Work(model=counts.name, mode="train" if training else "infer", precision=precision)

    def cost(steps: "Sequence[tuple[Anatomy, int]]") -> list[float]:
        return [ms / 1e3 for ms in steps_ms(learnt, work, steps, card.gpu, known)]

    setting = Setting(card, gpus, training, precision, micro_batches, link)
    found = plans(counts.parts, counts.batch, cost, setting)
    if not found:
        raise WrongInput(
            f"A batch of {counts.batch} can not be divided so: {gpus} GPUs, {micro_batches or 'any'} micro-batches."
        )
    if as_json:
        print_json(_told(counts, setting, precision, found))
    else:
        _show(counts, setting, precision, found)


def _told(counts: "Counted", setting: Any, precision: str, found: "list[Plan]") -> dict[str, Any]:
    return {
        "model": counts.name,
        "batch": counts.batch,
        "gpu": setting.gpu.gpu,
        "gpus": setting.gpus,
        "precision": precision,
        "training": setting.training,
        "flops": _flops(counts),
        "parameters": _parameters(counts),
        "shared": counts.shared,
        "plans": found,
    }


def _flops(counts: "Counted") -> float:
    return sum(float(part.anatomy.groups[:, 2].sum()) for part in counts.parts) * counts.batch


def _parameters(counts: "Counted") -> float:
    return sum(part.anatomy.parameter_bytes for part in counts.parts) / 4


def _show(counts: "Counted", setting: Any, precision: str, found: "list[Plan]") -> None:
    from gpuyard.cli.printing import print_table

    does = "training" if setting.training else "inference"
    typer.echo(
        f"{counts.name}: {_parameters(counts) / 1e6:.1f} M parameters, {_flops(counts) / 1e12:.3g} TFLOP a step; {does} "
        f"with a batch of {counts.batch} in {precision} on {setting.gpus} {setting.gpu.gpu}.\n"
    )
    rows = [
        (
            len(plan.stages), plan.replicas, plan.micro_batches, f"{plan.seconds * 1e3:.2f}", f"{plan.speedup:.2f}",
            f"{plan.bubble:.0%}", f"{plan.communication:.0%}", f"{plan.memory_bytes / 1e9:.1f}", "yes" if plan.fits else "no",
        )
        for plan in found[:SHOWN]
    ]  # fmt: skip
    names = (
        "STAGES",
        "REPLICAS",
        "MICRO-BATCHES",
        "STEP MS",
        "SPEED-UP",
        "BUBBLE",
        "COMMUNICATION",
        "MEMORY GB",
        "FITS",
    )
    print_table(names, rows, right=names)
    best = next((plan for plan in found if len(plan.stages) > 1), None)
    if best is None:
        return
    typer.echo(f"\nThe best pipeline, {len(best.stages)} stages:")
    slowest = max(stage.seconds for stage in best.stages)
    stages = [
        (
            number, stage.first, stage.last, f"{stage.seconds * 1e3:.3f}", f"{stage.seconds / slowest:.0%}",
            f"{stage.parameter_bytes / 4e6:.1f}", f"{stage.crossing_bytes / 1e6:.1f}", f"{stage.memory_bytes / 1e9:.1f}",
        )
        for number, stage in enumerate(best.stages, 1)
    ]  # fmt: skip
    columns = ("STAGE", "FROM", "TO", "MS A MICRO-BATCH", "OF SLOWEST", "M PARAMETERS", "MB IN", "MEMORY GB")
    print_table(columns, stages, right=("STAGE", *columns[3:]))
    for one, other in counts.shared:
        typer.echo(
            f"{one} and {other} use the same parameters: on different stages both need a copy, and add up its gradients."
        )
