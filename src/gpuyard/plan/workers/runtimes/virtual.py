"""`virtual`: nothing is computed. Loads and calls sleep for the planned duration, divided by `speed_up`.

`drift: 0.3` makes each call take between 0.7 and 1.3 of its planned duration, `fails: 0.01` makes one in a hundred
attempts fail. Both depend on `seed`, the request, the node and the attempt, so a run is reproducible.
"""

from random import Random
from time import sleep
from typing import Any

from gpuyard.plan.workers.order import CallInput, Order


class SimulatedFailure(Exception):
    """A virtual call failed, as its file asked for."""


class _Virtual:
    def __init__(self, order: Order) -> None:
        settings = order.runtime.settings
        self._speed_up = float(settings.get("speed_up", 1.0))
        self._drift, self._fails = float(settings.get("drift", 0.0)), float(settings.get("fails", 0.0))
        self._seed = settings.get("seed", 0)
        sleep(order.seconds / self._speed_up)

    def call(self, question: CallInput, seconds: float) -> Any:
        chance = Random(f"{self._seed}/{question.request}/{question.node}/{question.attempt}")  # noqa: S311
        sleep(seconds * chance.uniform(1 - self._drift, 1 + self._drift) / self._speed_up)
        if chance.random() < self._fails:
            raise SimulatedFailure(f"attempt {question.attempt} fails as configured")
        return {"node": question.node, "from": sorted(question.results)}

    def close(self) -> None:
        """Do nothing: a virtual model holds no memory."""


def load(order: Order) -> _Virtual:
    """Sleep for the duration of the load."""
    return _Virtual(order)
