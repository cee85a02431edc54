"""Estimates run times from the last tasks of the same kind and of similar kinds.

Known at submission are the user, a name, a project, the size, and the pool. A *kind* is a set of tasks with common
features, from all tasks down to this user's tasks of this name and size. Run times differ by factors, so all
calculations use their logarithms. The estimate is the average of two values:

- the median of the last runs of the most specific kind that was seen at least `LEAST_RUNS` times;
- a mean in which recent runs count more, computed from the general kind to the specific: each kind pulls it towards its
  own runs, more strongly the more runs it has and the less they vary.

On the public traces each of the two is clearly worse on one of them, and their average is good on both.

The band is the spread of those runs, stretched so that nine of ten tasks end inside it: each task that ends below or
above its band stretches that side a little, and each that does not lets it shrink (Gibbs and Candès, "Adaptive
Conformal Inference Under Distribution Shift", 2021). It learns only from tasks that have ended, so it never uses the
future.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from math import exp, log, sqrt
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from gpuyard.core.domain.kind_name import LONGEST_NAME, kind_name
from gpuyard.core.domain.task import Estimate, TaskSpec
from gpuyard.learn.estimates.kinds import RecentKinds, SimilarityKey

LEAST_RUNS = 3
LEAST_KIND_RUNS = 10
"""With fewer ended tasks of its user and kind, an estimate is marked as coming from other work."""
MOST_RUNS = 50
MOST_KINDS = 10_000
"""Maximum number of kinds; above it the least recently updated kind is dropped."""
LEAST_SECONDS = 1e-3
"""Shorter run times count as this long, because logarithms are taken."""
LEVELS = ((0.995, 1.0), (0.99, 5.0), (0.98, 5.0), (0.9, 1.0), (0.8, 1.0), (0.8, 1.0), (0.8, 1.0))
"""For each level of similarity: the factor by which a run loses weight with the next run of its kind (users change
their work quickly, a cluster slowly), and the number of own runs at which a kind weighs as much as all more general
kinds."""
NAMED_LEVEL = 5
"""The levels from here on are of a kind name or a name; those before are of a cluster, a tenant, a user or a size."""
NINE_OF_TEN = 1.645
"""Nine of ten values lie within this number of standard deviations of the mean."""
MISS_RATE = 0.05
"""Allowed share of tasks that end beyond either side of the band."""
STRETCH = 0.02
"""How much one miss stretches a side."""
MOST_STRETCHED = 10.0
LONGEST_LOG = log(1e9)
"""Upper limit of a band: about thirty years."""
USER_ESTIMATE = "user_estimate"
"""Key of the kinds that record the error factors of a user's own estimates."""
MODEL_PREDICTION = "model_prediction"
"""Key of the kinds that record the error factors of run times that a model predicted from the declared workload."""
CORRECTED_BY = 2.0
CORRECTED_AT_LEAST = 0.1
CORRECTIONS_FADE = 0.9
LEAST_BAND = 0.3
"""Added to both sides before they are stretched: even if all runs were equal, the band is a third wide to each side."""
NEW_KIND_BAND = 2.3
"""Used instead of `LEAST_BAND` for tasks of kinds hardly seen before: they may run ten times as long or short."""


class TaskFeatures(NamedTuple):
    """Features of a task that are known before it runs."""

    user: str = ""
    project: str = ""
    name: str = ""
    gpus: float = 0.0
    pool: str = ""
    kind: str = ""
    """What the tasks of a sweep have in common if each has its own name, or none (`kind_name`)."""

    def similarity_keys(self) -> tuple[SimilarityKey, ...]:
        """Return the keys of its kinds, the most general first; at most one for each of `LEVELS`."""
        user, _, name, gpus, pool, kind = self
        kinds = ((), (pool,), (pool, gpus), (pool, user), (pool, user, gpus))
        if not name and not self.project:
            return kinds
        return (*kinds, self._replace(name=kind), self) if kind and kind != name else (*kinds, self)


