"""`gpuyard login`: log in and store the token."""

import os
import sys
from typing import Annotated

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, client


def login(
    username: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="User name; prompted for if omitted.")
    ] = None,
    forget: Annotated[
        bool, typer.Option("--forget", help="Delete the token and the system user that are stored for this server.")
    ] = False,
    server_user: Annotated[
        str | None,
        typer.Option(
            "--server-user",
            metavar="USER",
            help="Trust a scheduler that this system user runs on this machine, besides you and root.",
        ),
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Log in; the token is stored for this server, readable only by you, and used when GPUYARD_TOKEN is not set."""
    from gpuyard.cli.users import password
    from gpuyard.live.sdk.client import DEFAULT_SERVER
    from gpuyard.live.sdk.tokens import store_server_user, store_token, stored_server_user, stored_token

    address = server or os.environ.get("GPUYARD_SERVER") or DEFAULT_SERVER
    if forget:
        had = stored_token(address) is not None or stored_server_user(address) is not None
        store_token(address, None)
        store_server_user(address, None)
        typer.echo(f"What was stored for {address} is deleted." if had else f"Nothing was stored for {address}.")
        return
    if server_user is not None:
        store_server_user(address, server_user)
        typer.echo(f"{server_user} is now trusted to run the scheduler at {address}.", err=True)
        if username is None and not sys.stdin.isatty():
            return
    if username is None and not sys.stdin.isatty():
        raise typer.BadParameter("required, because there is no terminal to prompt on", param_hint="'NAME'")
    cluster = client(address, "")
    told = cluster.login(username or typer.prompt("Name", err=True), password())
    path = store_token(address, told.token)
    from gpuyard.cli.output.printing import format_instant, print_json

    if as_json:
        print_json(
            {"username": told.username, "tenant_id": told.tenant_id, "role": told.role, "expires_at": told.expires_at}
        )
        return
    typer.echo(
        f"You are logged in as {told.username}, {told.role} of {told.tenant_id}, until "
        f"{format_instant(told.expires_at)}."
    )
    typer.echo(f"The token is stored in {path}.")
