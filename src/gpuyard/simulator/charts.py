"""Charts that compare simulations: completion and waiting times, utilization, fairness between users.

Needs matplotlib, which is imported only here (`pip install 'gpuyard[simulate]'`).
"""

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from gpuyard.simulator.accuracy import by_day, typical_factor
from gpuyard.simulator.energy import PowerSample
from gpuyard.simulator.measures import by_user
from gpuyard.simulator.recorder import TaskTimeline
from gpuyard.simulator.run import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE_INCHES, DOTS_PER_INCH = (8.0, 4.2), 110
LEAST_SECONDS = 1.0
"""Lower end of a logarithmic time axis."""
DAY = 86_400.0
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
"""A color-blind safe palette that also works in print; from the ninth line on the colors repeat with dashed lines."""

DrawChart = Callable[["Axes", Sequence[Result]], None]


def charts_of(results: Sequence[Result]) -> dict[str, bytes]:
    """Return every chart for which there is data, as PNG by name."""
    return {
        name: _png(title, draw, results)
        for name, (title, draw) in _PICTURES.items()
        if name not in _WHERE or any(_WHERE[name](result) for result in results)
    }


def titles() -> dict[str, str]:
    """Return the title of each chart by name."""
    return {name: title for name, (title, _) in _PICTURES.items()}


def _png(title: str, draw: DrawChart, results: Sequence[Result]) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.grid(alpha=0.3)
    draw(axes, results)
    axes.legend(fontsize="small")
    page = BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(page, format="png", dpi=DOTS_PER_INCH)
    return page.getvalue()


def _style(place: int) -> dict[str, Any]:
    return {"color": COLORS[place % len(COLORS)], "linestyle": "-" if place < len(COLORS) else "--"}


def _share(axes: "Axes", results: Sequence[Result], seconds: Callable[[TaskTimeline], float]) -> None:
    """Plot the cumulative distribution: for each duration, the share of jobs that took no longer."""
    for place, result in enumerate(results):
        values = sorted(max(LEAST_SECONDS, seconds(life)) for life in result.recorder.lives.over())
        shares = [(rank + 1) / len(values) for rank in range(len(values))]
        axes.plot(values, shares, label=result.policy_variant.name, **_style(place))
    axes.set_xscale("log")
    axes.set_xlabel("seconds")
    axes.set_ylabel("share of jobs")


def _jct(axes: "Axes", results: Sequence[Result]) -> None:
    _share(axes, results, lambda life: life.jct)


def _queueing(axes: "Axes", results: Sequence[Result]) -> None:
    _share(axes, results, lambda life: life.queued)


def _over_time(axes: "Axes", results: Sequence[Result], column: int, label: str) -> None:
    for place, result in enumerate(results):
        line = result.recorder.line
        axes.step(
            [(point[0] - line[0][0]) / DAY for point in line], [point[column] for point in line],
            where="post", linewidth=0.9, label=result.policy_variant.name, **_style(place),
        )  # fmt: skip
    axes.set_xlabel("days")
    axes.set_ylabel(label)


def _in_use(axes: "Axes", results: Sequence[Result]) -> None:
    _over_time(axes, results, 1, "GPUs in use")


def _waiting(axes: "Axes", results: Sequence[Result]) -> None:
    _over_time(axes, results, 2, "waiting jobs")
    axes.set_yscale("symlog")


def _fairness(axes: "Axes", results: Sequence[Result]) -> None:
    """Plot each user's mean slowdown, smallest first."""
    for place, result in enumerate(results):
        slowdowns = sorted(by_user(result.recorder.lives.over()).values())
        axes.plot(range(1, len(slowdowns) + 1), slowdowns, label=result.policy_variant.name, **_style(place))
    axes.set_yscale("log")
    axes.set_xlabel("users, shortest wait first")
    axes.set_ylabel("mean slowdown")


def _accuracy(axes: "Axes", results: Sequence[Result]) -> None:
    """Plot for each day the error factor of the predictions made on it."""
    for place, result in enumerate(results):
        if days := by_day(result.forecasts):
            factors = [typical_factor(forecasts) for _, forecasts in days]
            axes.plot([day for day, _ in days], factors, label=result.policy_variant.name, **_style(place))
    axes.set_ylim(bottom=1.0)
    axes.set_xlabel("days")
    axes.set_ylabel("typical factor")


def _metered(
    axes: "Axes", results: Sequence[Result], label: str, value: Callable[[PowerSample], float], *, steps: bool = True
) -> None:
    for place, result in enumerate(results):
        if result.meter is not None:
            points = result.meter.line.points
            axes.plot(
                [(at - points[0][0]) / DAY for at, _ in points], [value(now) for _, now in points],
                drawstyle="steps-post" if steps else "default", linewidth=0.9, label=result.policy_variant.name, **_style(place),
            )  # fmt: skip
    axes.set_xlabel("days")
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)


def _nodes(axes: "Axes", results: Sequence[Result]) -> None:
    _metered(axes, results, "nodes up", lambda now: now.nodes_up)


def _power(axes: "Axes", results: Sequence[Result]) -> None:
    _metered(axes, results, "kW", lambda now: now.watts / 1000)


def _cost(axes: "Axes", results: Sequence[Result]) -> None:
    _metered(axes, results, "cost so far", lambda now: now.cost, steps=False)


_PICTURES: dict[str, tuple[str, DrawChart]] = {
    "jct": ("From submission to end", _jct),
    "queueing": ("Time without GPUs", _queueing),
    "waiting": ("Waiting jobs", _waiting),
    "in_use": ("GPUs in use", _in_use),
    "fairness": ("Waiting time of users", _fairness),
    "accuracy": ("Errors of predicted run times", _accuracy),
    "nodes": ("Available nodes", _nodes),
    "power": ("Power", _power),
    "cost": ("Cost of the nodes", _cost),
}
_WHERE: dict[str, Callable[[Result], bool]] = {
    "accuracy": lambda result: bool(result.forecasts),
    "nodes": lambda result: result.meter is not None,
    "power": lambda result: result.meter is not None,
    "cost": lambda result: result.meter is not None and result.meter.cost > 0,
}
"""Conditions under which a chart has data to show; other charts are always drawn."""
