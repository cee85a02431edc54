"""`gpuyard users`: manage users. Passwords are prompted for or read from standard input, never given as arguments."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client
from gpuyard.cli.output.listing import Listing, group

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client

NAMES = ("USER", "TENANT", "ROLE", "RUNS AS")
Username = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]


def users(cluster: "Client") -> Listing:
    """List users; the commands below add, change or remove a user or set a password."""
    return Listing(
        NAMES, ((user.username, user.tenant_id, user.role, user.system_user) for user in cluster.users().users)
    )


app = group(users)


@app.command()
def add(
    username: Username,
    tenant: Annotated[
        str, typer.Option("-t", "--tenant", metavar="NAME", help="Tenant of the user's tasks.")
    ] = "default",
    role: Annotated[
        str, typer.Option("--role", metavar="admin|operator|member|viewer", help="Role of the user.")
    ] = "member",
    system_user: Annotated[
        str,
        typer.Option(
            "--system-user",
            metavar="ACCOUNT",
            help="System account that runs the user's tasks (agents that run as root).",
        ),
    ] = "",
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Add a user; the password is prompted for twice, or read once from the first line of standard input."""
    cluster = client(server, token)
    from gpuyard.cli.output.printing import report, with_article

    told = cluster.add_user(username, new_password(), tenant_id=tenant, role=role, system_user=system_user)
    report(cluster, f"{told.username} is {with_article(told.role)} of {told.tenant_id}.", as_json=as_json)


@app.command("set")
def change(
    username: Username,
    tenant: Annotated[str | None, typer.Option("-t", "--tenant", metavar="NAME", help="Another tenant.")] = None,
    role: Annotated[
        str | None, typer.Option("--role", metavar="admin|operator|member|viewer", help="Another role.")
    ] = None,
    system_user: Annotated[
        str | None,
        typer.Option(
            "--system-user", metavar="ACCOUNT", help="System account that runs the user's tasks; '' for none."
        ),
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Change a user's tenant, role or system account. Options that are omitted are kept."""
    if tenant is None and role is None and system_user is None:
        raise typer.BadParameter("give --tenant, --role or --system-user", param_hint="'set'")
    cluster = client(server, token)
    from gpuyard.cli.output.printing import report, with_article

    told = cluster.change_user(username, tenant_id=tenant, role=role, system_user=system_user)
    runs_as = f"; tasks run as {told.system_user}" if told.system_user else ""
    report(cluster, f"{told.username} is {with_article(told.role)} of {told.tenant_id}{runs_as}.", as_json=as_json)


@app.command()
def passwd(
    username: Username,
    revoke_tokens: Annotated[
        bool, typer.Option("--revoke-tokens", help="Also revoke all tokens of the user; logins end in any case.")
    ] = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Set the password of a user; for your own, the current one is also needed.

    Both are asked for on a terminal. Otherwise they are read from standard input: the new one from the first line, your
    present one from the second.
    """
    cluster = client(server, token)
    from gpuyard.cli.output.printing import report
    from gpuyard.live.sdk import Refused

    new = new_password()
    try:
        cluster.set_password(username, new, revoke_tokens=revoke_tokens)
    except Refused as refusal:
        if refusal.field != "old_password":
            raise
        old = password("Present password: ")
        cluster.set_password(username, new, old_password=old, revoke_tokens=revoke_tokens)
    tokens = (
        "tokens of that user are revoked" if revoke_tokens else "tokens remain valid (--revoke-tokens revokes them)"
    )
    message = f"{username} has a new password; logins with the old one have ended, {tokens}."
    report(cluster, message, as_json=as_json)


@app.command()
def remove(
    username: Username, as_json: JsonOption = False, server: ServerOption = None, token: TokenOption = None
) -> None:
    """Remove a user and all tokens of the user. Tasks are kept."""
    cluster = client(server, token)
    from gpuyard.cli.output.printing import report

    cluster.remove_user(username)
    report(cluster, f"{username} was removed.", as_json=as_json)


def new_password() -> str:
    """Return a new password: prompted for twice on a terminal, otherwise one line of standard input."""
    from getpass import getpass

    if not sys.stdin.isatty():
        return password()
    first = getpass("New password: ")
    if first != getpass("Again: "):
        raise typer.BadParameter("the two passwords differ; nothing was changed", param_hint="'password'")
    return first


def password(prompt: str = "Password: ") -> str:
    """Return a password: prompted for on a terminal, otherwise one line of standard input."""
    from getpass import getpass

    if sys.stdin.isatty():
        return getpass(prompt)
    given = sys.stdin.readline().rstrip("\n")
    if not given:
        raise typer.BadParameter("no password on standard input", param_hint="'password'")
    return given
