"""`gpuyard completion`: print the completion script of a shell."""

from typing import Annotated

import typer

from gpuyard.cli.input.options import JsonOption


def completion(
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="The shell.")], as_json: JsonOption = False
) -> None:
    """Print the script that completes commands, options and names in a shell: source <(gpuyard completion bash)."""
    from gpuyard.cli.shell.scripts import SCRIPTS

    script = SCRIPTS.get(shell)
    if script is None:
        raise typer.BadParameter(f"{shell!r} is not one of {', '.join(SCRIPTS)}", param_hint="'SHELL'")
    if as_json:
        from gpuyard.cli.output.printing import print_json

        print_json({"shell": shell, "script": script})
    else:
        typer.echo(script, nl=False)
