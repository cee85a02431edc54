"""`gpuyard profile calibrate`: measure the peak performance of the GPU of this machine, in less than a minute."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from gpuyard.cli.input.options import finite, json_option
from gpuyard.cli.profile.checks import device_to_measure, room_for


def calibrate(
    device: Annotated[str | None, typer.Option("--device", metavar="cuda|cpu", help="Device to measure (default: the first GPU).")] = None,
    seconds: Annotated[float, typer.Option("--seconds", callback=finite, min=0.0, max=60.0, metavar="S", help="Measuring time of each peak.")] = 3.0,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.json", help="Write the peaks to this file.")] = None,
    as_json: Annotated[bool, json_option("Print the peaks as one JSON object.")] = False,
) -> None:  # fmt: skip
    """Measure the peak performance of the GPU of this machine: matrix products and a memory copy."""
    import msgspec

    from gpuyard.cli.output.printing import print_json, print_pairs

    here = device_to_measure(device)
    room_for(out)
    from gpuyard.learn.profiler.calibrate import calibrate as measured

    peaks = asdict(measured(here, seconds))
    if out is not None:
        out.write_bytes(msgspec.json.encode(peaks))
    if as_json:
        print_json(peaks)
    else:
        print_pairs(peaks.items())
