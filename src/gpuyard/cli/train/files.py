"""Files that the commands about predictions read, and the errors when they are missing."""

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
KindOption = Annotated[str | None, typer.Option("--what", metavar="WHAT", help="duration, memory or utilization, if the files contain several (default: the first one they contain).")]  # fmt: skip

KEPT_BACK = 0.2
ENOUGH_ALONE = 100
MOST_TASKS = 1_000_000

UNITS = {"duration": "ms", "memory": "MiB", "utilisation": "part"}


def read_specs(specs: Path | None, peaks: Path | None) -> "GpuSpecs":
    """The GPUs, with what was measured on them."""
    from gpuyard.learn.performance import gpu_specs
    from gpuyard.learn.performance.calibration import read_peaks

    try:
        found = gpu_specs.shipped() if specs is None else gpu_specs.read_specs(there(specs))
    except UnicodeDecodeError:
        raise WrongInput(f"{specs} is not text in UTF-8") from None
    return found if peaks is None else found.with_peaks(read_peaks(there(peaks)))


def read_profiles(files: list[Path], more: "Iterable[ProfileRows]" = ()) -> dict[str, "ProfileRows"]:
    """All rows, by kind."""
    from gpuyard.learn.performance import dataset

    return dataset.merge_rows([*(rows for file in files for rows in dataset.read(there(file))), *more])


@dataclass(frozen=True, slots=True)
class EndedTasks:
    """What the ended tasks of a cluster tell."""

    rows: "tuple[ProfileRows, ...]"
    tasks: int
    """How many of them are in it."""
    kept_back: int
    """So many later ones are not: a scheduler judges by them whether the model is better than its own."""
    seen_until: float


def read_journal(folder: Path, specs: "GpuSpecs", *, alone: bool) -> EndedTasks:
    """What tasks took that said what they compute, but for the newest fifth of them. The cluster may be running."""
    from gpuyard.learn.performance.ended_tasks import ended_runs, rows_of
    from gpuyard.live.control_plane.stores.archive import newest_ended

    ran = ended_runs(newest_ended(there(folder / "archive.sqlite"), MOST_TASKS))
    learnt = ran[: len(ran) - int(KEPT_BACK * len(ran))]
    rows = rows_of(learnt, specs)
    if not rows or (alone and len(learnt) < ENOUGH_ALONE):
        least = f"; without --profiles, {ENOUGH_ALONE} are needed" if rows else ""
        raise WrongInput(
            f"{folder} contains {len(learnt)} successful tasks that declared their workload and ran "
            f"long enough on one known GPU{least}"
        )
    return EndedTasks(tuple(rows.values()), len(learnt), len(ran) - len(learnt), learnt[-1].ended_at)


def only(kinds: dict[str, "ProfileRows"], what: str | None) -> dict[str, "ProfileRows"]:
    """Those that are about this."""
    from gpuyard.learn.performance.rooflines import ROOFLINES

    if what is not None and what not in UNITS:
        raise WrongInput(f"--what must be {', '.join(UNITS)}, not {what!r}")
    for one in UNITS if what is None else [what]:
        found = {kind: rows for kind, rows in kinds.items() if ROOFLINES[kind].unit == UNITS[one]}
        if found:
            return found
    raise WrongInput(f"These files contain no {what}")


def there(file: Path) -> Path:
    """The file, if it is one."""
    if not file.is_file():
        raise WrongInput(f"File {file} does not exist.")
    return file
