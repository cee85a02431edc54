"""How long will it run? What this user's last tasks of this kind did, and who like them.

Known at submission are the user, a name, a project and the size. The most particular of these that was seen at least
`ENOUGH` times answers with the median of its last `REMEMBERED` run times and a band nine of ten of them stayed in;
before anything like it has ended there is no answer. It learns from ends only, so it never knows the future.
"""

from bisect import insort
from collections import deque
from typing import NamedTuple

from gpuyard.domain.task import Estimate

ENOUGH = 3
REMEMBERED = 50
LEAST_SECONDS = 1e-3
"""Nothing runs for no time at all."""


class Asked(NamedTuple):
    """What is known of a task before it runs."""

    user: str = ""
    project: str = ""
    name: str = ""
    gpus: float = 0.0
    pool: str = ""

    def likenesses(self) -> tuple[tuple[object, ...], ...]:
        """What it has in common with others, the most particular first."""
        who, what = (self.pool, self.user), (self.project, self.name)
        return (*who, *what, self.gpus), (*who, self.gpus), (*who,), (self.pool, self.gpus), (self.pool,), ()


class History:
    """Everything that has ended, as far as it is remembered."""

    def __init__(self) -> None:
        self._seen: dict[tuple[object, ...], Seen] = {}

    def observe(self, asked: Asked, seconds: float) -> None:
        """A task has ended by itself after so long."""
        for likeness in asked.likenesses():
            seen = self._seen.get(likeness)
            if seen is None:
                seen = self._seen[likeness] = Seen()
            seen.add(max(seconds, LEAST_SECONDS))

    def estimate(self, asked: Asked) -> Estimate | None:
        """How long a task like this one is thought to run."""
        for likeness in asked.likenesses():
            seen = self._seen.get(likeness)
            if seen is not None and len(seen.ordered) >= ENOUGH:
                return Estimate(seen.part(0.5), seen.part(0.05), seen.part(0.95))
        return None


class Seen:
    """The last run times of one kind, in two orders."""

    __slots__ = ("last", "ordered")

    def __init__(self) -> None:
        self.last: deque[float] = deque()
        self.ordered: list[float] = []

    def add(self, seconds: float) -> None:
        """One more; the oldest goes when there are too many."""
        self.last.append(seconds)
        insort(self.ordered, seconds)
        if len(self.last) > REMEMBERED:
            self.ordered.remove(self.last.popleft())

    def part(self, part: float) -> float:
        """The run time that this part of them did not exceed."""
        return self.ordered[min(len(self.ordered) - 1, int(part * len(self.ordered)))]
