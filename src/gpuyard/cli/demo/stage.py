"""The stage: a virtual world with a story to come, and those who listen to it."""

from collections import deque
from collections.abc import Sequence

from gpuyard.cli.demo.tally import Tally
from gpuyard.cli.demo.workload import Workload
from gpuyard.cli.sentences import Teller
from gpuyard.core.domain import events as fact
from gpuyard.core.engine.state import State
from gpuyard.simulator.world import World

REMEMBERED = 60
"""Facts the picture may show."""


class Stage:
    """Lets a story happen up to an instant, and remembers what a watcher wants to see."""

    def __init__(self, story: Workload, length: float) -> None:
        self.length = length
        self.world = World(start_seconds=2.0, stop_seconds=3.0)
        self.tally = Tally(self.world.engine.state)
        self.recent: deque[tuple[float, str]] = deque(maxlen=REMEMBERED)
        self._teller = Teller()
        self._fresh: list[tuple[float, fact.Event, str]] = []
        self.world.listeners.append(self._hear)
        self.world.runs.update(story.runs)
        for asked in story.opening:
            self.world.tell(asked)
        for at, asked in story.script:
            self.world.later(at, asked)

    @property
    def state(self) -> State:
        """The engine's state, to look at."""
        return self.world.engine.state

    @property
    def now(self) -> float:
        """The virtual instant."""
        return self.world.now

    @property
    def over(self) -> bool:
        """Whether the time is up, or nothing is left to happen."""
        return self.now >= self.length or (not self.state.tasks and self.world.next_event() is None)

    def advance(self, until: float) -> list[tuple[float, fact.Event, str]]:
        """Let time pass, and return what happened: when, what, and in words."""
        self.world.advance(min(until, self.length))
        self.tally.pass_time(self.now)
        happened, self._fresh = self._fresh, []
        return happened

    def _hear(self, at: float, facts: Sequence[fact.Event]) -> None:
        self.tally.hear(at, facts)
        for event in facts:
            sentence = self._teller.sentence(event)
            self._fresh.append((at, event, sentence))
            self.recent.append((at, sentence))
