"""Nodes that fail and are repaired in a simulated world. Tasks there are lost and restart as the engine decides.

Time to failure and time to repair are both drawn from exponential distributions. Randomness is passed in, one stream
for each node by its name, so that all policies of a comparison see the same failures.
"""

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from math import log

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.values import MILLI, NodeId, Outcome, TaskId
from gpuyard.simulator.world import World

MOST_LOSSES = 1_000
"""A task that was lost this often will not end before its nodes fail again."""

RandomDraw = Callable[[], float]
"""Return a random number in [0, 1)."""
NodeRandom = Callable[[str], RandomDraw]
"""Return the random stream of this name: with one seed, the same name gives the same numbers."""


class NeverEnds(GpuyardError):
    """A task is longer than its nodes last."""


class Failures:
    """Fails and repairs nodes; implements `gpuyard.simulator.world.WorldActor`."""

    def __init__(self, world: World, up_seconds: float, repair_seconds: float, chance: NodeRandom) -> None:
        """`up_seconds`: mean time to failure. `repair_seconds`: mean time to repair."""
        self._world = world
        self._seconds = {True: up_seconds, False: repair_seconds}
        self._chance = chance
        self._draws: dict[NodeId, RandomDraw] = {}
        self._changes: dict[NodeId, float] = {}
        """When each node of the cluster fails or returns."""
        self._agenda: list[tuple[float, NodeId]] = []
        self.node_failures = 0
        world.actors.append(self)
        world.listeners.append(self._hear)

    def due(self) -> float | None:
        """Return when the next node fails or returns; None once the simulation is over."""
        agenda = self._agenda
        while agenda and self._changes.get(agenda[0][1]) != agenda[0][0]:
            heappop(agenda)  # the node has left the cluster
        return agenda[0][0] if agenda and not self._world.is_over else None

    def act(self, now: float) -> Iterator[command.Command]:
        """Fail and return the nodes that are due."""
        while (at := self.due()) is not None and at <= now:
            node = self._agenda[0][1]
            lost = self._world.engine.state.index.hosts[node].lost
            self._await(node, now, up=lost)
            yield command.ReturnNode(node) if lost else command.LoseNode(node)

    def _await(self, node: NodeId, now: float, *, up: bool) -> None:
        """Draw when a node fails (`up`) or returns."""
        if node not in self._draws:
            self._draws[node] = self._chance(node)
        at = self._changes[node] = now - self._seconds[up] * log(1.0 - self._draws[node]())
        heappush(self._agenda, (at, node))

    def _hear(self, at: float, new_events: Sequence[events.Event]) -> None:
        for event in new_events:
            match event:
                case events.NodeJoined(node):
                    self._await(node.id, at, up=True)
                case events.NodeRemoved(name):
                    self._changes.pop(name, None)
                case events.NodeLost():
                    self.node_failures += 1


class LostWork:
    """Counts the attempts and the work that are lost with their nodes; a listener of a world."""

    def __init__(self) -> None:
        self._since: dict[TaskId, tuple[float, int]] = {}
        self._work: dict[TaskId, float] = {}
        """GPU-seconds of a task since its last restart from the beginning."""
        self._losses: dict[TaskId, int] = {}
        self.attempts_lost = 0
        self.gpu_seconds_lost = 0.0

    def hear(self, at: float, new_events: Sequence[events.Event]) -> None:
        """Count the work of a batch of events."""
        for event in new_events:
            match event:
                case events.TaskPlaced(task, _, placement) | events.AttemptResuming(task, _, placement):
                    self._since[task] = at, placement.charge_milli
                case events.AttemptEnded(task, _, outcome):
                    self._count_work(task, at)
                    if outcome is Outcome.LOST:
                        self._lose(task)
                case events.AttemptSuspended(task):
                    self._count_work(task, at)
                case events.TaskEnded(task):
                    self._work.pop(task, None)
                    self._losses.pop(task, None)

    def _count_work(self, task: TaskId, at: float) -> None:
        since = self._since.pop(task, None)
        if since is not None:
            self._work[task] = self._work.get(task, 0.0) + (at - since[0]) * since[1] / MILLI

    def _lose(self, task: TaskId) -> None:
        self.attempts_lost += 1
        self.gpu_seconds_lost += self._work.pop(task, 0.0)
        self._losses[task] = self._losses.get(task, 0) + 1
        if self._losses[task] >= MOST_LOSSES:
            raise NeverEnds(
                f"Task {task} was lost with its nodes {MOST_LOSSES:,} times and would never end: it "
                "runs longer than they last. Increase the mean time between failures, or until spot nodes are taken away."
            )
