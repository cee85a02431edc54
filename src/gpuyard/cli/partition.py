"""`gpuyard partition`: divide a PyTorch model over GPUs and predict the step time of every way to do so."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import ServerOption, TokenOption, client, finite, json_option
from gpuyard.cli.train.files import PeaksFile, SpecsFile
from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.precision import PRECISIONS

if TYPE_CHECKING:
    from gpuyard.learn.performance.partition import Partitioning
    from gpuyard.learn.performance.partition.divided_training import TrainingRequest
    from gpuyard.learn.performance.partition.plans import PartitionPlan
    from gpuyard.live.sdk import Client

SHOWN = 6
"""Ways that the table lists; --json has all of them."""


def partition(
    source: Annotated[Path, typer.Argument(metavar="PATH", help="Python file that defines the model, or the folder that contains it.")],
    model: Annotated[str, typer.Argument(metavar="[MODULE:]NAME", help=(
        "Class or function that creates the model and needs no arguments. It is imported and run in a "
        "separate process."
    ))],
    inputs: Annotated[list[str], typer.Option("--input", metavar="SHAPE", help="Shape of an input, batch first: 32x3x224x224 or 8x1024:int64. Repeat for several inputs.")],
    gpus: Annotated[int, typer.Option("--gpus", metavar="N", help="Number of GPUs.")] = 4,
    gpu: Annotated[str, typer.Option("--gpu", metavar="NAME", help="GPU model.")] = "H100",
    precision: Annotated[str, typer.Option("--precision", metavar="|".join(PRECISIONS), help="Precision of the arithmetic; amp is autocast to bf16.")] = "amp",
    micro_batches: Annotated[int | None, typer.Option("--micro-batches", metavar="N", help="Number of micro-batches (default: the fastest number).")] = None,
    inference: Annotated[bool, typer.Option("--inference", help="Count the forward pass only.")] = False,
    link: Annotated[float | None, typer.Option("--link", callback=finite, metavar="GB/S", help="Bandwidth between two GPUs in one direction (default: from the data sheet).")] = None,
    limit: Annotated[float, typer.Option("--limit", callback=finite, metavar="SECONDS", help="Time limit for counting the model.")] = 120.0,
    python: Annotated[str | None, typer.Option("--python", metavar="PROGRAM", help="Python interpreter with PyTorch that counts the operations (default: this one).")] = None,
    specs: SpecsFile = None,
    calibration: PeaksFile = None,
    submit: Annotated[bool, typer.Option("--submit", help="Submit the training of the model, divided as the fastest plan that fits.")] = False,
    stages: Annotated[int | None, typer.Option("--stages", metavar="N", help="With --submit: use the plan with so many stages; 1 is data-parallel.")] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", metavar="N", help="With --submit: number of nodes; more than one is a gang (default: 1).")] = None,
    steps: Annotated[int | None, typer.Option("--steps", metavar="N", help="With --submit: number of training steps (default: 100).")] = None,
    data: Annotated[str | None, typer.Option("--data", metavar="NAME", help="With --submit: function of the file that returns the inputs and the target of a step (default: random inputs).")] = None,
    loss: Annotated[str | None, typer.Option("--loss", metavar="NAME", help="With --submit: function of the file that returns the loss of an output and a target.")] = None,
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", callback=finite, metavar="X", help="With --submit: learning rate of AdamW (default: 0.001).")] = None,
    server: ServerOption = None,
    token: TokenOption = None,
    as_json: Annotated[bool, json_option("Print every plan as one JSON object.")] = False,
) -> None:  # fmt: skip
    """Partition a PyTorch model over GPUs: pipeline stages, replicas, and the predicted time of a step."""
    from msgspec import to_builtins

    from gpuyard.cli.output.printing import print_json
    from gpuyard.cli.train.files import read_specs
    from gpuyard.learn.performance.partition import partition as divide

    given = {"--stages": stages, "--nodes": nodes, "--steps": steps, "--data": data, "--loss": loss,
             "--learning-rate": learning_rate}  # fmt: skip
    if not submit and (name := next((name for name, value in given.items() if value is not None), None)):
        raise WrongInput(f"{name} requires --submit.")
    found = divide(
        source, model, inputs, gpu=gpu, gpus=gpus, precision=precision, training=not inference, micro_batches=micro_batches,
        link_gbs=link, specs=read_specs(specs, calibration), python=python or sys.executable, limit_seconds=limit,
    )  # fmt: skip
    if not as_json:
        _show(found)
    task = None
    if submit:
        from gpuyard.learn.performance.partition.submission import chosen_plan, training_request

        plan = chosen_plan(found, stages)
        request = training_request(
            found, plan, source, model, inputs, nodes=nodes or 1, steps=100 if steps is None else steps,
            learning_rate=1e-3 if learning_rate is None else learning_rate, data=data or "", loss=loss or "",
        )  # fmt: skip
        task = _submitted(client(server, token), request, plan, python or sys.executable, nodes or 1)
    if as_json:
        print_json(to_builtins(found) | ({"submitted": task} if task else {}))
    elif task:
        typer.echo(task)


def _submitted(cluster: "Client", request: "TrainingRequest", plan: "PartitionPlan", python: str, nodes: int) -> str:
    """Submit the training and return the id of its task."""
    from msgspec import json

    typer.echo(
        f"\nTo be submitted: {plan.replicas} × {len(plan.stages)} stages, {plan.micro_batches} micro-batches, "
        f"{request.gpus_per_node} GPUs on {nodes} {'node' if nodes == 1 else 'nodes'}.",
        err=True,
    )
    module = "gpuyard.learn.performance.partition.divided_training"
    task = cluster.submit(
        [python, "-m", module, json.encode(request).decode()],
        name=request.name,
        work_dir=request.folder,
        gpu_count=request.gpus_per_node,
        nodes=nodes,
    )
    return task.id


def _show(found: "Partitioning") -> None:
    from gpuyard.cli.output.printing import print_table

    does = "training" if found.training else "inference"
    typer.echo(
        f"{found.model}: {found.parameters / 1e6:.1f} M parameters, {found.flops / 1e12:.3g} TFLOP a step; {does} "
        f"with a batch of {found.batch} in {found.precision} on {found.gpus} {found.gpu}.\n"
    )
    rows = [
        (
            len(plan.stages), plan.replicas, plan.micro_batches, f"{plan.seconds * 1e3:.2f}", f"{plan.speedup:.2f}",
            f"{plan.bubble:.0%}", f"{plan.communication:.0%}", f"{plan.memory_bytes / 1e9:.1f}", "yes" if plan.fits else "no",
        )
        for plan in found.plans[:SHOWN]
    ]  # fmt: skip
    names = ("STAGES", "REPLICAS", "MICRO-BATCHES", "STEP MS", "SPEED-UP", "BUBBLE", "COMMUNICATION", "MEMORY GB", "FITS")  # fmt: skip
    print_table(names, rows, right=names)
    for way in found.omitted:
        typer.echo(f"Omitted: {way}.")
    if found.gpus > 1 and found.plans[0].speedup < 1:
        typer.echo(f"The first way is slower than one GPU (speed-up {found.plans[0].speedup:.2f}).")
    best = found.best_pipeline
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
    for one, other in found.shared:
        typer.echo(
            f"{one} and {other} share parameters: on different stages both need a copy, and their "
            "gradients must be added."
        )
