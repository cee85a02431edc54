"""How jobs of a trace save their work and what a preemption costs them. No trace records this, so it is drawn.

    published   a preempted job keeps all its progress and repeats 40 s of work, 60 s on several nodes. This is the rule of
                the published simulators (Tiresias, Lucid); only figures made with it can be compared with theirs.
    drawn       each job draws how often it saves, how long saving and restarting take, and whether it ignores SIGTERM.
                When it is stopped it has the grace period to save; a job that needs longer, or ignores the signal, is
                killed and repeats the work since its last periodic save.

The draws of a job depend on the seed and on its position in the workload only: every policy sees the same jobs, and the
preemptible jobs of a small share are among those of a larger one. Durations are log-normal around the given median.
Their medians are assumptions, not measurements; the recorded run time of a job is taken to include its periodic saves.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import exp, inf, isfinite
from statistics import NormalDist

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.error_location import shortened
from gpuyard.input.nearest_name import closest_word
from gpuyard.simulator.world import SavingBehavior

RandomDraw = Callable[[], float]
"""Return a random number in [0, 1)."""
RandomStreams = Callable[[str], RandomDraw]
"""Return the random stream of this name from its beginning."""
RESTART_SECONDS, RESTART_SECONDS_GANG = 40.0, 60.0
"""Work that a job repeats after a stop, on one node and on several, in the published simulators."""
WIDE, NARROW = 1.0, 0.5
"""Standard deviation of the logarithm: two thirds of the draws are within a factor of 2.7, or of 1.6, of the median."""
PUBLISHED, DRAWN = "published", "drawn"
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class DrawnCheckpoints:
    """The medians and shares from which each job draws its behavior."""

    save_every_seconds: float = 1800.0
    """Work between two periodic saves; infinite means that a job saves only when it is stopped."""
    save_seconds: float = 5.0
    restart_seconds: float = RESTART_SECONDS
    """Time to start again and load the saved state, on one node; half as much more on several."""
    ignore_sigterm: float = 0.25
    """Share of the jobs that ignore the signal to stop."""
    grace_seconds: float = 10.0
    """Time between SIGTERM and SIGKILL, the same for all jobs: the default of the live agent."""

    def behavior(self, nodes: int, draw: RandomDraw) -> SavingBehavior:
        """Draw the behavior of one job; always takes four numbers, so that no job changes the draws of the next."""
        every, save, restart = (
            _log_normal(self.save_every_seconds, WIDE, draw()),
            _log_normal(self.save_seconds, WIDE, draw()),
            _log_normal(self.restart_seconds, NARROW, draw()),
        )
        gang = RESTART_SECONDS_GANG / RESTART_SECONDS if nodes > 1 else 1.0
        return SavingBehavior(every, save, restart * gang, self.grace_seconds, draw() < self.ignore_sigterm)


def published_restart_seconds(nodes: int) -> float:
    """Return the work that a preempted job repeats in the published simulators."""
    return RESTART_SECONDS if nodes == 1 else RESTART_SECONDS_GANG


def read_checkpoints(text: str) -> DrawnCheckpoints | None:
    """Read `published` (None) or `drawn`, which may change values: `drawn:save_every_seconds=600:grace_seconds=60`."""
    kind, *changes = text.split(":")
    if kind == PUBLISHED and not changes:
        return None
    if kind != DRAWN:
        raise WrongInput(f"Checkpoints are {PUBLISHED} or {DRAWN}[:NAME=VALUE]…, not {shortened(text)!r}.")
    return DrawnCheckpoints(**dict(map(_change, changes)))


def _change(change: str) -> tuple[str, float]:
    name, _, value = change.partition("=")
    known = [field.name for field in fields(DrawnCheckpoints)]
    if name not in known:
        near = closest_word(name, known)
        hint = f"did you mean {near!r}?" if near else f"known names: {', '.join(known)}."
        raise WrongInput(f"{shortened(change)!r} is not a property of checkpoints; {hint}")
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    least, most, words = _BOUNDS.get(name, (0.0, inf, "a number of seconds, at least 0"))
    if not least <= number <= most or (not isfinite(number) and name != "save_every_seconds"):
        raise WrongInput(f"{shortened(change)!r}: {name} must be {words}.")
    return name, number


_BOUNDS = {
    "save_every_seconds": (1.0, inf, "at least 1 second, or inf"),
    "ignore_sigterm": (0.0, 1.0, "a share from 0 to 1"),
}


def _log_normal(median: float, deviation: float, chance: float) -> float:
    return median * exp(deviation * _NORMAL.inv_cdf(min(max(chance, 1e-12), 1 - 1e-12)))
