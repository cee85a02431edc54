"""What a cluster gains by learning from its own tasks.

    .venv/bin/python benchmarks/closed_loop.py [--profiles ../shared/profiles] [--seeds 3] [--picture FILE.png]

A cluster gets an unmeasured GPU: an H200, with the rows of profiles/h200.csv as what its tasks really take. The model
before is trained on the public image models (timm, three GPUs, no H200). Then 50, 200 and 800 tasks end, and are trained on
as the archive stores them: run time over steps, with 15 s in which each program starts, and the memory that the driver saw.
Scored are 400 other rows, the same for all counts. The simple alternative is one factor: by which the model before was wrong on those
tasks, at the median.

Each seed draws other rows for both. The model is trained with seed 1 throughout.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import fmean

import numpy as np

from gpuyard.core.domain.workload import WorkloadSpec
from gpuyard.learn.performance import dataset, gpu_specs
from gpuyard.learn.performance.dataset import ProfileRows
from gpuyard.learn.performance.ended_tasks import EndedRun, rows_of
from gpuyard.learn.performance.model import PerformanceModel
from gpuyard.learn.performance.query import CUDA_CONTEXT_MIB
from gpuyard.learn.profiler.rows import ProfileRow, read

ROOT = Path(__file__).parents[1]
COUNTS = (50, 200, 800)
JUDGED = 400
RUN_SECONDS, START_SECONDS = 600.0, 15.0
MEASURES = {"network": "run time", "memory": "memory"}


def task_of(row: ProfileRow, start_seconds: float) -> EndedRun:
    """A task of ten minutes that does what was measured."""
    steps = max(2, round(RUN_SECONDS * 1e3 / row.step_ms))
    major, minor = row.torch.split(".")[:2]
    work = WorkloadSpec(
        model=row.model, mode=row.mode, batch=row.batch, precision=row.precision, compiled=row.compiled, size=row.size,
        family=row.family, steps=steps, torch=100.0 * int(major) + int(minor),
    )  # fmt: skip
    seconds = start_seconds + steps * row.step_ms / 1e3
    busy = None if row.utilization is None else 100.0 * row.utilization
    return EndedRun(work, row.gpu, seconds, 0.0, row.memory_nvml_mib, busy)


def errors(
    model: PerformanceModel, judged: dict[str, ProfileRows], factor: float = 1.0
) -> dict[str, tuple[float, float]]:
    """Mean error and part within the range, by kind; memory with CUDA's own part, as a cluster counts it."""
    found = {}
    for kind in MEASURES:
        rows, more = judged[kind], CUDA_CONTEXT_MIB if kind == "memory" else 0.0
        if kind not in model.kind_models:
            continue
        said = model.predict(rows)
        scale = factor if kind == "network" else 1.0
        real, likely = rows.measured + more, said.middle * scale + more
        inside = (said.low * scale <= rows.measured) & (rows.measured <= said.high * scale)
        found[kind] = (float(np.mean(np.abs(likely / real - 1.0))), float(inside.mean()))
    return found


def one_seed(
    seed: int, before: dict[str, ProfileRows], base: PerformanceModel, rows: Sequence[ProfileRow]
) -> dict[str, dict[str, tuple[float, float]]]:
    """Errors by the number of training tasks."""
    drawn = list(rows)
    Random(seed).shuffle(drawn)
    judged = rows_of([task_of(row, 0.0) for row in drawn[:JUDGED]], base.specs)
    found = {"0": errors(base, judged)}
    for count in COUNTS:
        ended = rows_of([task_of(row, START_SECONDS) for row in drawn[JUDGED : JUDGED + count]], base.specs)
        network = ended["network"]
        factor = float(np.median(network.measured / base.predict(network).middle))
        found[f"{count}, one factor"] = errors(base, judged, factor)
        kinds = dataset.merge_rows([*before.values(), *ended.values()])
        found[str(count)] = errors(PerformanceModel.trained(kinds, base.specs), judged)
    return found


def draw(path: Path, table: dict[str, dict[str, tuple[float, float]]]) -> None:
    """Error against ended tasks."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    for kind, label in MEASURES.items():
        points = [(int(name), 100 * table[name][kind][0]) for name in ("0", *map(str, COUNTS)) if kind in table[name]]
        axes.plot(range(len(points)), [error for _, error in points], marker="o", label=label)
    factors = [100 * table[f"{count}, one factor"]["network"][0] for count in COUNTS]
    axes.plot(
        range(1, len(COUNTS) + 1), factors, marker="s", linestyle="--", color="grey", label="run time, one factor"
    )
    axes.set_xticks(range(len(COUNTS) + 1), ["0", *map(str, COUNTS)])
    axes.set_xlabel("ended tasks of this cluster used for training")
    axes.set_ylabel("mean error, %")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", type=Path, default=ROOT.parent / "shared" / "profiles")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--picture", type=Path)
    asked = parser.parse_args()
    files = [asked.profiles / name for name in ("timm_models.csv.gz", "schedtune_peak_memory.csv")]
    if missing := [file for file in files if not file.is_file()]:
        print(f"There is no file {missing[0]}; name its folder with --profiles.", file=sys.stderr)
        return 2
    began = time.process_time()
    before = dataset.merge_rows([rows for file in files for rows in dataset.read(file)])
    base = PerformanceModel.trained(before, gpu_specs.shipped())
    rows = [row for row in read(ROOT / "profiles" / "h200.csv") if row.memory_nvml_mib is not None]
    found = [one_seed(seed, before, base, rows) for seed in range(1, asked.seeds + 1)]
    table = {
        name: {
            kind: (fmean(one[name][kind][0] for one in found), fmean(one[name][kind][1] for one in found))
            for kind in found[0][name]
        }
        for name in found[0]
    }
    print("| ended tasks used for training | run time: mean error | in the range | memory: mean error | in the range |")
    print("|---|---|---|---|---|")
    for name, by_kind in table.items():
        cells = [f"{100 * value:.1f} %" for kind in MEASURES for value in by_kind.get(kind, (np.nan, np.nan))]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(f"{time.process_time() - began:.0f} s of one core, {asked.seeds} seeds", file=sys.stderr)
    if asked.picture:
        draw(asked.picture, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
