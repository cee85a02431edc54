"""Energy that was measured: the picture of `profiles/h200-energy.csv`, and plans whose joules were measured.

    .venv/bin/python benchmarks/energy.py --out profiles

`benchmarks/results/plan_energy.json` has four runs of plans on one H200, with the joules that NVML counted. The table compares
them with what the planner computes from the watts of each model and from the data sheet. Needs matplotlib (extra `simulate`).
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from gpuyard.core.domain.board_power import IDLE_PART, known_watts
from gpuyard.learn.profiler.rows import ProfileRow, read

mpl.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[1]
ROWS, RUNS = ROOT / "profiles" / "h200-energy.csv", ROOT / "benchmarks" / "results" / "plan_energy.json"
MODES = {"train": ("#0072B2", "o"), "infer": ("#D55E00", "^")}


def watts(row: ProfileRow) -> float:
    """The power of a step: its energy over its time."""
    assert row.energy_j is not None
    return row.energy_j / (row.step_ms / 1000)


def picture(rows: list[ProfileRow]) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 4.6), layout="constrained")
    for mode, (colour, mark) in MODES.items():
        of = [row for row in rows if row.mode == mode]
        looks: dict[str, Any] = {"s": 18, "c": colour, "marker": mark, "alpha": 0.6, "linewidths": 0, "label": mode}
        left.scatter([row.step_ms for row in of], [row.energy_j for row in of], **looks)
        right.scatter([(row.gpu_ms or 0) / row.step_ms for row in of], [watts(row) for row in of], **looks)
    span = np.array([min(row.step_ms for row in rows), max(row.step_ms for row in rows)])
    for power in (125, 350, 700):
        left.plot(span, power * span / 1000, color="#999999", lw=0.9)
        left.annotate(f"{power} W", (span[1], power * span[1] / 1000), fontsize=8, color="#666666")
    left.set(xscale="log", yscale="log", xlabel="time of a step in ms", ylabel="energy of a step in J")
    left.legend(loc="upper left")
    right.set(xlabel="time of the GPU alone / time of a step", ylabel="power in W", ylim=(0, 800))
    figure.suptitle(f"Energy of steps on an {rows[0].gpu} at its own clock, {rows[0].measured_on}")
    return figure


def computed_joules(run: dict[str, Any], idle_w: float, watts_of: dict[str, float]) -> float:
    """What the planner computes for these times: idle power for the whole run, and more while a call runs."""
    calls: list[tuple[str, float, float]] = run["calls"]
    at_work = sum((watts_of[name.split("/")[1]] - idle_w) * (end - start) for name, start, end in calls)
    return idle_w * float(run["makespan_s"]) + at_work


def render(data: dict[str, Any]) -> str:
    """The table of the manual."""
    sheet = known_watts("H200") or 0.0
    lines = [
        "| plan | makespan, s | switches | measured, J | by the watts of each model | by the data sheet |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for run in data["runs"]:
        joules = run["joules"]
        own = computed_joules(run, data["idle_context_w"], data["watts"])
        by_sheet = computed_joules(run, sheet * IDLE_PART, dict.fromkeys(data["watts"], sheet))
        lines.append(
            f"| {run['plan']} | {run['makespan_s']:.1f} | {run['switches']} | {joules:,.0f} "
            f"| {own:,.0f} ({own / joules - 1:+.1%}) | {by_sheet:,.0f} ({by_sheet / joules - 1:+.1%}) |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for the picture")
    said = parser.parse_args()
    rows = read(ROWS)
    if said.out is not None:
        picture(rows).savefig(said.out / "h200-energy.png", dpi=110)
    power = np.array([watts(row) for row in rows])
    alone = np.array([(row.gpu_ms or 0.0) / row.step_ms for row in rows])
    print(
        f"{len(rows)} rows, {len({row.model for row in rows})} models; watts: {np.quantile(power, (0, 0.5, 1)).round()}"
    )
    print(f"time of the GPU alone / time of a step: quartiles {np.quantile(alone, (0.25, 0.5, 0.75)).round(2)}")
    print(render(json.loads(RUNS.read_text())))


if __name__ == "__main__":
    main()
