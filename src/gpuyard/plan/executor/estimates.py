"""How long calls will take, from what was planned and what such calls took.

Calls of one kind (one node of one workflow) are off together, and so, less so, are those of one model: the ratio of
actual to planned seconds is taken over the kind, leaning on that of the model while few of the kind have ended, which
in turn leans on 1. A lean counts as so many calls of average length.
"""

from gpuyard.plan.executor.work import Work

LEAN = 3.0
"""As if so many calls had taken what the wider group takes."""


class Estimates:
    """Ratios that follow what ends."""

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
        """A call took so long, on a GPU of speed 1."""
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
        """On a GPU of speed 1."""
        return self._work.seconds[call] * self._ratio[self._work.kind[call]]
