"""`gpuyard tokens`: keys for programs, each of one user."""

from typing import Annotated

import typer

from gpuyard.cli.options import Json, Server, Token, client, is_for_a_verb_below, seconds_of

app = typer.Typer(rich_markup_mode=None)
NAMES = ("ID", "USER", "NAME", "MADE", "LAST USED", "EXPIRES")


@app.callback(invoke_without_command=True)
def tokens(context: typer.Context, as_json: Json = False, server: Server = None, token: Token = None) -> None:
    """List tokens; with a verb, make or revoke one."""
    if is_for_a_verb_below(context, as_json, server, token):
        return
    yard = client(server, token)
    known = yard.tokens()
    from gpuyard.cli.printing import print_answer, print_table, spoken_instant

    if as_json:
        print_answer(yard)
        return
    rows = (
        (
            one.id,
            one.username,
            one.name,
            spoken_instant(one.created_at),
            spoken_instant(one.last_used_at),
            spoken_instant(one.expires_at) or "never",
        )
        for one in known.tokens
    )
    print_table(NAMES, rows)


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="What it is for.")] = "",
    user: Annotated[str | None, typer.Option("-u", "--user", metavar="NAME", help="Whose (default: yours).")] = None,
    lifetime: Annotated[
        str | None, typer.Option("--lifetime", metavar="TIME", help="How long it is good for (default: until revoked).")
    ] = None,
    as_json: Json = False,
    server: Server = None,
    token: Token = None,
) -> None:
    """Make a token and print it. It is shown this once; set GPUYARD_TOKEN to it."""
    yard = client(server, token)
    from gpuyard.cli.printing import report

    made = yard.create_token(name, username=user, lifetime_seconds=seconds_of(lifetime, "--lifetime"))
    report(yard, made.token, as_json=as_json)


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As `gpuyard tokens` names it.")],
    as_json: Json = False,
    server: Server = None,
    token: Token = None,
) -> None:
    """Let nobody in with this token any more."""
    yard = client(server, token)
    from gpuyard.cli.printing import report

    yard.revoke_token(token_id)
    report(yard, f"{token_id} was revoked.", as_json=as_json)
