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

    def matches(self, alert: Alert) -> bool:
        """Whether it silences an alert."""
        known: Mapping[str, str] = {**dict(alert.labels), "rule": alert.rule}
        return all(known.get(name) == value for name, value in self.matchers)
