"""Silences: alerts that match one are not sent until it ends. They are listed, and they fire, as before."""

from collections.abc import Mapping

from gpuyard.core.domain.values import Value
from gpuyard.live.control_plane.alerts.rules.rule import Alert

MATCHERS = ("rule", "node", "gpu")
"""What a silence may name. All that it names must be equal."""
MOST_SILENCES = 1_000


class Silence(Value, frozen=True):
    """A silence of an operator."""

    id: str
    matchers: tuple[tuple[str, str], ...]
    created_by: str
    created_at: float
    until: float
    comment: str = ""

    def matches(self, known: Mapping[str, str]) -> bool:
        """Whether it silences an alert with these names and values, see `known_of`."""
        return all(known.get(name) == value for name, value in self.matchers)


def known_of(alert: Alert) -> dict[str, str]:
    """Return what a silence may name of an alert."""
    return {**dict(alert.labels), "rule": alert.rule}
