"""`gpuyard tokens`: keys for programs, each of one user."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client, seconds_of
from gpuyard.cli.output.listing import Listing, group

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client

NAMES = ("ID", "USER", "NAME", "MADE", "LAST USED", "EXPIRES")


def tokens(cluster: "Client") -> Listing:
    """List tokens; with a verb, make or revoke one."""
    from gpuyard.cli.output.printing import format_instant

    rows = (
        (
            one.id,
            one.username,
            one.name,
            format_instant(one.created_at),
            format_instant(one.last_used_at),
            format_instant(one.expires_at) or "never",
        )
        for one in cluster.tokens().tokens
    )
    return Listing(NAMES, rows)


app = group(tokens)


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="What it is for.")] = "",
    user: Annotated[str | None, typer.Option("-u", "--user", metavar="NAME", help="Whose (default: yours).")] = None,
    lifetime: Annotated[
        str | None,
        typer.Option(
            "--lifetime",
            metavar="TIME",
            help="How long it is good for; longer than your login only with --password (default: as long as your login).",
        ),
    ] = None,
    with_password: Annotated[
        bool,
        typer.Option(
            "--password",
            help="Ask for your password, or read it from standard input: the token may then outlive your login.",
        ),
    ] = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Make a token and print it. It is shown this once; set GPUYARD_TOKEN to it."""
    cluster = client(server, token)
    from gpuyard.cli.output.printing import format_instant, report
    from gpuyard.cli.users import password

    seconds = seconds_of(lifetime, "--lifetime")
    made = cluster.create_token(
        name, username=user, lifetime_seconds=seconds, password=password() if with_password else None
    )
    report(cluster, made.token, as_json=as_json)
    if made.expires_at is not None and seconds is None:
        until = format_instant(made.expires_at)
        typer.echo(f"It ends with your login, at {until}; --password makes one that does not.", err=True)


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As `gpuyard tokens` names it.")],
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Revoke a token: requests with it are refused from now on."""
    cluster = client(server, token)
    from gpuyard.cli.output.printing import report

    cluster.revoke_token(token_id)
    report(cluster, f"{token_id} was revoked.", as_json=as_json)
