"""Read the input files of commands that train or predict, with errors for missing files."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.core.domain.errors import WrongInput

if TYPE_CHECKING:
    from gpuyard.learn.performance.dataset import ProfileRows
    from gpuyard.learn.performance.gpu_specs import GpuSpecs

SpecsFile = Annotated[Path | None, typer.Option("--specs", metavar="FILE", help="File with the properties of GPUs (default: the one that is shipped).")]  # fmt: skip
PeaksFile = Annotated[Path | None, typer.Option("--calibration", metavar="FILE", help="Peaks measured by 'gpuyard profile calibrate', instead of the data sheet.")]  # fmt: skip
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of all random numbers.")]
ThreadsOption = Annotated[int, typer.Option("--threads", metavar="N", min=0, help="CPU cores to use (0: all).")]
TargetOption = Annotated[str | None, typer.Option("--target", metavar="TARGET", help="duration, memory or utilization, if the files contain several (default: the first one they contain).")]  # fmt: skip

KEPT_BACK = 0.2
ENOUGH_ALONE = 100
MOST_TASKS = 1_000_000

UNITS = {"duration": "ms", "memory": "MiB", "utilization": "part"}


def read_specs(specs: Path | None, peaks: Path | None) -> "GpuSpecs":
    """Read the GPU specifications, and replace their peaks by measured ones if given."""
    from gpuyard.learn.performance import gpu_specs
    from gpuyard.learn.performance.calibration import read_peaks

    try:
        found = gpu_specs.shipped() if specs is None else gpu_specs.read_specs(existing_file(specs))
    except UnicodeDecodeError:
        raise WrongInput(f"{specs} is not text in UTF-8") from None
    return found if peaks is None else found.with_peaks(read_peaks(existing_file(peaks)))


def read_profiles(files: list[Path], more: "Iterable[ProfileRows]" = ()) -> dict[str, "ProfileRows"]:
    """Read the profile rows of all files, by kind."""
    from gpuyard.learn.performance import dataset

    return dataset.merge_rows([*(rows for file in files for rows in dataset.read(existing_file(file))), *more])


@dataclass(frozen=True, slots=True)
class EndedTasks:
    """Training rows from the ended tasks of a cluster."""

    rows: "tuple[ProfileRows, ...]"
    tasks: int
    """The number of tasks in the rows."""
    kept_back: int
    """The number of later tasks that are left out; a scheduler uses them to compare the model with its own."""
    seen_until: float


def read_journal(folder: Path, specs: "GpuSpecs", *, alone: bool) -> EndedTasks:
    """Read the ended tasks that declared their work, without the newest fifth. The cluster may be running."""
    from gpuyard.learn.performance.ended_tasks import ended_runs, rows_of
    from gpuyard.live.control_plane.stores.archive import newest_ended

    ran = ended_runs(newest_ended(existing_file(folder / "archive.sqlite"), MOST_TASKS))
    trained = ran[: len(ran) - int(KEPT_BACK * len(ran))]
    rows = rows_of(trained, specs)
    if not rows or (alone and len(trained) < ENOUGH_ALONE):
        least = f"; without --profiles, {ENOUGH_ALONE} are needed" if rows else ""
        raise WrongInput(
            f"{folder} contains {len(trained)} successful tasks that declared their workload and ran "
            f"long enough on one known GPU{least}"
        )
    return EndedTasks(tuple(rows.values()), len(trained), len(ran) - len(trained), trained[-1].ended_at)


def rows_of_kind(kinds: dict[str, "ProfileRows"], target: str | None) -> dict[str, "ProfileRows"]:
    """Return the rows of one target; without a name, those of the first target that the files contain."""
    from gpuyard.learn.performance.rooflines import ROOFLINES

    if target is not None and target not in UNITS:
        raise WrongInput(f"--target must be {', '.join(UNITS)}, not {target!r}")
    for one in UNITS if target is None else [target]:
        found = {kind: rows for kind, rows in kinds.items() if ROOFLINES[kind].unit == UNITS[one]}
        if found:
            return found
    raise WrongInput(f"These files contain no {target}")


def existing_file(file: Path) -> Path:
    """Return the path if the file exists; otherwise raise an error."""
    if not file.is_file():
        raise WrongInput(f"File {file} does not exist.")
    return file
