"""`gpuyard predict`: predict time and memory of a step on several GPUs, and whether it fits."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import json_option
from gpuyard.cli.train.files import PeaksFile, SpecsFile, existing_file
from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.precision import PRECISIONS

if TYPE_CHECKING:
    from gpuyard.learn.performance.serving import ServingPrediction


def predict(
    gpu: Annotated[str, typer.Option("--gpu", metavar="NAME,...", help="GPUs to predict for.")],
    name: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="Name of a model, such as bert-base-uncased; or a config.json, or a folder with one.")] = None,
    task: Annotated[Path | None, typer.Option("--task", metavar="FILE", help="Workload in YAML; see the manual.")] = None,
    script: Annotated[Path | None, typer.Option("--script", metavar="FILE.py", help="Script that creates a PyTorch model; only its imports and definitions are executed.")] = None,
    model: Annotated[Path | None, typer.Option("--model", metavar="MODEL", help="Model of the predictor, written by 'gpuyard train predictor' (default: the one that is shipped).")] = None,
    mode: Annotated[str | None, typer.Option("--mode", metavar="MODE", help="train or infer, for a named model (default: train).")] = None,
    size: Annotated[int | None, typer.Option("--size", metavar="N", help="Tokens, or pixels per side, for a named model (default: 224).")] = None,
    batch: Annotated[int | None, typer.Option("--batch", metavar="N", help="Batch size; overrides the file.")] = None,
    precision: Annotated[str | None, typer.Option("--precision", metavar="NAME", help=f"{', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}, whatever the file says.")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Predict the serving of a language model: prefill, decode, tokens per second, memory.")] = False,
    prompt: Annotated[int, typer.Option("--prompt", metavar="N", min=1, help="With --serve: tokens of a prompt.")] = 1024,
    output: Annotated[int, typer.Option("--output", metavar="N", min=1, help="With --serve: tokens of an answer.")] = 256,
    tensor_parallel: Annotated[int, typer.Option("--tensor-parallel", metavar="N", min=1, help="With --serve: GPUs that share the model.")] = 1,
    specs: SpecsFile = None,
    calibration: PeaksFile = None,
    as_json: Annotated[bool, json_option("Print the predictions as one JSON object.")] = False,
) -> None:  # fmt: skip
    """Predict the time and memory of a step on GPUs, including GPUs without measurements."""
    from msgspec.structs import asdict

    from gpuyard.cli.output.printing import print_json, print_table
    from gpuyard.learn.performance import api
    from gpuyard.learn.performance.serving.prediction import BATCHES

    if sum(one is not None for one in (name, task, script)) != 1:
        raise WrongInput("Choose exactly one workload: MODEL, --task FILE or --script FILE.py")
    if serve:
        if name is None or mode is not None or size is not None or model is not None or calibration is not None:
            raise WrongInput(
                "--serve takes MODEL, --gpu, --prompt, --output, --batch, --precision, --tensor-parallel and --specs."
            )
        batches = BATCHES if batch is None else (batch,)
        _print_serving(
            api.predict_serving(
                name, gpu, prompt=prompt, output=output, batches=batches, precision=precision or "bf16",
                tensor_parallel=tensor_parallel, specs=specs,
            ),
            as_json=as_json,
        )  # fmt: skip
        return
    if name is None and (mode is not None or size is not None):
        raise WrongInput("--mode and --size apply to a named model; a task file or a script has its own.")
    if name is not None:
        workload = api.workload_of_model(name if api.is_model_name(name) else Path(name), mode=mode, size=size)
    elif task is not None:
        workload = api.workload_of_file(existing_file(task))
    else:
        workload = api.workload_of_script(existing_file(script or Path()))
    workload = workload.changed(batch=batch, precision=precision)
    answers = api.predict(workload, gpu, model=model, specs=specs, calibration=calibration)
    if as_json:
        print_json({"work": asdict(workload.spec), "gpus": answers})
        return
    print_table(
        ("GPU", "STEP", "RANGE", "MEMORY", "FITS", "BUSY", "FROM"),
        [
            (
                one.gpu,
                f"{one.step_ms:.4g} ms",
                f"{one.step_low_ms:.3g}–{one.step_high_ms:.3g}",
                "" if one.memory_mib is None else f"{one.memory_mib:,.0f} MiB",
                "" if one.fits is None else "yes" if one.fits else "no",
                "" if one.utilization is None else f"{100 * one.utilization:.0f} %",
                one.from_,
            )
            for one in answers
        ],
        right=("STEP", "MEMORY", "BUSY"),
    )


def _print_serving(answers: "list[ServingPrediction]", *, as_json: bool) -> None:
    from gpuyard.cli.output.printing import print_json, print_table

    if as_json:
        print_json({"serving": answers})
        return
    print_table(
        ("GPU", "BATCH", "PREFILL", "RANGE", "DECODE", "RANGE", "TOKENS/S", "WEIGHTS", "CACHE", "FITS", "MOST", "FROM"),
        [
            (
                one.gpu if one.gpus == 1 else f"{one.gpus} x {one.gpu}",
                str(one.batch),
                f"{one.prefill_ms:.4g} ms",
                f"{one.prefill_low_ms:.3g}–{one.prefill_high_ms:.3g}",
                f"{one.decode_ms:.4g} ms",
                f"{one.decode_low_ms:.3g}–{one.decode_high_ms:.3g}",
                f"{one.tokens_per_second:,.0f}",
                f"{one.weights_mib:,.0f} MiB",
                f"{one.cache_mib:,.0f} MiB",
                "yes" if one.fits else "no",
                f"{one.max_batch:,}",
                one.from_,
            )
            for one in answers
        ],
        right=("BATCH", "PREFILL", "DECODE", "TOKENS/S", "WEIGHTS", "CACHE", "MOST"),
    )
