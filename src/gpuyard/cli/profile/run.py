"""`gpuyard profile run`: measure training and inference of PyTorch models, one row a configuration."""

import sys
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import finite, json_option
from gpuyard.cli.profile.checks import device_to_measure, packages_for, room_for
from gpuyard.core.domain.errors import WrongInput

if TYPE_CHECKING:
    from gpuyard.learn.profiler.rows import Configuration
    from gpuyard.learn.profiler.zoo import ProfiledModel
    from gpuyard.system.gpu_clocks import Clocks

OWN_CLOCK = "own"
ON_CPU = "fp32"
"""The only precision that is measured on a CPU."""


def run(
    models: Annotated[str, typer.Option("--models", metavar="NAME,…", help="Models to measure, with * as a wildcard, such as own/*,torchvision/resnet*.")] = "*",
    modes: Annotated[str, typer.Option("--modes", metavar="MODE,…", help="train, infer or both.")] = "train,infer",
    precisions: Annotated[str, typer.Option("--precisions", metavar="P,…", help="fp32, tf32, bf16, amp.")] = "fp32,tf32,bf16,amp",
    batches: Annotated[str, typer.Option("--batches", metavar="N,…", help="Batch sizes (default: four for each model).")] = "",
    sample: Annotated[float, typer.Option("--sample", metavar="FRACTION", callback=finite, min=0.0, max=1.0, help="Measure only this fraction of the configurations, evenly chosen.")] = 1.0,
    seconds: Annotated[float, typer.Option("--seconds", callback=finite, min=0.0, metavar="S", help="Measuring time of each configuration.")] = 0.6,
    minutes: Annotated[float, typer.Option("--minutes", callback=finite, min=0.0, metavar="M", help="Stop after this time; the next call continues.")] = 60.0,
    clocks: Annotated[str, typer.Option("--clocks", metavar="MHZ,…", help="Measure at each of these clocks, which needs root; own: at the GPU's own clock.")] = OWN_CLOCK,
    compiled: Annotated[bool, typer.Option("--compiled", help="Measure models after torch.compile.")] = False,
    device: Annotated[str | None, typer.Option("--device", metavar="cuda|cpu", help="Device to measure on (default: the first GPU).")] = None,
    out: Annotated[Path, typer.Option("--out", metavar="FILE.csv", help="Append rows to this file; configurations that it already contains are not measured again.")] = Path("profiles.csv"),
    list_only: Annotated[bool, typer.Option("--list", help="Only list the models.")] = False,
    as_json: Annotated[bool, json_option("Print what was measured as one JSON object.")] = False,
) -> None:  # fmt: skip
    """Measure step time, memory, power and utilization of PyTorch models on the GPU of this machine."""
    from gpuyard.cli.output.printing import print_json, print_table

    here = device_to_measure(device)
    packages_for(models.split(","))
    from gpuyard.learn.profiler.rows import append, measured_configurations
    from gpuyard.learn.profiler.sweep import PRECISIONS
    from gpuyard.learn.profiler.zoo import profiled_models

    chosen = [
        s for name, s in profiled_models().items() if any(fnmatch(name, pattern) for pattern in models.split(","))
    ]
    if not chosen:
        raise WrongInput(f"Unknown model {models}; `gpuyard profile run --list` lists the models.")
    if list_only:
        if as_json:
            print_json([{"model": s.name, "family": s.family, "size": s.size, "batches": s.batches} for s in chosen])
        else:
            print_table(("MODEL", "FAMILY", "SIZE", "BATCHES"), [(s.name, s.family, s.size, ",".join(map(str, s.batches))) for s in chosen])  # fmt: skip
        return
    from gpuyard.learn.profiler.measure import MeasurementSetup, measure

    _known("--precisions", precisions, PRECISIONS)
    at_clocks = _clocks(clocks)
    if here == "cpu" and at_clocks != [None]:
        raise WrongInput("--clocks needs a GPU, and --device is cpu.")
    room_for(out)
    has = measured_configurations([out])
    place = MeasurementSetup.here(datetime.now(UTC).date().isoformat(), here)
    if at_clocks != [None]:
        place = replace(place, clocks=_locks())
    todo = {
        s: [c for c in _configurations(s, modes, precisions if place.device == "cuda" else ON_CPU, batches, sample, compiled=compiled, clocks=at_clocks) if c not in has]
        for s in chosen
    }  # fmt: skip
    wanted, made, until = sum(map(len, todo.values())), 0, monotonic() + 60 * minutes
    with closing(place.clocks) if place.clocks is not None else nullcontext():
        for subject, configurations in todo.items():
            if not configurations or monotonic() > until:
                continue
            for row in measure(subject, configurations, place, seconds):
                append(out, row)
                made += 1
                at = f" {row.clock_mhz} MHz" if row.clock_mhz else ""
                sys.stderr.write(
                    f"gpuyard: {made}/{wanted} {row.model} {row.mode} {row.batch} {row.precision}{at}: "
                    f"{row.step_ms:.3g} ms\n"
                )
                if monotonic() > until:
                    break
    figures = {"measured": made, "wanted": wanted, "had": len(has), "gpu": place.gpu, "file": str(out)}
    if as_json:
        print_json(figures)
    else:
        typer.echo(
            f"{made} of {wanted} configurations measured on {place.gpu}; {len(has)} were already measured. See {out}."
        )


def _configurations(
    subject: "ProfiledModel",
    modes: str,
    precisions: str,
    batches: str,
    sample: float,
    *,
    compiled: bool,
    clocks: "list[int | None]",
) -> "list[Configuration]":
    from gpuyard.learn.profiler.sweep import MODES, PRECISIONS, configurations

    return configurations(
        subject,
        _known("--modes", modes, MODES),
        _known("--precisions", precisions, PRECISIONS),
        _counts(batches) or subject.batches,
        sample,
        compiled=compiled,
        clocks=clocks,
    )


def _clocks(said: str) -> "list[int | None]":
    clocks: list[int | None] = []
    for word in said.split(","):
        mhz = int(word) if word.strip().isdecimal() else None
        if word.strip() != OWN_CLOCK and not mhz:
            raise WrongInput(f"--clocks must be MHz, or {OWN_CLOCK}, separated by commas, not {said!r}.")
        clocks.append(mhz)
    return clocks


def _locks() -> "Clocks":
    import pynvml  # type: ignore[import-untyped]

    from gpuyard.system.clock_guard import ClockGuard
    from gpuyard.system.gpu_clocks import Clocks

    return Clocks(pynvml, ClockGuard())


def _known(option: str, said: str, known: tuple[str, ...]) -> list[str]:
    for word in said.split(","):
        if word not in known:
            raise WrongInput(f"{option} must be one of {', '.join(known)}, not {word!r}.")
    return said.split(",")


def _counts(said: str) -> list[int]:
    try:
        counts = [int(word) for word in said.split(",") if said]
    except ValueError:
        counts = [0]
    if any(n < 1 for n in counts):
        raise WrongInput(f"--batches must be whole numbers of 1 or more, separated by commas, not {said!r}.")
    return counts
