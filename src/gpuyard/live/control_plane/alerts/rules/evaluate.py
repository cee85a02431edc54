"""The state machine of an alert.

                     holds                 for `for`
    (no alert) ───────────────► pending ─────────────► firing ──────────────► resolved ───► (no alert)
                                  │  ▲                  │  ▲   not for                 RESOLVED_SECONDS
                    does not hold │  │ value            │  │   `keep_firing_for`
                                  ▼  │          no value│  │value, holds
                             (no alert)                 ▼  │
                                  └────────────────► no_data ──── value, does not hold ───► resolved

An alert whose sample is gone (a node was removed, a task has left its GPU) is resolved, because its object is no more.
A sample without a value is something else: after NO_DATA_SECONDS the alert says that nothing is known.
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from gpuyard.live.control_plane.alerts.rules.rule import Alert, AlertStatus, Labels, Notice, Rule, Sample, rounded

NO_DATA_SECONDS = 60.0
"""Agents connect again within this time after a restart of the scheduler, so a restart changes no state."""
RESOLVED_SECONDS = 3600.0
"""How long a resolved alert is listed."""
MOST_ALERTS = 5_000
"""Maximum number of alerts of one rule; further ones wait until there is room."""


def evaluate(
    rule: Rule, samples: Iterable[Sample], state: Mapping[Labels, Alert], now: float
) -> tuple[dict[Labels, Alert], list[Notice]]:
    """Return the alerts of a rule after these samples, and the changes that people may want to know."""
    after: dict[Labels, Alert] = {}
    notices: list[Notice] = []
    for _ in evaluating(rule, samples, state, now, after, notices):
        pass
    return after, notices


def evaluating(
    rule: Rule,
    samples: Iterable[Sample],
    state: Mapping[Labels, Alert],
    now: float,
    after: dict[Labels, Alert],
    notices: list[Notice],
) -> Iterator[None]:
    """Evaluate a rule step by step: fill `after` and `notices`, and pause after every sample."""
    left = dict(state)
    for sample in samples:
        before = left.pop(sample.labels, None)
        if before is None:
            if sample.value is None or not rule.holds(sample.value, firing=False) or len(after) >= MOST_ALERTS:
                yield
                continue
            alert: Alert | None = _began(rule, sample, sample.value, now)
        else:
            alert = _next(rule, before, sample, now)
        if alert is not None:
            after[sample.labels] = alert
            _note(notices, before, alert)
        yield
    for labels, before in left.items():
        gone = _gone(before, now)
        if gone is not None:
            after[labels] = gone
            _note(notices, before, gone)
        yield


def _began(rule: Rule, sample: Sample, value: float, now: float) -> Alert:
    alert = Alert(
        rule.name,
        sample.labels,
        AlertStatus.PENDING,
        rule.severity,
        summary_of(rule, sample, value),
        value,
        since=now,
        held_at=now,
        seen_at=now,
    )
    return _fire(rule, alert, now)


def _fire(rule: Rule, alert: Alert, now: float) -> Alert:
    """Let a pending alert fire if its condition has held for long enough."""
    if now - alert.since < rule.for_seconds:
        return alert
    return replace(alert, status=AlertStatus.FIRING, fired_at=now)


def _next(rule: Rule, before: Alert, sample: Sample, now: float) -> Alert | None:
    """Return the alert after a sample; None: there is no alert any more."""
    value = sample.value
    if value is None:
        return _without_value(before, now)
    if before.status is AlertStatus.RESOLVED:
        if rule.holds(value, firing=False):
            return _began(rule, sample, value, now)
        return _listed(before, now)
    holds = rule.holds(value, firing=before.fires)
    alert = replace(
        before,
        severity=rule.severity,
        value=value,
        seen_at=now,
        held_at=now if holds else before.held_at,
        summary=summary_of(rule, sample, value) if holds else before.summary,
    )
    if before.fires:
        if holds or now - alert.held_at < rule.keep_firing_seconds:
            return replace(alert, status=AlertStatus.FIRING)
        return replace(alert, status=AlertStatus.RESOLVED, resolved_at=now)
    if not holds:
        return None
    if before.status is AlertStatus.NO_DATA:  # it may have ceased to hold meanwhile
        alert = replace(alert, status=AlertStatus.PENDING, since=now)
    return _fire(rule, alert, now)


def _without_value(before: Alert, now: float) -> Alert | None:
    if before.status is AlertStatus.RESOLVED:
        return _listed(before, now)
    if now - before.seen_at < NO_DATA_SECONDS:
        return before
    return replace(before, status=AlertStatus.NO_DATA)


def _gone(before: Alert, now: float) -> Alert | None:
    if before.status is AlertStatus.RESOLVED:
        return _listed(before, now)
    return replace(before, status=AlertStatus.RESOLVED, resolved_at=now) if before.fires else None


def _listed(before: Alert, now: float) -> Alert | None:
    ended = before.resolved_at if before.resolved_at is not None else now
    return before if now - ended < RESOLVED_SECONDS else None


def _note(notices: list[Notice], before: Alert | None, after: Alert) -> None:
    if before is None or before.status is not after.status or before.fired_at != after.fired_at:
        notices.append(Notice(after, after.status))


def summary_of(rule: Rule, sample: Sample, value: float) -> str:
    """Return what an alert says."""
    if sample.summary:
        return sample.summary
    where = ", ".join(f"{name} {text}" for name, text in sample.labels)
    return f"{rule.summary} {where}: {rounded(value)} {rule.unit}".strip()
