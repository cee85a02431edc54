"""Estimates of call durations, from the planned durations and those of completed calls.

Calls of one kind (one node of one workflow) deviate together, and to a lesser degree so do those of one model. The
ratio of actual to planned seconds is taken over the kind. It is smoothed toward the ratio of the model while few calls
of the kind have ended; that ratio is in turn smoothed toward 1. `LEAN` is the weight of the prior, in calls of average
length.
"""

from gpuyard.plan.executor.work import Work

LEAN = 3.0
"""The weight of the wider group, as a number of calls of average length."""


class Estimates:
    """The ratios of actual to planned seconds, updated as calls end."""

    def __init__(self, work: Work) -> None:
        self._work = work
        kinds = max(work.kind, default=-1) + 1
        self._planned = [0.0] * kinds
        self._actual = [0.0] * kinds
        self._ratio = [1.0] * kinds
        self._model_planned = [0.0] * len(work.width)
        self._model_actual = [0.0] * len(work.width)
        self._kinds_of: list[set[int]] = [set() for _ in work.width]
        for kind, model in zip(work.kind, work.model, strict=True):
            self._kinds_of[model].add(kind)
        self._lean_s = LEAN * sum(work.seconds) / max(1, len(work))

    def ended(self, call: int, seconds: float) -> None:
        """Record that a call took this long, on a GPU of speed 1."""
        kind, model, planned = self._work.kind[call], self._work.model[call], self._work.seconds[call]
        self._planned[kind] += planned
        self._actual[kind] += seconds
        self._model_planned[model] += planned
        self._model_actual[model] += seconds
        lean = self._lean_s
        if not lean:
            return
        of_model = (self._model_actual[model] + lean) / (self._model_planned[model] + lean)
        for one in self._kinds_of[model]:
            self._ratio[one] = (self._actual[one] + lean * of_model) / (self._planned[one] + lean)

    def seconds(self, call: int) -> float:
        """Return the estimated duration of a call on a GPU of speed 1."""
        return self._work.seconds[call] * self._ratio[self._work.kind[call]]
