"""A notification: what one receiver is told about one group of alerts, and the forms in which it is written."""

from dataclasses import dataclass
from typing import Any, Protocol

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.live.control_plane.alerts.rules.rule import Alert, rounded
from gpuyard.live.wire.limits import instant_of

SEND_SECONDS = 10.0
"""How long sending may take."""
MOST_ALERTS = 100
"""Maximum number of alerts in one notification; the number of the others is told."""
NOT_ENDED = "0001-01-01T00:00:00Z"
"""`endsAt` of an alert that fires, as Alertmanager writes it."""


class NotDelivered(GpuyardError):
    """A notification could not be delivered. It is tried again."""


@dataclass(frozen=True, slots=True)
class Notification:
    """The alerts of one group: those that fire, and those that have been resolved since the last notification."""

    receiver: str
    group: tuple[tuple[str, str], ...]
    """The labels that all alerts of the group share."""
    firing: tuple[Alert, ...]
    resolved: tuple[Alert, ...]

    @property
    def status(self) -> str:
        """Return firing if any alert fires, otherwise resolved."""
        return "firing" if self.firing else "resolved"


class Receiver(Protocol):
    """Somebody who is told."""

    @property
    def name(self) -> str:
        """Its name in the settings."""
        ...

    @property
    def send_resolved(self) -> bool:
        """Whether it wants to know of resolved alerts."""
        ...

    async def send(self, notification: Notification) -> None:
        """Send a notification, or raise `NotDelivered`. It may be cancelled at any time."""
        ...


def group_key(group: tuple[tuple[str, str], ...]) -> str:
    """Return a group's labels as one text, as Alertmanager writes them."""
    return "{}:{" + ", ".join(f'{name}="{_escaped(value)}"' for name, value in group) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def alertmanager_body(notification: Notification, external_url: str) -> dict[str, Any]:
    """Return the body of Alertmanager's webhooks, version 4."""
    alerts = (*notification.firing, *notification.resolved)
    shown = [_alert(each, external_url) for each in alerts[:MOST_ALERTS]]
    return {
        "version": "4",
        "groupKey": group_key(notification.group),
        "truncatedAlerts": len(alerts) - len(shown),
        "status": notification.status,
        "receiver": notification.receiver,
        "groupLabels": dict(notification.group),
        "commonLabels": _common([each["labels"] for each in shown]),
        "commonAnnotations": _common([each["annotations"] for each in shown]),
        "externalURL": external_url,
        "alerts": shown,
    }


def _alert(alert: Alert, external_url: str) -> dict[str, Any]:
    ended = alert.resolved_at
    return {
        "status": "firing" if ended is None else "resolved",
        "labels": {"alertname": alert.rule, "severity": str(alert.severity), **dict(alert.labels)},
        "annotations": {"summary": alert.summary, "value": rounded(alert.value)},
        "startsAt": instant_of(alert.fired_at if alert.fired_at is not None else alert.since),
        "endsAt": NOT_ENDED if ended is None else instant_of(ended),
        "generatorURL": f"{external_url}/#/alerts" if external_url else "",
        "fingerprint": alert.id,
    }


def _common(maps: list[dict[str, str]]) -> dict[str, str]:
    """Return the pairs that all maps have."""
    first = maps[0] if maps else {}
    return {name: value for name, value in first.items() if all(each.get(name) == value for each in maps)}


def plain_text(notification: Notification) -> str:
    """Return the notification as lines of text."""
    lines = []
    for word, alerts in (("firing", notification.firing), ("resolved", notification.resolved)):
        for alert in alerts[:MOST_ALERTS]:
            where = " ".join(f"{name}={one_line(value)}" for name, value in alert.labels)
            began = instant_of(alert.fired_at if alert.fired_at is not None else alert.since)
            ended = "" if alert.resolved_at is None else f" until {instant_of(alert.resolved_at)}"
            lines.append(f"{word}: {alert.rule} ({alert.severity}) {where}")
            lines.append(f"    {one_line(alert.summary)}")
            lines.append(f"    since {began}{ended}")
        if len(alerts) > MOST_ALERTS:
            lines.append(f"… and {len(alerts) - MOST_ALERTS} more.")
    return "\n".join(lines) + "\n"


def one_line(text: str) -> str:
    """Return text without line breaks and control characters, which would begin another header of a mail."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
