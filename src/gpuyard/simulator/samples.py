"""A time series with a bounded number of points: at twice the limit, every second point is dropped."""

from typing import Generic, TypeVar

MOST = 2_000

PointT = TypeVar("PointT")


class Samples(Generic[PointT]):
    """Instants, each with the value that holds from then on."""

    def __init__(self, most: int = MOST) -> None:
        self.points: list[tuple[float, PointT]] = []
        self._most = most
        self._every = 0.0
        self._next = 0.0

    def wants(self, at: float) -> bool:
        """Return whether the next point is due."""
        return at >= self._next

    def add(self, at: float, point: PointT) -> None:
        """Add a point; of several points at one instant the last one counts."""
        if self.points and self.points[-1][0] == at:
            self.points.pop()
        self.points.append((at, point))
        if len(self.points) >= 2 * self._most:
            self.points = self.points[::2]
            self._every = (self.points[-1][0] - self.points[0][0]) / self._most
        self._next = at + self._every
