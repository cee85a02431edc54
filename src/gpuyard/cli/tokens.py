"""`gpuyard tokens`: access tokens for programs; each belongs to a user."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client, seconds_of
from gpuyard.cli.output.listing import Listing, group

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client

NAMES = ("ID", "USER", "NAME", "MADE", "LAST USED", "EXPIRES")


def tokens(cluster: "Client") -> Listing:
    """List tokens; the commands below create or revoke a token."""
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
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Name of the token.")] = "",
    user: Annotated[
        str | None, typer.Option("-u", "--user", metavar="NAME", help="User of the token (default: you).")
    ] = None,
    lifetime: Annotated[
        str | None,
        typer.Option(
            "--lifetime",
            metavar="TIME",
            help=(
                "Lifetime of the token; longer than your login only with --password (default: as long as your login)."
            ),
        ),
    ] = None,
    with_password: Annotated[
        bool,
        typer.Option(
            "--password",
            help="Prompt for your password or read it from standard input, so that the token may outlive your login.",
        ),
    ] = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Create a token and print it. It is shown only once; set GPUYARD_TOKEN to it."""
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
        typer.echo(f"It expires with your login, at {until}; use --password to create one that lasts longer.", err=True)


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="Token id, as listed by `gpuyard tokens`.")],
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Revoke a token; further requests with it are rejected."""
    cluster = client(server, token)
    from gpuyard.cli.output.printing import report

    cluster.revoke_token(token_id)
    report(cluster, f"{token_id} was revoked.", as_json=as_json)
