"""How long will it run? What this user's last tasks of this kind did, and who like them.

Known at submission are the user, a name, a project, the size, and the part of the yard it is for. What a task has in common
with others is a *kind*, from all tasks down to this user's tasks of this name and size. Run times differ by factors, so
everything is reckoned in their logarithms. Two answers are averaged:

- the median of the last runs of the most particular kind that was seen at least `ENOUGH` times;
- a mean in which late runs count more, made from the general to the particular: each kind pulls it towards its own runs,
  the more so the more of them there are and the more alike they are.

On the public traces each of the two is clearly worse on one of them, and their average is good on both.

The band is the spread of those runs, stretched so that nine of ten tasks do end inside it: each that ends below or above the
band it was given stretches that side a little, and each that does not lets it shrink (Gibbs and Candès, "Adaptive
Conformal Inference Under Distribution Shift", 2021). It learns from ends only, so it never knows the future.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from math import exp, log, sqrt
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from gpuyard.core.domain.task import Estimate, TaskSpec
from gpuyard.learn.estimates.kinds import RecentKinds, SimilarityKey

ENOUGH = 3
REMEMBERED = 50
MOST_KINDS = 10_000
"""Above this the kind that nothing was heard of for longest is forgotten."""
LONGEST_NAME = 200
"""Letters of a name, or of the command of a task that has none, that tell kinds apart."""
LEAST_SECONDS = 1e-3
"""Nothing runs for no time at all."""
LEVELS = ((0.995, 1.0), (0.99, 5.0), (0.98, 5.0), (0.9, 1.0), (0.8, 1.0), (0.8, 1.0))
"""For each level of likeness: what a run counts for after the next one of its kind, as users change what they do and a yard
does so slowly; and how many runs of its own a kind needs to weigh as much as all that is more general."""
NINE_OF_TEN = 1.645
"""So many standard deviations to each side hold nine of ten."""
MISSES = 0.05
"""How many may end beyond either side of the band."""
STRETCH = 0.02
"""How much one miss stretches a side."""
MOST_STRETCHED = 10.0
LONGEST_LOG = log(1e9)
"""Nobody says that something may run for more than thirty years."""
SAID = "said"
"""Of a kind that holds by which factor a user's own estimates were wrong."""
FORETOLD = "foretold"
"""Of a kind that holds by which factor run times were wrong that one model foretold from what tasks compute."""
CORRECTED_BY = 2.0
CORRECTED_AT_LEAST = 0.1
CORRECTIONS_FADE = 0.9
AT_LEAST = 0.3
"""What is added to both sides before they are stretched: runs that were all alike leave a third open."""
NEW = 2.3
"""The same for what was hardly seen before: it may be something else, ten times as long or short."""


class TaskFeatures(NamedTuple):
    """What is known of a task before it runs."""

    user: str = ""
    project: str = ""
    name: str = ""
    gpus: float = 0.0
    pool: str = ""

    def similarity_keys(self) -> tuple[SimilarityKey, ...]:
        """The kinds it belongs to, the most general first, as many as there are `LEVELS` at the most."""
        user, _, _, gpus, pool = self
        kinds = ((), (pool,), (pool, gpus), (pool, user), (pool, user, gpus))
        return (*kinds, self) if self.name or self.project else kinds


def features_of(spec: TaskSpec) -> TaskFeatures:
    """What is known of a task of a yard."""
    return features_from(spec.tenant, spec.user, spec.project, spec.name, spec.command, spec.resources.all_gpus)


def features_from(
    tenant: str, user: str, project: str, name: str, command: Sequence[str] | str | None, gpus: float
) -> TaskFeatures:
    """The same, from what is kept of it. Its command stands for a name; people who hold GPUs by a lease are another world."""
    if command is None:
        return TaskFeatures(user, project, name[:LONGEST_NAME], gpus, f"{tenant}, leases")
    called = name or (command if isinstance(command, str) else " ".join(command))
    return TaskFeatures(user, project, called[:LONGEST_NAME], gpus, tenant)


class RuntimePredictor(Protocol):
    """Whoever has an idea of run times. It is told of every end, and of nothing before it has happened."""

    def estimate(self, asked: TaskFeatures, now: float) -> Estimate | None:
        """How long a task that is submitted now is thought to run; none: nobody knows."""
        ...

    def ended(self, asked: TaskFeatures, seconds: float, now: float, told: Estimate | None = None) -> None:
        """A task has ended after it ran so long; `told` is what was foreseen for it."""
        ...


