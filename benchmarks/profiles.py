"""The three pictures of a file of profiles: time against FLOPs, memory against prediction, power against utilization.

    .venv/bin/python benchmarks/profiles.py profiles/h200.csv --out profiles

Memory is predicted for families that were left out when it was trained (`gpuyard train evaluate --hold-out family`). Needs
matplotlib (extra `simulate`). The colours are those of Okabe and Ito, which the colour-blind can tell apart; every sort has a mark
of its own as well.
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from gpuyard.learn.performance import dataset, evaluation
from gpuyard.learn.performance.calibration import read_peaks
from gpuyard.learn.performance.gpu_specs import shipped
from gpuyard.learn.profiler.rows import ProfileRow, read

mpl.use("Agg")
from matplotlib import pyplot as plt

PRECISIONS = {"fp32": ("#0072B2", "o"), "tf32": ("#E69F00", "s"), "amp": ("#009E73", "^"), "bf16": ("#CC79A7", "D")}
MODES = {"train": ("#0072B2", "o"), "infer": ("#D55E00", "^")}
SIZE = (8.0, 5.2)


def marks(axes: Any, x: Any, y: Any, sorts: list[str], looks: dict[str, tuple[str, str]]) -> None:
    named = np.array(sorts)
    for sort, (colour, mark) in looks.items():
        of = named == sort
        label = f"{sort} ({of.sum()})"
        axes.scatter(x[of], y[of], s=13, c=colour, marker=mark, alpha=0.5, linewidths=0, label=label)


def time_against_flops(rows: list[ProfileRow], peaks: dict[str, float]) -> Any:
    figure, axes = plt.subplots(figsize=SIZE, layout="constrained")
    flops, ms = np.array([row.flops for row in rows]), np.array([row.step_ms for row in rows])
    marks(axes, flops, ms, [row.precision for row in rows], PRECISIONS)
    span = np.geomspace(flops.min(), flops.max(), 50)
    for sort in ("fp32", "tf32", "bf16"):
        peak = peaks[f"{sort}_tflops"]
        axes.plot(span, span / peak / 1e9, color=PRECISIONS[sort][0], lw=1.6, label=f"peak {sort}, {peak:.0f} TFLOPS")
    axes.set(xscale="log", yscale="log", xlabel="FLOPs of a step (counted)", ylabel="time of a step in ms (median)")
    axes.set_ylim(0.6 * ms.min(), 1.6 * ms.max())
    axes.set_title(f"Steps on an {rows[0].gpu}, and the fastest products measured there")
    axes.legend(loc="upper left", markerscale=1.8, fontsize=9)
    return figure


def memory_against_prediction(path: Path) -> Any:
    memory = next(rows for rows in dataset.read(path) if rows.kind == "memory")
    told = evaluation.cross_validated({"memory": memory}, shipped(), "family")
    said = np.concatenate([one.said.middle for one in told])
    real = np.concatenate([one.rows.measured for one in told])
    modes = [mode for one in told for mode in one.rows.words["mode"].tolist()]
    wrong = np.abs(said / real - 1)
    figure, axes = plt.subplots(figsize=(6.4, 6.0), layout="constrained")
    marks(axes, said, real, modes, MODES)
    span = np.array([real.min(), real.max()])
    axes.plot(span, span, color="black", lw=1, label="as predicted")
    axes.plot(span, 1.2 * span, color="black", lw=0.8, ls=":", label="20 % more or less")
    axes.plot(span, span / 1.2, color="black", lw=0.8, ls=":")
    axes.set(xscale="log", yscale="log", aspect="equal")
    axes.set(xlabel="predicted, MiB (family never seen)", ylabel="measured, MiB (reserved by PyTorch at most)")
    axes.set_title(f"Peak memory: mean error {100 * wrong.mean():.1f} %, median {100 * np.median(wrong):.1f} %")
    axes.legend(loc="upper left", markerscale=1.8)
    return figure


def power_against_utilization(rows: list[ProfileRow]) -> Any:
    seen = [row for row in rows if row.power_w is not None and row.utilization is not None]
    figure, axes = plt.subplots(figsize=SIZE, layout="constrained")
    busy, power = (np.array([getattr(row, name) for row in seen]) for name in ("utilization", "power_w"))
    marks(axes, 100 * busy, power, [row.precision for row in seen], PRECISIONS)
    limit = shipped().find(rows[0].gpu).tdp_w
    axes.axhline(limit, color="black", lw=1, ls="--")
    axes.annotate(
        f"limit of the board: {limit:.0f} W", (2, limit), xytext=(0, 3), textcoords="offset points", fontsize=9
    )
    axes.set(
        xlim=(0, 102), ylim=(0, 1.15 * limit), xlabel="utilization in % (NVML: time with a kernel)", ylabel="power in W"
    )
    axes.set_title(f"Power on an {rows[0].gpu}: being busy all the time takes a third of it, or all")
    axes.legend(title="numbers", loc="lower right", markerscale=1.8)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--calibration", type=Path, default=Path("profiles/calibration-h200.json"))
    parser.add_argument("--out", type=Path, default=Path("profiles"), metavar="FOLDER")
    asked = parser.parse_args()
    rows, (peaks,) = read(asked.file), read_peaks(asked.calibration).values()
    pictures = {
        "time": time_against_flops(rows, peaks),
        "memory": memory_against_prediction(asked.file),
        "power": power_against_utilization(rows),
    }
    for name, figure in pictures.items():
        figure.savefig(asked.out / f"{asked.file.stem}-{name}.png", dpi=110)


if __name__ == "__main__":
    main()
