"""`gpuyard status`, `gpuyard promote` and `gpuyard detach-standby`: which scheduler of a cluster leads."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client

if TYPE_CHECKING:
    from gpuyard.live.wire.answers import HealthAnswer, ReplicationAnswer

ANSWER_SECONDS = 3.0
"""A scheduler that does not answer for so long stands still."""
NAMES = ("SCHEDULER", "ROLE", "STATUS", "EPOCH", "BEHIND", "VERSION")


def status(as_json: JsonOption = False, server: ServerOption = None, token: TokenOption = None) -> None:
    """Show the schedulers of a cluster: which one leads, and how far the others are behind.

    Of schedulers that replicate without a database also: which copies have every event, who votes, what is missing. With
    several addresses, as in GPUYARD_SERVER=http://a:8080,http://b:8080, all of them are asked. The exit code is 0 if one
    that was asked leads, or knows which one leads, and 1 if none does or several do.
    """
    import msgspec

    from gpuyard.cli.output.printing import print_json, print_table

    found = [(address, _ask(address, token)) for address in _addresses(server)]
    answering = [(address, health) for address, health in found if not isinstance(health, str)]
    leaders = [address for address, health in answering if (health.role, health.status) == ("master", "ok")]
    works = len(leaders) <= 1 and any(
        health.status == "ok" and (health.role == "master" or health.leader) for _, health in answering
    )
    replication, notes = _replication(answering, token)
    if as_json:
        rows = [
            {"server": address, "error": health}
            if isinstance(health, str)
            else {"server": address, **msgspec.to_builtins(health)}
            for address, health in found
        ]
        print_json({"schedulers": rows, "replication": msgspec.to_builtins(replication)})
    else:
        print_table(
            NAMES,
            [
                (address, "–", "no answer", "–", "–", "–")
                if isinstance(health, str)
                else (
                    address,
                    health.role,
                    health.status,
                    health.epoch or "–",
                    f"{health.behind_seconds * 1000:.0f} ms" if health.role == "standby" else "–",
                    health.version,
                )
                for address, health in found
            ],
        )
        if replication is not None:
            _show(replication)
        for note in notes:
            typer.echo(note)
        if len(leaders) > 1:
            typer.echo(
                f"These are different clusters, because each of them leads: {', '.join(leaders)}. Check replication.enabled, "
                "replication.peer_address, storage.shared_storage and scheduler.role."
            )
        elif answering and not works:
            typer.echo("No scheduler leads.")
        for address, health in found:
            if isinstance(health, str):
                typer.echo(f"{address}: {health}", err=True)
    if not works:
        raise typer.Exit(1)


def promote(as_json: JsonOption = False, server: ServerOption = None, token: TokenOption = None) -> None:
    """Let a standby lead; the scheduler that leads hands over to it. Running tasks continue.

    With several addresses, the standby that is least behind is promoted.
    """
    from gpuyard.cli.output.printing import print_answer
    from gpuyard.live.sdk.errors import ClusterError

    addresses = _addresses(server)
    if len(addresses) > 1:
        asked = [(address, _ask(address, token)) for address in addresses]
        standbys = [
            (health.behind_seconds, address)
            for address, health in asked
            if not isinstance(health, str) and health.role == "standby" and health.status == "ok"
        ]
        if not standbys:
            raise ClusterError("None of these schedulers is a standby that works; see `gpuyard status`.")
        addresses = [min(standbys)[1]]
    cluster = client(addresses[0], token)
    told = cluster.promote()
    if as_json:
        print_answer(cluster)
    else:
        typer.echo(f"{addresses[0]} leads now (epoch {told.epoch}).")


def detach_standby(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Go on without the other scheduler until it has caught up; for replication.single_copy_after: 0.

    New events are then on one disk only: if it is lost, they are lost. The other scheduler cannot lead meanwhile. It is
    included again by itself when it is back.
    """
    from gpuyard.cli.output.printing import print_answer

    if not yes:
        typer.confirm("New events will be on one disk only until the other scheduler is back. Go on?", abort=True)
    cluster = client(server, token)
    cluster.detach_standby()
    if as_json:
        print_answer(cluster)
    else:
        typer.echo("The scheduler that leads goes on alone until the other one has caught up.")


def _replication(
    answering: "list[tuple[str, HealthAnswer]]", token: str | None
) -> "tuple[ReplicationAnswer | None, list[str]]":
    """Return what the leader, or else a standby, says about the replication, and what else the others know to be wrong."""
    from gpuyard.live.sdk import connect
    from gpuyard.live.sdk.errors import ClusterError, Refused

    told, notes, refusals = None, list[str](), list[str]()
    for _, address in sorted((health.role != "master", address) for address, health in answering):
        try:
            answer = connect(address, token=token, timeout_seconds=ANSWER_SECONDS).replication()
        except Refused as refused:
            if refused.code != "NotReplicated":
                refusals.append(f"{address} does not tell how it replicates: {refused.message}")
        except ClusterError:
            continue  # it answered a moment ago
        else:
            if told is not None:
                notes += [f"{address}: {problem}" for problem in answer.problems if problem not in told.problems]
            told = told or answer
    return told, notes if told is not None else refusals


def _show(replication: "ReplicationAnswer") -> None:
    voters = [voter for voter in replication.voters if voter.votes]
    connected = ", ".join(f"{voter.node}{'' if voter.connected else ' (away)'}" for voter in voters)
    typer.echo(f"Complete copies: {', '.join(_plain(name) for name in replication.in_sync)}. Voters: {connected}.")
    for problem in replication.problems:
        typer.echo(problem)


def _plain(replica: str) -> str:
    return replica.partition("#")[0]


def _addresses(server: str | None) -> list[str]:
    from gpuyard.live.sdk.client import DEFAULT_SERVER

    said = server or os.environ.get("GPUYARD_SERVER") or DEFAULT_SERVER
    return [address for each in said.split(",") if (address := each.strip())]


def _ask(address: str, token: str | None) -> "HealthAnswer | str":
    """Return the health of one scheduler, or why it does not answer."""
    from gpuyard.live.sdk import connect
    from gpuyard.live.sdk.errors import ClusterError, Unreachable

    try:
        return connect(address, token=token, timeout_seconds=ANSWER_SECONDS).health()
    except Unreachable as error:
        # The way out that it names is for clusters with one scheduler.
        return str(error).partition(". Start one")[0].rstrip(".") + "."
    except ClusterError as error:
        return str(error)
