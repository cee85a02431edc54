"""Charts that compare simulations: completion and waiting times, utilization, fairness between users.

Needs matplotlib, which is imported only here (`pip install 'gpuyard[simulate]'`).
"""

from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from gpuyard.simulator.accuracy import by_day, typical_factor
from gpuyard.simulator.energy import PowerSample
from gpuyard.simulator.measures import by_user
from gpuyard.simulator.recorder import TaskTimeline
from gpuyard.simulator.run import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

SIZE_INCHES, DOTS_PER_INCH = (8.0, 4.2), 110
LEAST_SECONDS = 1.0
"""Lower end of a logarithmic time axis."""
HOUR, DAY = 3_600.0, 86_400.0
HOURS_BELOW = 2 * DAY
"""A time axis that is shorter has hours instead of days."""
FEW = 10
"""An axis of counts below this has ticks only at whole numbers."""
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

    page = BytesIO()
    figure = _figure(title, draw, results)
    FigureCanvasAgg(figure)
    figure.savefig(page, format="png", dpi=DOTS_PER_INCH)
    return page.getvalue()


def figure_of(name: str, results: Sequence[Result]) -> "Figure":
    """Return one chart by name, to be drawn or examined."""
    return _figure(*_PICTURES[name], results)


def _figure(title: str, draw: DrawChart, results: Sequence[Result]) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.grid(alpha=0.3)
    draw(axes, results)
    axes.legend(fontsize="small")
    return figure


def _style(place: int, points: int) -> dict[str, Any]:
    """Return the style of the line at this place; a line of one point is a marker, because it would be invisible."""
    style = {"color": COLORS[place % len(COLORS)], "linestyle": "-" if place < len(COLORS) else "--"}
    return {**style, "marker": "o"} if points == 1 else style


def _whole_numbers(axis: "Axis", most: float) -> None:
    """Put the ticks of an axis of small counts at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    if most < FEW:
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _time_axis(axes: "Axes", lines: Iterable[Sequence[float]]) -> float:
    """Label the time axis for these series of instants, and return the seconds of its unit."""
    longest = max((instants[-1] - instants[0] for instants in lines if instants), default=0.0)
    unit, name = (HOUR, "hours") if longest < HOURS_BELOW else (DAY, "days")
    axes.set_xlabel(name)
    return unit


def _share(axes: "Axes", results: Sequence[Result], seconds: Callable[[TaskTimeline], float]) -> None:
    """Plot the cumulative distribution: for each duration, the share of jobs that took no longer."""
    for place, result in enumerate(results):
        values = sorted(max(LEAST_SECONDS, seconds(life)) for life in result.recorder.lives.over())
        shares = [(rank + 1) / len(values) for rank in range(len(values))]
        axes.plot(values, shares, label=result.policy_variant.name, **_style(place, len(values)))
    axes.set_xscale("log")
    axes.set_xlabel("seconds")
    axes.set_ylabel("share of jobs")


def _jct(axes: "Axes", results: Sequence[Result]) -> None:
    _share(axes, results, lambda life: life.jct)


def _queueing(axes: "Axes", results: Sequence[Result]) -> None:
    _share(axes, results, lambda life: life.queued)


def _over_time(axes: "Axes", results: Sequence[Result], column: int, label: str) -> None:
    unit = _time_axis(axes, ([point[0] for point in result.recorder.line] for result in results))
    for place, result in enumerate(results):
        line = result.recorder.line
        axes.step(
            [(point[0] - line[0][0]) / unit for point in line], [point[column] for point in line],
            where="post", linewidth=0.9, label=result.policy_variant.name, **_style(place, len(line)),
        )  # fmt: skip
    axes.set_ylabel(label)


def _most(results: Sequence[Result], column: int) -> float:
    return max((point[column] for result in results for point in result.recorder.line), default=0.0)


def _in_use(axes: "Axes", results: Sequence[Result]) -> None:
    _over_time(axes, results, 1, "GPUs in use")
    _whole_numbers(axes.yaxis, _most(results, 1))


def _waiting(axes: "Axes", results: Sequence[Result]) -> None:
    _over_time(axes, results, 2, "waiting jobs")
    most = _most(results, 2)
    if most >= FEW:
        axes.set_yscale("symlog")
    _whole_numbers(axes.yaxis, most)


def _fairness(axes: "Axes", results: Sequence[Result]) -> None:
    """Plot each user's mean slowdown, smallest first."""
    users = 0
    for place, result in enumerate(results):
        slowdowns = sorted(by_user(result.recorder.lives.over()).values())
        users = max(users, len(slowdowns))
        axes.plot(
            range(1, len(slowdowns) + 1), slowdowns, label=result.policy_variant.name, **_style(place, len(slowdowns))
        )
    axes.set_yscale("log")
    _whole_numbers(axes.xaxis, users)
    axes.set_xlabel("users, shortest wait first")
    axes.set_ylabel("mean slowdown")


def _accuracy(axes: "Axes", results: Sequence[Result]) -> None:
    """Plot for each day the error factor of the predictions made on it."""
    last = 0
    for place, result in enumerate(results):
        if days := by_day(result.forecasts):
            factors = [typical_factor(forecasts) for _, forecasts in days]
            axes.plot([day for day, _ in days], factors, label=result.policy_variant.name, **_style(place, len(days)))
            last = max(last, days[-1][0])
    _whole_numbers(axes.xaxis, last)
    axes.set_ylim(bottom=1.0)
    axes.set_xlabel("days")
    axes.set_ylabel("typical factor")


def _metered(
    axes: "Axes", results: Sequence[Result], label: str, value: Callable[[PowerSample], float], *, steps: bool = True
) -> None:
    metered = [result.meter for result in results if result.meter is not None]
    unit = _time_axis(axes, ([at for at, _ in meter.line.points] for meter in metered))
    for place, result in enumerate(results):
        if result.meter is not None:
            points = result.meter.line.points
            axes.plot(
                [(at - points[0][0]) / unit for at, _ in points], [value(now) for _, now in points],
                drawstyle="steps-post" if steps else "default", linewidth=0.9, label=result.policy_variant.name,
                **_style(place, len(points)),
            )  # fmt: skip
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)


def _nodes(axes: "Axes", results: Sequence[Result]) -> None:
    _metered(axes, results, "nodes up", lambda now: now.nodes_up)
    meters = (result.meter for result in results if result.meter is not None)
    _whole_numbers(axes.yaxis, max((now.nodes_up for meter in meters for _, now in meter.line.points), default=0))


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
