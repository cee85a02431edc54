"""Start the process that counts a model, limit its time, and read its answer."""

import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.error_location import shortened
from gpuyard.input.files import is_file, is_folder, shown_path
from gpuyard.learn.performance.partition.counts import Counts, ModelPart, parts

DTYPES = {"float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool"}
INPUT = re.compile(r"(\d+(?:x\d+)*)(?::(\w+))?")


def read_input(text: str) -> tuple[list[int], str]:
    """Parse a shape and a type, such as 32x3x224x224 or 8x1024:int64."""
    found = INPUT.fullmatch(text)
    if found is None or 0 in (shape := [int(part) for part in found[1].split("x")]):
        raise WrongInput(
            f"{shortened(text)!r} is not an input; use its shape and type, such as 32x3x224x224 or 8x1024:int64."
        )
    dtype = found[2] or "float32"
    if dtype not in DTYPES:
        raise WrongInput(f"{shortened(dtype)!r} is not an input type; known types: {', '.join(sorted(DTYPES))}.")
    return shape, dtype


class ModelPlace(NamedTuple):
    """Where a model is defined."""

    folder: Path
    module: str
    name: str


def locate(path: Path, model: str) -> ModelPlace:
    """Find a model of a file, or `module:Name` of a module next to it."""
    if not is_file(path) and not is_folder(path):
        raise WrongInput(f"{shown_path(path)}: no such file or folder.")
    module, _, name = model.rpartition(":")
    folder = path if path.is_dir() else path.parent
    module = module or ("" if path.is_dir() else path.stem)
    if not module or not re.fullmatch(r"[\w.]+", module) or not name.isidentifier():
        raise WrongInput(
            f"{shortened(model)!r} is not the name of a model; use Name, or module:Name for one of another file."
        )
    return ModelPlace(folder.resolve(), module, name)


class Counted(msgspec.Struct, frozen=True):
    """A counted model, ready to be divided."""

    name: str
    batch: int
    parts: list[ModelPart]
    shared: tuple[tuple[str, str], ...]


class _Answer(msgspec.Struct, frozen=True):
    few: Counts
    many: Counts


def counted(
    path: Path, model: str, inputs: Sequence[str], *, training: bool, python: str, limit_seconds: float
) -> Counted:
    """Count a model of a file, or `module:Name` of a module next to it, in a separate process."""
    folder, module, name = locate(path, model)
    if not inputs:
        raise WrongInput("Give the shape of each input of the model, such as --input 32x3x224x224.")
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "answer.json"
        asked = {
            "folder": str(folder), "module": module, "name": name, "inputs": [read_input(text) for text in inputs],
            "spoken": " ".join(inputs), "training": training, "answer": str(file),
        }  # fmt: skip
        try:
            done = subprocess.run(  # noqa: S603 - the user named the program and the model
                [python, "-m", f"{__package__}.count_model"],
                input=json.dumps(asked), capture_output=True, text=True, timeout=limit_seconds, check=False, cwd=folder,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise WrongInput(
                f"Counting {model} took longer than {limit_seconds:g} s; allow more with --limit."
            ) from None
        except OSError as error:
            raise WrongInput(f"{shown_path(python)}: {error.strerror}.") from None
        if not file.exists():
            last = done.stderr.strip().splitlines()[-1:] or [f"it ended with code {done.returncode}"]
            raise WrongInput(f"{model} could not be counted: {last[0]}.")
        content = file.read_bytes()
    said = msgspec.json.decode(content)
    if "error" in said:
        sentence = said["error"] if said["error"].endswith((".", "?")) else f"{said['error']}."
        raise WrongInput(f"{shown_path(path)}: {sentence}")
    answer, batch = msgspec.convert(said, _Answer), read_input(inputs[0])[0][0]
    return Counted(name, batch, parts(answer.few, answer.many, batch, 2 * batch), answer.few.shared)
