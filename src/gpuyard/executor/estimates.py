"""How long calls will take, from what was planned and what such calls took.

Calls of one kind (one node of one workflow) are off together, and so, less so, are those of one model: the ratio of
actual to planned seconds is taken over the kind, leaning on that of the model while few of the kind have ended, which
in turn leans on 1. A lean counts as so many calls of average length.
"""

from gpuyard.executor.work import Work

LEAN = 3.0
"""As if so many calls had taken what the wider group takes."""


class Estimates:
    """Ratios that follow what ends."""

    def __init__(self, work: Work) -> None:
        self._work = work
        kinds = max(work.kind, default=-1) + 1
        self._planned = [0.0] * kinds
        self._actual = [0.0] * kinds
        self._model_planned = [0.0] * len(work.width)
        self._model_actual = [0.0] * len(work.width)
        self._lean_s = LEAN * sum(work.seconds) / max(1, len(work))

    def ended(self, call: int, seconds: float) -> None:
        """A call took so long, on a GPU of speed 1."""
        kind, model, planned = self._work.kind[call], self._work.model[call], self._work.seconds[call]
        self._planned[kind] += planned
        self._actual[kind] += seconds
        self._model_planned[model] += planned
        self._model_actual[model] += seconds

    def seconds(self, call: int) -> float:
        """On a GPU of speed 1."""
        planned = self._work.seconds[call]
        kind = self._work.kind[call]
        model = self._work.model[call]
        if not self._model_planned[model]:
            return planned
        lean = self._lean_s
        of_model = (self._model_actual[model] + lean) / (self._model_planned[model] + lean)
        return planned * (self._actual[kind] + lean * of_model) / (self._planned[kind] + lean)
