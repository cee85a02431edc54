"""The Pareto front: plans that no other plan dominates, and the choice among them.

The objectives are the makespan, the balance of the GPUs (utilization of the busiest minus that of the least busy), the
switches, and the energy if it is known. The choice depends on how idle the GPUs are. If none is idle, others wait for them
and time is what is scarce: the shortest plan is chosen. The more are idle, the less a longer plan keeps anyone waiting,
and what it saves counts:

    idle rate r           weight of      makespan    switches    balance    energy
    0  (all busy)                        1           0           0          0
    1  (all idle)                        1/4         1/4         1/4        1/4
    between                              1 - 3r/4    r/4         r/4        r/4     (no energy: its weight goes to balance)

    cost of a plan  =  sum over the objectives of  weight × (value - least) / (most - least)

where `least` and `most` are those of the front. Every objective is measured by its own span on the front, from 0 for the
best plan in it to 1 for the worst. The plan with the least cost is chosen; if all are equal in an objective, that one does
not count. The idle rate is the given one, for example that of a cluster; otherwise that of the shortest plan itself: the
fraction of the GPUs' time in which they neither run a call nor load a model.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from gpuyard.plan.planner.energy import Power, energy_kwh
from gpuyard.plan.planner.plan import Measures, Plan, measure
from gpuyard.plan.planner.problem import Problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMAT: Final = "planner-front/1"
MOST_POINTS: Final = 60


@dataclass(frozen=True, slots=True)
class Point:
    """A plan and its objectives."""

    plan: Plan
    measures: Measures
    energy_kwh: float | None

    @property
    def objectives(self) -> tuple[float, ...]:
        """Makespan, spread, switches, and energy if it is known; less is better."""
        m = self.measures
        energy = () if self.energy_kwh is None else (self.energy_kwh,)
        return (m.makespan_s, m.utilization_spread, float(m.switches), *energy)

    def beats(self, other: "Point") -> bool:
        """Whether no objective is worse than that of the other point."""
        return all(mine <= theirs for mine, theirs in zip(self.objectives, other.objectives, strict=True))

    def figures(self) -> dict[str, Any]:
        """The figures for a file."""
        m = self.measures
        energy = {} if self.energy_kwh is None else {"energy_kwh": self.energy_kwh}
        return {
            "makespan_s": m.makespan_s,
            "utilization_spread": m.utilization_spread,
            "switches": m.switches,
            "switch_time_s": m.switch_time_s,
            "utilization_mean": m.utilization_mean,
            **energy,
        }


@dataclass(frozen=True, slots=True)
class Weights:
    """The weight of each objective; their sum is 1."""

    makespan: float
    switches: float
    balance: float
    energy: float


@dataclass(frozen=True, slots=True)
class Front:
    """The points by makespan, and the chosen one."""

    points: tuple[Point, ...]
    idle_rate: float
    weights: Weights
    chosen: int

    def notable(self) -> dict[int, list[str]]:
        """Return the places of the plans that show the trade-offs, and what each is known for.

        These are the best plan of each objective, the chosen one and the knee: the plan nearest to the best of all
        objectives at once, each measured by its span on the front.
        """
        values, scaled = _scaled(self.points)
        names = ("shortest", "most balanced", "fewest switches", "least energy")
        found: dict[int, list[str]] = {}
        for place, name in zip(values.argmin(axis=0).tolist(), names, strict=False):
            found.setdefault(place, []).append(name)
        found.setdefault(int((scaled**2).sum(axis=1).argmin()), []).append("knee")
        found.setdefault(self.chosen, [])
        return dict(sorted(found.items()))


def point(problem: Problem, plan: Plan, power: Power | None) -> Point:
    """Compute the objectives of a plan."""
    return Point(plan, measure(problem, plan), None if power is None else energy_kwh(problem, plan, power))


def front(problem: Problem, points: Iterable[Point], idle_rate: float | None = None) -> Front:
    """Return the non-dominated points and the choice among them; if there are too many, those furthest apart."""
    best = _spread_out(_unbeaten(list(points)))
    rate = _idle_rate(problem, best[0]) if idle_rate is None else idle_rate
    weights = weights_at(rate, energy_known=best[0].energy_kwh is not None)
    costs = _costs(best, weights)
    return Front(tuple(best), rate, weights, int(np.argmin(costs)))


def weights_at(idle_rate: float, *, energy_known: bool) -> Weights:
    """Return the weights by the table at the head of this file."""
    rest = idle_rate / 4
    return Weights(1 - 3 * rest, rest, rest if energy_known else 2 * rest, rest if energy_known else 0.0)


def write_front(
    problem: Problem, front: Front, planner: str, idle_rate_from: str = "", planning_s: float | None = None
) -> bytes:
    """Encode a front as JSON. `idle_rate_from` says in words where the idle rate is from.

    A file has no `planning_s`, so that equal fronts are equal files.
    """
    weights = {name: getattr(front.weights, name) for name in ("makespan", "switches", "balance", "energy")}
    said = {
        "format": FORMAT,
        "instance": problem.name,
        "planner": planner,
        **({} if planning_s is None else {"planning_s": planning_s}),
        "idle_rate": front.idle_rate,
        **({"idle_rate_from": idle_rate_from} if idle_rate_from else {}),
        "weights": weights,
        "chosen": front.chosen,
        "points": [one.figures() for one in front.points],
    }
    return msgspec.json.format(msgspec.json.encode(said), indent=1)


def front_figure(problem: Problem, front: Front, lower_bound_s: float | None = None) -> "Figure":
    """Plot the makespan against each other objective; the chosen plan is marked, the color is the makespan."""
    from matplotlib.figure import Figure

    names = ["GPUs: busiest - idlest (%)", "switches", "energy (kWh)"]
    values = np.array([one.objectives for one in front.points])
    values[:, 1] *= 100
    drawn = Figure(figsize=(4.2 * (values.shape[1] - 1), 4.0), layout="constrained")
    drawn.suptitle(
        f"{problem.name}: {len(front.points)} plans, none better than another in everything", fontsize="medium"
    )
    for place, name in enumerate(names[: values.shape[1] - 1]):
        axes = drawn.add_subplot(1, values.shape[1] - 1, place + 1)
        axes.scatter(values[:, 0], values[:, place + 1], c=values[:, 0], cmap="viridis", s=26)
        axes.scatter(
            values[front.chosen, 0], values[front.chosen, place + 1], marker="o", s=150,
            facecolors="none", edgecolors="#c00000", linewidths=1.8, label=f"chosen, idle rate {front.idle_rate:.0%}",
        )  # fmt: skip
        if lower_bound_s is not None:
            axes.axvline(lower_bound_s, color="#c00000", linestyle="--", linewidth=1.0, label="lower bound")
        axes.set_xlabel("makespan (s)")
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
        if not place:
            axes.legend(fontsize="small")
    return drawn


def _unbeaten(points: list[Point]) -> list[Point]:
    """Return the points by makespan, without those that another point equals or dominates."""
    points.sort(key=lambda one: one.objectives)
    kept: list[Point] = []
    for one in points:
        if not any(other.beats(one) for other in kept):
            kept.append(one)
    return kept


def _spread_out(points: list[Point]) -> list[Point]:
    """Reduce to `MOST_POINTS` by dropping points nearest to another one; the best of each objective stay."""
    values, scaled = _scaled(points)
    stay = set(values.argmin(axis=0).tolist())
    kept = list(range(len(points)))
    while len(kept) > MOST_POINTS:
        gaps = np.abs(scaled[kept][:, None] - scaled[kept][None]).sum(axis=2)
        gaps[np.arange(len(kept)), np.arange(len(kept))] = np.inf
        nearest = gaps.min(axis=1)
        nearest[[place for place, one in enumerate(kept) if one in stay]] = np.inf
        del kept[int(nearest.argmin())]
    return [points[one] for one in kept]


def _idle_rate(problem: Problem, shortest: Point) -> float:
    m = shortest.measures
    whole = m.makespan_s * len(problem.gpus)
    return min(1.0, max(0.0, 1 - m.utilization_mean - m.exposed_switch_s / whole)) if whole else 1.0


def _costs(points: Sequence[Point], weights: Weights) -> Any:
    """Return the cost of each point; every objective is scaled to its span on the front."""
    _, lost = _scaled(points)
    return lost @ np.array([weights.makespan, weights.balance, weights.switches, weights.energy])[: lost.shape[1]]


def _scaled(points: Sequence[Point]) -> tuple[Any, Any]:
    """Return the objectives, a row per point, and the same from 0 for the best point to 1 for the worst."""
    values = np.array([one.objectives for one in points])
    span = np.ptp(values, axis=0)
    return values, (values - values.min(axis=0)) / np.where(span > 0, span, 1.0)
