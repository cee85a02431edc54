"""Draws a chart as a matplotlib figure; the caller saves it, as PNG or SVG."""

from textwrap import fill
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gpuyard.plan.planner.gantt.bars import Bars, Chart, Panel
from gpuyard.plan.planner.gantt.colors import color, lighter

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_INCHES: Final = 12.0
MOST_NAMED: Final = 14
"""The most models in the legend."""
LINE: Final = 105
"""The most characters of a title in a line, so that it fits into the width."""
LONGEST_NAME: Final = 60
"""Of a model in the legend, in characters."""
SWITCH, IDLE, PATH, BOUND = "#666666", "#f2f2f2", "#000000", "#c00000"


def figure(chart: Chart) -> "Figure":
    """Draw the panels one below the other on one time axis."""
    from matplotlib.figure import Figure

    lanes = len(chart.problem.gpus)
    height = min(5.0, 1.2 + 0.28 * lanes)
    names = _legend(chart)
    columns = _columns([str(one.get_label()) for one in names])
    below = 0.2 * -(-len(names) // columns)
    drawn = Figure(figsize=(WIDTH_INCHES, height * len(chart.panels) + 0.5 + below), layout="constrained")
    drawn.suptitle(fill(chart.problem.name, LINE), fontsize="medium")
    every = drawn.subplots(len(chart.panels), sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(every, chart.panels, strict=True):
        _panel(axes, chart, panel, lanes)
    every[-1].set_xlabel("seconds")
    drawn.legend(handles=names, loc="outside lower center", ncols=columns, fontsize="small", frameon=False)
    return drawn


def _columns(names: list[str]) -> int:
    """Return how many columns of the legend fit into the width, by its longest name."""
    inches = 0.7 + 0.085 * max(map(len, names))
    return max(1, min(8, len(names), int(WIDTH_INCHES / inches)))


def _panel(axes: "Axes", chart: Chart, panel: Panel, lanes: int) -> None:
    axes.set_title(fill(chart.title(panel), LINE), fontsize="medium", loc="left")
    axes.set_facecolor(IDLE)
    _rectangles(axes, chart, panel.bars, lanes)
    along = [at for step in panel.path for at in (step.begin, step.end)]
    axes.plot(along, [step.gpu for step in panel.path for _ in range(2)], color=PATH, linewidth=1.1)
    if chart.lower_bound_s is not None:
        axes.axvline(chart.lower_bound_s, color=BOUND, linestyle="--", linewidth=1.2)
    axes.set_xlim(0, chart.until * 1.01)
    axes.set_ylim(lanes - 0.5, -0.5)
    axes.set_ylabel("GPU")
    if lanes <= 24:
        axes.set_yticks(range(lanes), [str(gpu.id) for gpu in chart.problem.gpus])


def _rectangles(axes: "Axes", chart: Chart, bars: Bars, lanes: int) -> None:
    """Draw one collection per style and one path of all switches: a thousand times faster than one object per bar."""
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    half = 0.42 if lanes <= 40 else 0.5
    # With preloading a load may run beside calls: it takes the lower third of the lane (the axis points down).
    low = np.where(bars.switch & chart.problem.preload, bars.gpu + half / 3, bars.gpu - half)
    high = bars.gpu + half
    shorter = np.where(bars.switch & chart.problem.preload, chart.until / 1000, 0.0)  # one load often follows another
    left, right = bars.begin, np.maximum(bars.end - shorter, bars.begin + chart.until / 4000)
    corners = np.stack([np.stack(c, axis=1) for c in ((left, low), (right, low), (right, high), (left, high))], axis=1)
    for model in range(len(chart.problem.models)):
        for level in np.unique(bars.level):
            which = (bars.model == model) & ~bars.switch & (bars.level == level)
            axes.add_collection(
                PolyCollection(corners[which], facecolors=lighter(color(model), int(level)), linewidths=0)
            )
    if bars.switch.any():
        switches = Path.make_compound_path_from_polys(corners[bars.switch])
        axes.add_patch(PathPatch(switches, facecolor="#ffffff", edgecolor=SWITCH, hatch="//////", linewidth=0))


def _short(name: str) -> str:
    """Return a name without its middle if it is too long: names of models differ at their ends."""
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[:half]}…{name[1 - half :]}"


def _legend(chart: Chart) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    models = chart.problem.models
    names: list[Any] = [Patch(facecolor=color(i), label=_short(m.name)) for i, m in enumerate(models[:MOST_NAMED])]
    if len(models) > MOST_NAMED:
        names.append(Patch(facecolor="none", label=f"and {len(models) - MOST_NAMED} more models"))
    names += [
        Patch(facecolor="#ffffff", edgecolor=SWITCH, hatch="//////", label="loading a model"),
        Patch(facecolor=IDLE, edgecolor="#bbbbbb", label="idle"),
        Line2D([], [], color=PATH, linewidth=1.1, label="critical path"),
    ]
    if chart.lower_bound_s is not None:
        names.append(Line2D([], [], color=BOUND, linestyle="--", label="lower bound"))
    return names
