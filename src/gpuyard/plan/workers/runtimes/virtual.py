"""`virtual`: nothing is computed. Loading and calls sleep as long as was planned, `speed_up` times as fast.

`drift: 0.3` makes each call take between 0.7 and 1.3 of what was planned, `fails: 0.01` lets one in a hundred attempts
fail; both follow from `seed`, the request, the node and the attempt, so that a run can be repeated.
"""

from random import Random
from time import sleep
from typing import Any

from gpuyard.plan.workers.order import Order, Question


class PretendedFailure(Exception):
    """A virtual call failed, as its file asked for."""


class _Virtual:
    def __init__(self, order: Order) -> None:
        settings = order.runtime.settings
        self._speed_up = float(settings.get("speed_up", 1.0))
        self._drift, self._fails = float(settings.get("drift", 0.0)), float(settings.get("fails", 0.0))
        self._seed = settings.get("seed", 0)
        sleep(order.seconds / self._speed_up)

    def call(self, question: Question, seconds: float) -> Any:
        chance = Random(f"{self._seed}/{question.request}/{question.node}/{question.attempt}")  # noqa: S311
        sleep(seconds * chance.uniform(1 - self._drift, 1 + self._drift) / self._speed_up)
        if chance.random() < self._fails:
            raise PretendedFailure(f"attempt {question.attempt} was to fail")
        return {"node": question.node, "from": sorted(question.results)}

    def close(self) -> None:
        """Virtual memory is free at once."""


def load(order: Order) -> _Virtual:
    """Sleep as long as loading takes."""
    return _Virtual(order)
