"""What a rule says, what it is evaluated on, and what it remembers of each alert."""

from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b

from gpuyard.core.domain.values import Value

Labels = tuple[tuple[str, str], ...]
"""Pairs of name and value in the order of their names. With the name of its rule they identify an alert."""


class Severity(StrEnum):
    """How urgent an alert is."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class AlertStatus(StrEnum):
    """The states of an alert. A condition that does not hold has no alert."""

    PENDING = "pending"
    """The condition holds, for less time than the rule asks."""
    FIRING = "firing"
    RESOLVED = "resolved"
    """It fired, and the condition has ended. Such an alert is listed for a while."""
    NO_DATA = "no_data"
    """It was pending or firing, and there has been no value since: nothing is known about the condition."""


class Rule(Value, frozen=True):
    """A threshold and the times around it."""

    name: str
    summary: str
    """One sentence for the manual and the list of rules."""
    unit: str
    threshold: float
    clear: float
    """A firing alert ends when the value has passed this: hysteresis. Equal to `threshold`: none."""
    above: bool = True
    """The condition holds at or above the threshold; otherwise at or below it."""
    for_seconds: float = 0.0
    """How long the condition must hold before the alert fires."""
    keep_firing_seconds: float = 0.0
    """How long a firing alert stays firing after the condition has ended."""
    severity: Severity = Severity.WARNING
    enabled: bool = True
    inhibited_by: str = ""
    """Name of a rule: while it holds for the node of an alert of this rule, that alert is not sent."""

    def holds(self, value: float, *, firing: bool) -> bool:
        """Whether the condition holds. A firing alert is measured against `clear`."""
        limit = self.clear if firing else self.threshold
        return value >= limit if self.above else value <= limit


class Sample(Value, frozen=True):
    """The value that a rule is evaluated on, for one GPU, node or tenant."""

    labels: Labels
    value: float | None
    """None: it exists, but nothing is known about it now."""
    summary: str = ""
    """What the alert says; empty: made from the rule, the labels and the value."""


class Alert(Value, frozen=True):
    """One alert of a rule."""

    rule: str
    labels: Labels
    status: AlertStatus
    severity: Severity
    summary: str
    value: float
    since: float
    """When the condition began to hold."""
    held_at: float
    """When it last held."""
    seen_at: float
    """When there last was a value."""
    fired_at: float | None = None
    resolved_at: float | None = None

    @property
    def id(self) -> str:
        """The same for the same rule and labels, in every process."""
        return alert_id(self.rule, self.labels)

    @property
    def fires(self) -> bool:
        """Whether it fires, or did when there last was a value."""
        return self.status is AlertStatus.FIRING or (self.status is AlertStatus.NO_DATA and self.fired_at is not None)


class Notice(Value, frozen=True):
    """A change of an alert's status that people may want to know."""

    alert: Alert
    status: AlertStatus


@lru_cache(maxsize=20_000)
def alert_id(rule: str, labels: Labels) -> str:
    """Return 16 hexadecimal digits for a rule and its labels."""
    words = "\xff".join((rule, *(word for pair in labels for word in pair)))
    return blake2b(words.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def rounded(value: float) -> str:
    """Return a value for people: two decimals below 10, one from there on."""
    return f"{round(value, 2 if abs(value) < 10 else 1):.15g}"
