"""Requests and answers of /api/v1/alerts."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from gpuyard.input.strict import Strict
from gpuyard.live.wire.limits import Description, Instant

AlertStatusName: TypeAlias = Literal["pending", "firing", "resolved", "no_data"]
SeverityName: TypeAlias = Literal["info", "warning", "critical"]
MatcherValue: TypeAlias = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=256,
        pattern=r"^[^\u0000-\u001f\u007f]*$(?!\n)",
        description="one line of 1 to 256 characters",
    ),
]
SilenceSeconds: TypeAlias = Annotated[
    float, Meta(gt=0, le=366 * 86400, description="a number of seconds above 0, at most a year")
]


class AlertAnswer(Struct, frozen=True):
    """An alert. `id` is the same for the same rule and labels; notifications call it `fingerprint`."""

    id: str
    rule: str
    severity: SeverityName
    state: AlertStatusName
    labels: dict[str, str]
    summary: str
    value: float
    since: Instant
    fired_at: Instant | None = None
    resolved_at: Instant | None = None
    silenced_by: str | None = None
    """The id of a silence."""
    inhibited: bool = False
    """It is not sent, because another alert explains it."""
    sent_to: list[str] = []
    """The receivers that were told that it fires; empty for entries of the history."""


class AlertList(Struct, frozen=True):
    """Alerts, firing ones first. `firing` and `pending` count all that the caller may see."""

    alerts: list[AlertAnswer]
    firing: int
    pending: int


class AlertRuleAnswer(Struct, frozen=True):
    """A rule as it is evaluated."""

    name: str
    summary: str
    enabled: bool
    severity: SeverityName
    threshold: float
    clear: float
    above: bool
    unit: str
    for_seconds: float
    keep_firing_seconds: float
    inhibited_by: str | None = None


class AlertRuleList(Struct, frozen=True):
    """All rules, and how often they are evaluated; 0: alerts are disabled."""

    rules: list[AlertRuleAnswer]
    interval_seconds: float


class AlertHistoryEntry(Struct, frozen=True):
    """An alert as it was when its state changed."""

    at: Instant
    state: AlertStatusName
    alert: AlertAnswer


class AlertHistory(Struct, frozen=True):
    """Changes of alerts, newest first. `next_cursor` requests the next page; null: this is the last one."""

    entries: list[AlertHistoryEntry]
    next_cursor: str | None = None


class SilenceMatchers(Struct, frozen=True, forbid_unknown_fields=True):
    """What an alert must equal to be silenced; at least one is needed."""

    rule: MatcherValue | None = None
    node: MatcherValue | None = None
    gpu: MatcherValue | None = None


class SilenceRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Silence matching alerts. Give either `seconds` or `until`."""

    matchers: SilenceMatchers
    seconds: SilenceSeconds | None = None
    until: Instant | None = None
    comment: Description = ""


class SilenceAnswer(Struct, frozen=True):
    """A silence."""

    id: str
    matchers: dict[str, str]
    created_by: str
    created_at: Instant
    until: Instant
    comment: str


class SilenceList(Struct, frozen=True):
    """Silences that have not ended."""

    silences: list[SilenceAnswer]
    total: int


read_silence = Strict(SilenceRequest).json
