"""`gpuyard train serving`: fit the model of LLM serving to measured operations and write it."""

from pathlib import Path
from typing import Annotated

import typer

from gpuyard.cli.input.options import json_option
from gpuyard.cli.train.files import SeedOption, SpecsFile


def serving(
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Output file of the model, in JSON.")],
    profiles: Annotated[list[Path], typer.Option("--profiles", metavar="FILE", help="Tables of operations: aiconfigurator (products, attention), Vidur (layers).")],
    specs: SpecsFile = None,
    seed: SeedOption = 1,
    as_json: Annotated[bool, json_option("Print a summary of the training data as one JSON object.")] = False,
) -> None:  # fmt: skip
    """Fit the model of LLM serving to measured operations of inference engines."""
    from gpuyard.cli.output.printing import print_json, print_pairs
    from gpuyard.cli.train.files import existing_file, read_specs
    from gpuyard.core.domain.errors import WrongInput
    from gpuyard.learn.performance.serving import model, rows

    if not out.parent.is_dir():
        raise WrongInput(f"Folder {out.parent} does not exist")
    known = read_specs(specs, None)
    made = model.trained([part for file in profiles for part in rows.read(existing_file(file), known)], known, seed)
    made.save(out)
    said = {
        "model": str(out),
        "rows": made.rows,
        "gpus": sorted({gpu for one in made.coefficients.values() for gpu in one if gpu}),
    }
    if as_json:
        print_json(said)
    else:
        print_pairs(said.items())
