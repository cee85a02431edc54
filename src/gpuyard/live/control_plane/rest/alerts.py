"""Alerts, their rules and history, and silences. Alerts about a tenant are shown to those who may see the tenant."""

from gpuyard.input.nearest_name import closest_word
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.principal import visible_tenant
from gpuyard.live.control_plane.alerts.rules.rule import Alert, AlertStatus
from gpuyard.live.control_plane.alerts.service import Alerts, TooManySilences
from gpuyard.live.control_plane.alerts.silences import MATCHERS, MOST_SILENCES, Silence
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.query import Parameter, counted, instant, number, one_of
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.control_plane.time_slices import TimeSlicer
from gpuyard.live.wire import alert_answers as wire
from gpuyard.live.wire.answers import MessageAnswer
from gpuyard.live.wire.limits import instant_of

USUAL_LIMIT = 100
STATES = {status.value: status for status in AlertStatus}
LIST = (
    Parameter(
        "state",
        "Only these states; separate several with commas or repeat the parameter.",
        one_of(STATES),
        values=tuple(STATES),
        many=True,
    ),
)
HISTORY = (
    counted("limit", f"Number of entries on a page (default: {USUAL_LIMIT}).", 1, 1000),
    Parameter("cursor", "The next_cursor of the previous page.", number(1, 2**62)),
)


async def list_alerts(context: AppContext, request: Request) -> Response:
    """List the alerts that the caller may see."""
    alerts, states = context.scheduler.alerts, request.query.get("state")
    sight, turns = visible_tenant(request.principal), TimeSlicer()
    told, counts = [], alerts.counts(sight)
    for alert in alerts.present(sight):
        if states is None or alert.status in states:
            told.append(_answer(alerts, alert))
        if turns.due():
            await turns.give()
    return json_response(wire.AlertList(told, *counts))


async def list_rules(context: AppContext, request: Request) -> Response:  # noqa: ARG001
    """List all rules as they are evaluated."""
    options = context.scheduler.alerts.options
    rules = [
        wire.AlertRuleAnswer(
            rule.name,
            rule.summary,
            rule.enabled,
            rule.severity.value,
            rule.threshold,
            rule.clear,
            rule.above,
            rule.unit,
            rule.for_seconds,
            rule.keep_firing_seconds,
            rule.inhibited_by or None,
        )
        for rule in options.rules.values()
    ]
    return json_response(wire.AlertRuleList(rules, options.interval_seconds if options.enabled else 0.0))


async def get_history(context: AppContext, request: Request) -> Response:
    """List changes of alerts, newest first."""
    alerts, limit = context.scheduler.alerts, request.query.get("limit", USUAL_LIMIT)
    found = await alerts.history(request.query.get("cursor"), limit + 1, visible_tenant(request.principal))
    entries = [
        wire.AlertHistoryEntry(instant_of(each.at), each.status.value, _answer(alerts, each.alert, past=True))
        for each in found[:limit]
    ]
    return json_response(wire.AlertHistory(entries, str(found[limit - 1].number) if len(found) > limit else None))


async def list_silences(context: AppContext, request: Request) -> Response:  # noqa: ARG001
    """List the silences that have not ended."""
    silences = [_silence(each) for each in context.scheduler.alerts.silences()]
    return json_response(wire.SilenceList(silences, len(silences)))


async def post_silence(context: AppContext, request: Request) -> Response:
    """Silence alerts."""
    asked = wire.read_silence(await request.body())
    matchers = tuple((name, value) for name in MATCHERS if (value := getattr(asked.matchers, name)) is not None)
    if not matchers:
        message = f"A silence needs a matcher; give at least one of {', '.join(MATCHERS)}."
        raise WrongRequest("NoMatcher", message, "matchers")
    alerts = context.scheduler.alerts
    if asked.matchers.rule is not None and asked.matchers.rule not in alerts.options.rules:
        near = closest_word(asked.matchers.rule, alerts.options.rules)
        hint = f'did you mean "{near}"?' if near else f"known rules: {', '.join(alerts.options.rules)}."
        raise WrongRequest("UnknownRule", f'Unknown rule "{asked.matchers.rule}"; {hint}', "matchers.rule")
    until = _until(asked, context.scheduler.clock())
    try:
        made = await alerts.silence(matchers, until, by=request.principal.username, comment=asked.comment)
    except TooManySilences:
        message = f"There are {MOST_SILENCES:,} silences, the maximum; end one of them first."
        raise WrongRequest("TooManySilences", message, status=409) from None
    return json_response(_silence(made), 201)


async def delete_silence(context: AppContext, request: Request) -> Response:
    """End a silence."""
    name = request.path_params["id"]
    if not await context.scheduler.alerts.end_silence(name):
        raise WrongRequest("UnknownSilence", f"Silence {name[:64]} does not exist or has ended.", "id", status=404)
    return json_response(MessageAnswer(f"Silence {name} has ended."))


def _until(asked: wire.SilenceRequest, now: float) -> float:
    if (asked.seconds is None) == (asked.until is None):
        raise WrongRequest("Contradiction", "Give either seconds or until.", "seconds")
    if asked.seconds is not None:
        return now + asked.seconds
    assert asked.until is not None
    try:
        until = instant(asked.until)
    except ValueError as error:
        raise WrongRequest("WrongValue", f"until is not a time; {error}.", "until") from None
    if until <= now:
        raise WrongRequest("WrongValue", "until is in the past; give a later time.", "until")
    return until


def _answer(alerts: Alerts, alert: Alert, *, past: bool = False) -> wire.AlertAnswer:
    silenced_by = None if past else alerts.silenced_by(alert)
    return wire.AlertAnswer(
        id=alert.id,
        rule=alert.rule,
        severity=alert.severity.value,
        state=alert.status.value,
        labels=dict(alert.labels),
        summary=alert.summary,
        value=alert.value,
        since=instant_of(alert.since),
        fired_at=None if alert.fired_at is None else instant_of(alert.fired_at),
        resolved_at=None if alert.resolved_at is None else instant_of(alert.resolved_at),
        silenced_by=silenced_by or None,
        inhibited=silenced_by == "",
        sent_to=[] if past else alerts.sent_to(alert),
    )


def _silence(silence: Silence) -> wire.SilenceAnswer:
    return wire.SilenceAnswer(
        silence.id,
        dict(silence.matchers),
        silence.created_by,
        instant_of(silence.created_at),
        instant_of(silence.until),
        silence.comment,
    )
