"""The events of one call. Each event is applied to the state when it is emitted, so later decisions see its effect."""

from gpuyard.core.domain.events import Event
from gpuyard.core.engine.apply import apply_event
from gpuyard.core.engine.state import State


class Ledger:
    """A state, and the events that the current call has emitted so far."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.events: list[Event] = []

    def begin(self, now: float) -> None:
        """Begin a call at `now`; an instant before the last one counts as the last one."""
        self.state.now = max(self.state.now, now)
        self.events = []

    def emit(self, event: Event) -> None:
        """Record an event and apply it to the state."""
        apply_event(self.state, event)
        self.events.append(event)