def features_of(spec: TaskSpec) -> TaskFeatures:
    """Return the features of a submitted task."""
    return features_from(spec.tenant, spec.user, spec.project, spec.name, spec.command, spec.resources.all_gpus)


def features_from(
    tenant: str, user: str, project: str, name: str, command: Sequence[str] | str | None, gpus: float
) -> TaskFeatures:
    """Return the features from stored fields. The command replaces a missing name; leases form kinds of their own."""
    if command is None:
        return TaskFeatures(user, project, name[:LONGEST_NAME], gpus, f"{tenant}, leases")
    called = name or (command if isinstance(command, str) else " ".join(command))
    return TaskFeatures(user, project, called[:LONGEST_NAME], gpus, tenant, kind_name(name, command))


class RuntimePredictor(Protocol):
    """Interface of run-time estimators. They learn of every end, and of nothing before it has happened."""

    def estimate(self, features: TaskFeatures, now: float) -> Estimate | None:
        """Return the estimated run time of a task that is submitted now; None if nothing is known."""
        ...

    def ended(self, features: TaskFeatures, seconds: float, now: float, estimate: Estimate | None = None) -> None:
        """Learn that a task has ended after it ran for `seconds`; `estimate` is the one it was given."""
        ...


class HistoryPredictor:
    """A `RuntimePredictor` with simple statistics of the ended tasks that it remembers."""

    def __init__(self) -> None:
        self._kinds = RecentKinds(KindHistory, MOST_KINDS)
        self._low = self._high = 1.0
        """Factors by which the two sides of a band are stretched."""
        self._before: tuple[TaskFeatures, Estimate | None] | None = None
        """The last question and its answer, valid until the next end: tasks are often submitted in bursts."""

    def estimate(self, features: TaskFeatures, now: float) -> Estimate | None:  # noqa: ARG002 - see RuntimePredictor
        """Return the estimated run time of a task with these features; None if too little is known."""
        if self._before is None or self._before[0] != features:
            self._before = features, self._estimate(features)
        return self._before[1]

    def _estimate(self, features: TaskFeatures) -> Estimate | None:
        kinds = self._kinds
        known = kinds.get(())
        if known is None or len(known.ordered) < LEAST_RUNS:
            return None
        mean, variance = known.mean, known.variance
        kind: KindHistory | None = known
        keys, from_other_work = features.similarity_keys(), True
        for level, (key, (_, pull)) in enumerate(zip(keys[1:], LEVELS[1:], strict=False), 1):
            kind = kinds.get(key)
            if kind is None:
                continue
            if level >= min(NAMED_LEVEL, len(keys) - 1) and len(kind.ordered) >= LEAST_KIND_RUNS:
                from_other_work = False
            weight, inertia = kind.weight, pull
            if variance > 0.0:  # the less its runs vary, the stronger it pulls
                inertia *= (weight * kind.variance + pull * variance) / ((weight + pull) * variance)
            share, apart = weight / (weight + inertia), kind.mean - mean
            variance = share * kind.variance + (1.0 - share) * (variance + share * apart * apart)
            mean += share * apart
            if len(kind.ordered) >= LEAST_RUNS:
                known = kind
        runs = len(known.ordered)
        likely = (mean + known.ordered[runs // 2]) / 2
        # `kind` is the most specific kind of the task. If it has too few runs, the task may be something new.
        side = NINE_OF_TEN * sqrt(variance) + (LEAST_BAND if kind is known else NEW_KIND_BAND)
        high = max(likely, min(likely + self._high * side, LONGEST_LOG))
        return Estimate(exp(likely), exp(likely - self._low * side), exp(high), runs, from_other_work)

    def kind(self, key: SimilarityKey) -> "KindHistory | None":
        """Return the history of a kind; None if there is none."""
        return self._kinds.get(key)

    def with_user_accuracy(self, features: TaskFeatures, said: Estimate) -> Estimate:
        """Return the user's own estimate, with a band that reflects how accurate this user was before."""
        kind = self._kinds.get((USER_ESTIMATE, features.pool, features.user))
        if kind is None or len(kind.ordered) < LEAST_RUNS:
            return said
        last = len(kind.ordered) - 1
        low, high = kind.ordered[int(MISS_RATE * last)], kind.ordered[last - int(MISS_RATE * last)]
        return replace(
            said,
            low_seconds=min(said.low_seconds, said.seconds * exp(low)),
            high_seconds=max(said.high_seconds, said.seconds * exp(high)),
        )

    def corrected(self, features: TaskFeatures, predicted: Estimate, by: str) -> Estimate:
        """Return a prediction from the declared workload, corrected by the observed errors for tasks of this kind.

        Two own runs weigh as much as the prediction.
        """
        kind = self._kinds.get((MODEL_PREDICTION, by, *features))
        if kind is None:
            return predicted
        runs = len(kind.ordered)
        likely = log(predicted.seconds) + runs / (runs + CORRECTED_BY) * kind.ordered[runs // 2]
        low, high = log(predicted.low_seconds / predicted.seconds), log(predicted.high_seconds / predicted.seconds)
        if runs >= LEAST_RUNS:
            side = NINE_OF_TEN * sqrt(kind.variance) + CORRECTED_AT_LEAST
            low, high = -side, side
        return Estimate(exp(likely), exp(likely + low), exp(likely + high), runs)

    def learn_correction(self, features: TaskFeatures, by: str, predicted_seconds: float, seconds: float) -> None:
        """Learn the error of a prediction of the model `by` from the observed run time."""
        wrong = log(max(seconds, LEAST_SECONDS) / max(predicted_seconds, LEAST_SECONDS))
        self._kinds.touch((MODEL_PREDICTION, by, *features)).add(wrong, CORRECTIONS_FADE)

    def ended(self, features: TaskFeatures, seconds: float, now: float, estimate: Estimate | None = None) -> None:  # noqa: ARG002
        """Add the run to all its kinds, and adjust the band, or record how accurate the user's own estimate was."""
        if estimate is not None and not estimate.runs:
            wrong = log(max(seconds, LEAST_SECONDS) / estimate.seconds)
            self._kinds.touch((USER_ESTIMATE, features.pool, features.user)).add(wrong, 1.0)
        elif estimate is not None:
            self._low = _stretched(self._low, missed=seconds < estimate.low_seconds)
            self._high = _stretched(self._high, missed=seconds > estimate.high_seconds)
        seconds_log = log(max(seconds, LEAST_SECONDS))
        for key, (fade, _) in zip(features.similarity_keys(), LEVELS, strict=False):
            self._kinds.touch(key).add(seconds_log, fade)
        self._kinds.forget()
        self._before = None


def _stretched(side: float, *, missed: bool) -> float:
    return min(max(0.0, side + STRETCH * (missed - MISS_RATE)), MOST_STRETCHED)


class KindHistory:
    """The run times of one kind, as logarithms."""

    __slots__ = ("last", "mean", "ordered", "variance", "weight")

    def __init__(self) -> None:
        self.last: list[float] = []
        """The last runs, oldest first."""
        self.ordered: list[float] = []
        """The same runs, shortest first."""
        self.weight = self.mean = self.variance = 0.0
        """Statistics of all runs with recent ones counting more: total weight, mean and variance."""

    def add(self, seconds_log: float, fade: float) -> None:
        """Add a run; the oldest is dropped when there are more than `MOST_RUNS`."""
        self.last.append(seconds_log)
        insort(self.ordered, seconds_log)
        if len(self.last) > MOST_RUNS:
            del self.ordered[bisect_left(self.ordered, self.last.pop(0))]
        self.weight = self.weight * fade + 1.0
        share, apart = 1.0 / self.weight, seconds_log - self.mean
        self.mean += share * apart
        self.variance = (1.0 - share) * (self.variance + share * apart * apart)
