"""Files of problems and plans, opened and written: plain, or packed where the name ends in .gz."""

import os
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.core.domain.errors import WrongInput

if TYPE_CHECKING:
    from gpuyard.plan.planner.files import PlanFile
    from gpuyard.plan.planner.problem import Problem

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="Models, GPUs, workflows and requests; may be packed (.gz).")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="What chance begins with.")]
Gpus = Annotated[
    int | None,
    typer.Option("--gpus", metavar="N", min=1, max=1_000_000, help="So many GPUs instead of those in the file."),
]


class Residents(StrEnum):
    """How many models a GPU may hold."""

    ONE = "one"
    MANY = "many"


HowMany = Annotated[
    Residents | None,
    typer.Option(
        "--residents", help="A GPU holds one model, or many while its memory lasts (default: as the file says)."
    ),
]


class WrongFile(WrongInput):
    """The file can not be used."""


def open_problem(path: Path, gpus: int | None = None, residents: Residents | None = None) -> "Problem":
    """The problem in a file; what is wrong with it is said with the file's name, which is its name if it has none."""
    from gpuyard.plan.planner.read import read_problem

    try:
        problem = read_problem(_read(path), gpus=gpus)
    except WrongInput as error:
        raise WrongFile(f"{path}: {error}") from None
    many = problem.many_residents if residents is None else residents is Residents.MANY
    return replace(problem, name=problem.name or path.name.partition(".")[0], many_residents=many)


def open_plan(path: Path, problem: "Problem", *, or_actual: bool = False) -> "PlanFile":
    """A plan for this problem; or what became of one, where that is as welcome."""
    from gpuyard.plan.planner.files import read_plan

    try:
        read = read_plan(_read(path), problem)
        if read.is_actual and not or_actual:
            raise WrongInput(
                "This is no plan but what became of one, with the times that were measured: "
                "`gpuyard plan draw` shows it."
            )
    except WrongInput as error:
        raise WrongFile(f"{path}: {error}") from None
    return read


def _read(path: Path) -> bytes:
    import gzip
    import zlib

    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise WrongInput("The packed file is cut off or damaged.") from None
    except OSError as error:
        raise WrongInput(f"{error.strerror}.") from None


def can_be_written(*paths: Path | None, beside: Sequence[Path | None]) -> None:
    """Before anything is planned: what is to be written has a place to be in, and takes that of nobody else.

    `beside`: what is read.
    """
    taken = {path.resolve() for path in beside if path is not None}
    for path in paths:
        if path is None:
            continue
        if why := _why_not(path):
            raise WrongFile(f"{path} can not be written: {why}.")
        if path.resolve() in taken:
            raise WrongFile(f"{path} is named twice; what is written would replace what is there.")
        taken.add(path.resolve())


def _why_not(path: Path) -> str | None:
    if path.is_dir():
        return "it is a folder"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    return None if os.access(path if path.exists() else path.parent, os.W_OK) else "Permission denied"


def write(path: Path, content: bytes) -> None:
    """Packed where the name says so."""
    import gzip

    try:
        path.write_bytes(gzip.compress(content, compresslevel=6, mtime=0) if path.suffix == ".gz" else content)
    except OSError as error:
        raise WrongFile(f"{path} can not be written: {_why_not(path) or error.strerror}.") from None
