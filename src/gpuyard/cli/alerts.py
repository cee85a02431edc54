"""`gpuyard alerts`: conditions of the cluster that need attention."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client, seconds_of
from gpuyard.cli.output.listing import Listing, group, list_command

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client
    from gpuyard.live.wire.alert_answers import AlertAnswer

NAMES = ("STATE", "SEVERITY", "RULE", "WHERE", "SINCE", "SENT", "SUMMARY")


def alerts(cluster: "Client") -> Listing:
    """List alerts; the commands below list rules and history, and silence alerts."""
    from gpuyard.cli.output.printing import format_instant

    rows = (
        (
            one.state,
            one.severity,
            one.rule,
            one.labels,
            format_instant(one.fired_at or one.since),
            f"silenced by {one.silenced_by}" if one.silenced_by else "inhibited" if one.inhibited else _sent(one),
            one.summary,
        )
        for one in cluster.alerts().alerts
    )
    return Listing(NAMES, rows)


def _sent(alert: "AlertAnswer") -> str | None:
    """Return to whom an alert was sent; None until a receiver was told."""
    return ", ".join(alert.sent_to) or None


app = group(alerts)


def rules(cluster: "Client") -> Listing:
    """List the rules as they are evaluated."""
    from gpuyard.cli.output.printing import format_seconds

    names = ("RULE", "ENABLED", "SEVERITY", "FIRES", "CLEARS", "FOR", "KEEPS FIRING", "SUMMARY")
    rows = (
        (
            one.name,
            "yes" if one.enabled else "no",
            one.severity,
            f"{'≥' if one.above else '≤'} {one.threshold:g} {one.unit}".strip(),
            f"{'<' if one.above else '>'} {one.clear:g} {one.unit}".strip(),
            format_seconds(one.for_seconds),
            format_seconds(one.keep_firing_seconds),
            one.summary,
        )
        for one in cluster.alert_rules().rules
    )
    return Listing(names, rows)


def history(cluster: "Client") -> Listing:
    """List the last 100 changes of alerts, newest first."""
    from gpuyard.cli.output.printing import format_instant

    rows = (
        (format_instant(one.at), one.state, one.alert.rule, one.alert.labels, one.alert.summary)
        for one in cluster.alert_history().entries
    )
    return Listing(("AT", "STATE", "RULE", "WHERE", "SUMMARY"), rows)


def silences(cluster: "Client") -> Listing:
    """List the silences that have not ended."""
    from gpuyard.cli.output.printing import format_instant

    rows = (
        (one.id, one.matchers, format_instant(one.until), one.created_by, one.comment)
        for one in cluster.silences().silences
    )
    return Listing(("ID", "MATCHES", "UNTIL", "BY", "COMMENT"), rows)


for _listed in (rules, history, silences):
    app.command()(list_command(_listed))


@app.command()
def silence(
    rule: Annotated[str | None, typer.Option("--rule", metavar="NAME", help="Only alerts of this rule.")] = None,
    node: Annotated[str | None, typer.Option("--node", metavar="ID", help="Only alerts of this node.")] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="ID", help="Only alerts of this GPU, such as node-1/0.")
    ] = None,
    duration: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long, such as 30m, 2h or 1d (default: 1h).")
    ] = "1h",
    comment: Annotated[str, typer.Option("--comment", metavar="TEXT", help="Why.")] = "",
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Do not send alerts that match all of the given options, for a while. They are still listed."""
    cluster = client(server, token)
    seconds = seconds_of(duration, "--for")
    assert seconds is not None
    made = cluster.silence_alerts(seconds=seconds, rule=rule, node=node, gpu=gpu, comment=comment)
    from gpuyard.cli.output.printing import format_instant, report

    report(cluster, f"Silence {made.id} ends at {format_instant(made.until)}.", as_json=as_json)


@app.command()
def unsilence(
    silence_id: Annotated[
        str, typer.Argument(metavar="ID", help="Silence id, as listed by `gpuyard alerts silences`.")
    ],
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """End a silence."""
    cluster = client(server, token)
    cluster.end_silence(silence_id)
    from gpuyard.cli.output.printing import report

    report(cluster, f"Silence {silence_id} has ended.", as_json=as_json)
