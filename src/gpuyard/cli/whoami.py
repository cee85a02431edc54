"""`gpuyard whoami`: who the scheduler takes this person for."""

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client


def whoami(as_json: JsonOption = False, server: ServerOption = None, token: TokenOption = None) -> None:
    """Show your user, tenant, role and rights."""
    cluster = client(server, token)
    told = cluster.who_am_i()
    from gpuyard.cli.output.printing import print_answer, print_pairs

    if as_json:
        print_answer(cluster)
    elif told.login_required:
        typer.echo("You are not logged in. Run `gpuyard login`.")
    else:
        print_pairs(
            (
                ("user", told.username),
                ("tenant", told.tenant_id or "all; tasks are submitted for the tenant default"),
                ("role", told.role),
                ("recognized by", told.via),
                ("may", told.actions),
                ("server", cluster.connection.server),
            )
        )
    if told.login_required:
        raise typer.Exit(1)
