"""`gpuyard predict`: how long a step takes, how much memory it needs, and whether that fits, on each of some GPUs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.input.options import json_option
from gpuyard.cli.train.files import PeaksFile, SpecsFile, there
from gpuyard.core.domain.errors import WrongInput

if TYPE_CHECKING:
    from gpuyard.core.domain.workload import WorkloadSpec
    from gpuyard.learn.performance.operation_profile import OperationProfile

SCRIPT_SECONDS = 120.0
"""Longest that looking into a script may take."""


def predict(
    gpu: Annotated[str, typer.Option("--gpu", metavar="NAME,...", help="GPUs to predict for.")],
    task: Annotated[Path | None, typer.Option("--task", metavar="FILE", help="What is run, in YAML; see the manual.")] = None,
    script: Annotated[Path | None, typer.Option("--script", metavar="FILE.py", help="A script that makes a PyTorch model; it is read, and not run.")] = None,
    model: Annotated[Path | None, typer.Option("--model", metavar="MODEL", help="What 'gpuyard train predictor' wrote (default: the one that ships).")] = None,
    batch: Annotated[int | None, typer.Option("--batch", metavar="N", min=1, help="Samples in a step, whatever the file says.")] = None,
    precision: Annotated[str | None, typer.Option("--precision", metavar="NAME", help="fp32, tf32, bf16 or amp, whatever the file says.")] = None,
    specs: SpecsFile = None,
    calibration: PeaksFile = None,
    as_json: Annotated[bool, json_option("Print the predictions as one JSON object.")] = False,
) -> None:  # fmt: skip
    """Predict time and memory of a step on GPUs, also on those that nobody has measured."""
    from msgspec.structs import asdict, replace

    from gpuyard.cli.output.printing import print_json, print_table
    from gpuyard.cli.train.files import read_specs
    from gpuyard.learn.performance.model import SHIPPED, load
    from gpuyard.learn.performance.query import ask

    if (task is None) == (script is None):
        raise WrongInput("Say either --task FILE or --script FILE.py")
    names = [name.strip() for name in gpu.split(",") if name.strip()]
    if not names:
        raise WrongInput("--gpu names no GPU; say some with commas between them, such as H200,A100")
    work, made = _described(there(task)) if task is not None else _found(there(script or Path()))
    changed: dict[str, Any] = {"batch": batch, "precision": precision}
    work = replace(work, **{name: value for name, value in changed.items() if value is not None})
    learnt = load(SHIPPED if model is None else there(model))
    known = learnt.specs if specs is None and calibration is None else read_specs(specs, calibration)
    answers = ask(learnt, work, made, names, known)
    if as_json:
        print_json({"work": asdict(work), "gpus": answers})
        return
    print_table(
        ("GPU", "STEP", "BAND", "MEMORY", "FITS", "BUSY", "FROM"),
        [
            (
                one.gpu,
                f"{one.step_ms:.4g} ms",
                f"{one.step_low_ms:.3g}–{one.step_high_ms:.3g}",
                "" if one.memory_mib is None else f"{one.memory_mib:,.0f} MiB",
                "" if one.fits is None else "yes" if one.fits else "no",
                "" if one.utilisation is None else f"{100 * one.utilisation:.0f} %",
                one.from_,
            )
            for one in answers
        ],
        right=("STEP", "MEMORY", "BUSY"),
    )


def _described(file: Path) -> "tuple[WorkloadSpec, OperationProfile]":
    """What a file in YAML says, in the words in which a task on the API says what it computes."""
    from msgspec.structs import asdict

    from gpuyard.core.domain.workload import WorkloadSpec
    from gpuyard.input import strict
    from gpuyard.input.document import parse
    from gpuyard.learn.performance.query import profile_of
    from gpuyard.live.wire.tasks import WorkRequest

    try:
        work = WorkloadSpec(**asdict(strict.Strict(WorkRequest, what="the file").plain(parse(file.read_bytes()).value)))
        return work, profile_of(work)
    except (strict.WrongRequest, WrongInput) as error:
        raise WrongInput(f"{file}: {error}") from None


def _found(file: Path) -> "tuple[WorkloadSpec, OperationProfile]":
    """What a script makes, looked for in a process of its own."""
    import json
    import subprocess
    import sys

    from gpuyard.core.domain.workload import WorkloadSpec
    from gpuyard.learn.performance.operation_profile import OperationProfile

    call = [sys.executable, "-W", "ignore", "-m", "gpuyard.learn.performance.script", str(file)]
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=SCRIPT_SECONDS, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise WrongInput(f"{file} was looked into for {SCRIPT_SECONDS:g} s without an end") from None
    try:
        said = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise WrongInput(f"{file} ended the process that looked into it: {last}") from None
    if "error" in said:
        raise WrongInput(said["error"])
    made = OperationProfile.of(said["groups"], said["kept"], said["largest"], said["parameters"])
    names = ("model", "mode", "batch", "precision", "compiled", "size")
    return WorkloadSpec(**{name: said[name] for name in names}), made
