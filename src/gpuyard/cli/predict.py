"""`gpuyard predict`: predict time and memory of a step on several GPUs, and whether it fits."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import json_option
from gpuyard.cli.train.files import PeaksFile, SpecsFile, existing_file
from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.domain.precision import PRECISIONS
from gpuyard.input.error_location import shortened

if TYPE_CHECKING:
    from gpuyard.learn.performance.api import DescribedWorkload
    from gpuyard.learn.performance.query import GpuPrediction
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
    prompt: Annotated[int | None, typer.Option("--prompt", metavar="N", min=1, help="With --serve: tokens of a prompt (default: 1024).")] = None,
    output: Annotated[int | None, typer.Option("--output", metavar="N", min=1, help="With --serve: tokens of an answer (default: 256).")] = None,
    tensor_parallel: Annotated[int | None, typer.Option("--tensor-parallel", metavar="N", min=1, help="With --serve: GPUs that share the model (default: 1).")] = None,
    specs: SpecsFile = None,
    calibration: PeaksFile = None,
    as_json: Annotated[bool, json_option("Print the predictions as one JSON object.")] = False,
) -> None:  # fmt: skip
    """Predict the time and memory of a step on GPUs, including GPUs without measurements."""
    from msgspec.structs import asdict

    from gpuyard.cli.output.printing import print_json
    from gpuyard.learn.performance import api
    from gpuyard.learn.performance.query import taken_as
    from gpuyard.learn.performance.serving.prediction import BATCHES

    if sum(one is not None for one in (name, task, script)) != 1:
        raise WrongInput("Choose exactly one workload: MODEL, --task FILE or --script FILE.py")
    if serve:
        if name is None or mode is not None or size is not None or model is not None or calibration is not None:
            raise WrongInput(
                "--serve takes MODEL, --gpu, --prompt, --output, --batch, --precision, --tensor-parallel and --specs."
            )
        batches = BATCHES if batch is None else (batch,)
        prompt, output, precision = prompt or 1024, output or 256, precision or "bf16"
        served = api.predict_serving(
            name, gpu, prompt=prompt, output=output, batches=batches, precision=precision,
            tensor_parallel=tensor_parallel or 1, specs=specs,
        )  # fmt: skip
        if as_json:
            print_json({"serving": served})
            return
        sys.stdout.write(
            f"{shortened(name)}: serving, prompts of {prompt:,} tokens, {output:,} tokens of output, {precision}.\n"
        )
        _print_serving(served)
        _print_other_boards(gpu, [one.gpu for one in served[:: len(batches)]], specs)
        return
    if any(one is not None for one in (prompt, output, tensor_parallel)):
        raise WrongInput("--prompt, --output and --tensor-parallel apply to serving; add --serve.")
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
    is_named = task is not None or (name is not None and api.is_model_name(name))
    known = taken_as(workload.spec) if is_named else None
    if as_json:
        print_json({"work": asdict(workload.spec), "taken_as": known, "gpus": answers})
        return
    sys.stdout.write(f"{_assumed(workload, known)}\n")
    _print_steps(answers)
    if workload.spec.steps > 1:
        for one in answers:
            sys.stdout.write(f"{one.gpu}: {workload.spec.steps:,} steps take {_digits(one.seconds)} s.\n")
    _print_other_boards(gpu, [one.gpu for one in answers], specs)


def _assumed(workload: "DescribedWorkload", known: str | None) -> str:
    """Return what is predicted in a sentence: some of it was not given by the user, but is a default."""
    work = workload.spec
    mode = "training" if work.mode == "train" else "inference"
    compiled = ", compiled" if work.compiled else ""
    taken = f" (taken as {known})" if known not in {None, work.model} else ""
    batch, size = (
        f"{name} {getattr(work, name)}{' (default)' if name in workload.defaults else ''}" for name in ("batch", "size")
    )
    return f"{shortened(work.model)}{taken}: {mode}, {batch}, {size}, {work.precision}{compiled}."


def _print_steps(answers: "Sequence[GpuPrediction]") -> None:
    from gpuyard.cli.output.printing import print_table

    print_table(
        ("GPU", "STEP", "RANGE", "MEMORY", "RANGE", "FITS", "BUSY", "FROM"),
        [
            (
                one.gpu,
                f"{_digits(one.step_ms, 4)} ms",
                f"{_digits(one.step_low_ms)}–{_digits(one.step_high_ms)}",
                "" if one.memory_mib is None else f"{one.memory_mib:,.0f} MiB",
                ""
                if one.memory_low_mib is None or one.memory_high_mib is None
                else f"{one.memory_low_mib:,.0f}–{one.memory_high_mib:,.0f}",
                "" if one.fits is None else "yes" if one.fits else "maybe" if one.fits_expected else "no",
                "" if one.utilization is None else f"{100 * one.utilization:.0f} %",
                one.from_,
            )
            for one in answers
        ],
        right=("STEP", "MEMORY", "BUSY"),
    )


def _print_other_boards(asked: str, found: Sequence[str], specs: Path | None) -> None:
    """Print which board a short name was taken for, if several boards have it."""
    from gpuyard.input.arguments import names
    from gpuyard.learn.performance.api import read_gpu_specs

    known = read_gpu_specs(specs, None)
    for name, gpu in dict(zip(names("gpus", asked), found, strict=True)).items():
        if others := [one for one in known.sharing(name) if one != gpu]:
            sys.stdout.write(f"{name} means {gpu} here; other boards: {', '.join(others)}.\n")


def _digits(value: float, digits: int = 3) -> str:
    """Return a number with so many digits, without an exponent: 1,380 instead of 1.38e+03."""
    return f"{float(f'{value:.{digits}g}'):,.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def _print_serving(answers: "Sequence[ServingPrediction]") -> None:
    """Print a table, and a sentence for each GPU on which not even one request fits."""
    from gpuyard.learn.performance.serving.prediction import USABLE

    fitting = [one for one in answers if one.max_batch]
    if fitting:
        _print_served(fitting)
    for one in {one.gpu: one for one in answers if not one.max_batch}.values():
        where = one.gpu if one.gpus == 1 else f"{one.gpus} x {one.gpu}"
        sys.stdout.write(
            f"{where}: the model does not fit, because weights take {one.weights_mib:,.0f} MiB and a request "
            f"{one.cache_mib / one.batch:,.0f} MiB of the {USABLE * one.gpu_memory_mib:,.0f} MiB that can be used on a "
            "GPU; divide it among more GPUs with --tensor-parallel.\n"
        )


def _print_served(answers: "Sequence[ServingPrediction]") -> None:
    from gpuyard.cli.output.printing import print_table

    print_table(
        ("GPU", "BATCH", "PREFILL", "RANGE", "DECODE", "RANGE", "TOKENS/S", "WEIGHTS", "CACHE", "FITS", "MOST", "FROM"),
        [
            (
                one.gpu if one.gpus == 1 else f"{one.gpus} x {one.gpu}",
                str(one.batch),
                f"{_digits(one.prefill_ms, 4)} ms",
                f"{_digits(one.prefill_low_ms)}–{_digits(one.prefill_high_ms)}",
                f"{_digits(one.decode_ms, 4)} ms",
                f"{_digits(one.decode_low_ms)}–{_digits(one.decode_high_ms)}",
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
