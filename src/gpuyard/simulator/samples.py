"""A line over time with a bounded number of points, however long it gets: twice too many are thinned out to half."""

from typing import Generic, TypeVar

MOST = 2_000

PointT = TypeVar("PointT")


class Samples(Generic[PointT]):
    """Instants, each with what was so from then on."""

    def __init__(self, most: int = MOST) -> None:
        self.points: list[tuple[float, PointT]] = []
        self._most = most
        self._every = 0.0
        self._next = 0.0

    def wants(self, at: float) -> bool:
        """Whether it is time for another point."""
        return at >= self._next

    def add(self, at: float, point: PointT) -> None:
        """Another point; of one instant the last counts."""
        if self.points and self.points[-1][0] == at:
            self.points.pop()
        self.points.append((at, point))
        if len(self.points) >= 2 * self._most:
            self.points = self.points[::2]
            self._every = (self.points[-1][0] - self.points[0][0]) / self._most
        self._next = at + self._every
