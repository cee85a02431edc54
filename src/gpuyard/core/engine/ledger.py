"""The facts of one call: each is folded into the state as it is made, so that the next one is made from what is so."""

from gpuyard.core.domain.events import Event
from gpuyard.core.engine.folds import fold
from gpuyard.core.engine.state import State


class Ledger:
    """A state, and the facts that the call under way has made of it so far."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.facts: list[Event] = []

    def begin(self, now: float) -> None:
        """A call begins; an instant before the last one counts as the last one."""
        self.state.now = max(self.state.now, now)
        self.facts = []

    def emit(self, event: Event) -> None:
        """This is so from now on."""
        fold(self.state, event)
        self.facts.append(event)