class HistoryPredictor:
    """See RuntimePredictor: simple statistics of everything that has ended, as far as it is remembered."""

    def __init__(self) -> None:
        self._kinds = RecentKinds(KindHistory, MOST_KINDS)
        self._low = self._high = 1.0
        """How far the sides of bands are stretched."""
        self._before: tuple[TaskFeatures, Estimate | None] | None = None
        """What was asked last, and the answer while nothing has ended since: tasks often come in swarms."""

    def estimate(self, asked: TaskFeatures, now: float) -> Estimate | None:  # noqa: ARG002 - see RuntimePredictor
        """How long a task like this one is thought to run."""
        if self._before is None or self._before[0] != asked:
            self._before = asked, self._estimate(asked)
        return self._before[1]

    def _estimate(self, asked: TaskFeatures) -> Estimate | None:
        kinds = self._kinds
        known = kinds.get(())
        if known is None or len(known.ordered) < ENOUGH:
            return None
        mean, variance = known.mean, known.variance
        kind: KindHistory | None = known
        for likeness, (_, pull) in zip(asked.similarity_keys()[1:], LEVELS[1:], strict=False):
            kind = kinds.get(likeness)
            if kind is None:
                continue
            weight, inertia = kind.weight, pull
            if variance > 0.0:  # the more alike its runs are, the further it pulls
                inertia *= (weight * kind.variance + pull * variance) / ((weight + pull) * variance)
            share, apart = weight / (weight + inertia), kind.mean - mean
            variance = share * kind.variance + (1.0 - share) * (variance + share * apart * apart)
            mean += share * apart
            if len(kind.ordered) >= ENOUGH:
                known = kind
        runs = len(known.ordered)
        likely = (mean + known.ordered[runs // 2]) / 2
        side = NINE_OF_TEN * sqrt(variance) + (AT_LEAST if kind is known else NEW)
        high = max(likely, min(likely + self._high * side, LONGEST_LOG))
        return Estimate(exp(likely), exp(likely - self._low * side), exp(high), runs)

    def kind(self, likeness: SimilarityKey) -> "KindHistory | None":
        """What is remembered of a kind."""
        return self._kinds.get(likeness)

    def believed(self, asked: TaskFeatures, said: Estimate) -> Estimate:
        """What a user said, with a band by how right this user was before."""
        kind = self._kinds.get((SAID, asked.pool, asked.user))
        if kind is None or len(kind.ordered) < ENOUGH:
            return said
        last = len(kind.ordered) - 1
        low, high = kind.ordered[int(MISSES * last)], kind.ordered[last - int(MISSES * last)]
        return replace(
            said,
            low_seconds=min(said.low_seconds, said.seconds * exp(low)),
            high_seconds=max(said.high_seconds, said.seconds * exp(high)),
        )

    def corrected(self, asked: TaskFeatures, predicted: Estimate, by: str) -> Estimate:
        """What was foretold from what a task computes, put right by what tasks of its kind took over what was foretold.

        Two runs of its own weigh as much as what was foretold.
        """
        kind = self._kinds.get((FORETOLD, by, *asked))
        if kind is None:
            return predicted
        runs = len(kind.ordered)
        likely = log(predicted.seconds) + runs / (runs + CORRECTED_BY) * kind.ordered[runs // 2]
        low, high = log(predicted.low_seconds / predicted.seconds), log(predicted.high_seconds / predicted.seconds)
        if runs >= ENOUGH:
            side = NINE_OF_TEN * sqrt(kind.variance) + CORRECTED_AT_LEAST
            low, high = -side, side
        return Estimate(exp(likely), exp(likely + low), exp(likely + high), runs)

    def learn_correction(self, asked: TaskFeatures, by: str, predicted_seconds: float, seconds: float) -> None:
        """A task took so long where somebody foretold so long of it."""
        wrong = log(max(seconds, LEAST_SECONDS) / max(predicted_seconds, LEAST_SECONDS))
        self._kinds.touch((FORETOLD, by, *asked)).add(wrong, CORRECTIONS_FADE)

    def ended(self, asked: TaskFeatures, seconds: float, now: float, told: Estimate | None = None) -> None:  # noqa: ARG002
        """Remember it with all its kinds, and judge the band it was given, or how right its user was."""
        if told is not None and not told.runs:
            wrong = log(max(seconds, LEAST_SECONDS) / told.seconds)
            self._kinds.touch((SAID, asked.pool, asked.user)).add(wrong, 1.0)
        elif told is not None:
            self._low = _stretched(self._low, missed=seconds < told.low_seconds)
            self._high = _stretched(self._high, missed=seconds > told.high_seconds)
        seconds_log = log(max(seconds, LEAST_SECONDS))
        for likeness, (fade, _) in zip(asked.similarity_keys(), LEVELS, strict=False):
            self._kinds.touch(likeness).add(seconds_log, fade)
        self._kinds.forget()
        self._before = None


def _stretched(side: float, *, missed: bool) -> float:
    return min(max(0.0, side + STRETCH * (missed - MISSES)), MOST_STRETCHED)


class KindHistory:
    """The run times of what is alike, as logarithms."""

    __slots__ = ("last", "mean", "ordered", "variance", "weight")

    def __init__(self) -> None:
        self.last: list[float] = []
        """As they came, the oldest first."""
        self.ordered: list[float] = []
        """The same, the shortest first."""
        self.weight = self.mean = self.variance = 0.0
        """Of all runs, late ones counting more: how many they count for, their mean and variance."""

    def add(self, seconds_log: float, fade: float) -> None:
        """One more; the oldest goes when there are too many."""
        self.last.append(seconds_log)
        insort(self.ordered, seconds_log)
        if len(self.last) > REMEMBERED:
            del self.ordered[bisect_left(self.ordered, self.last.pop(0))]
        self.weight = self.weight * fade + 1.0
        share, apart = 1.0 / self.weight, seconds_log - self.mean
        self.mean += share * apart
        self.variance = (1.0 - share) * (self.variance + share * apart * apart)
