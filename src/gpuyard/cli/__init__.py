"""The command line, for hands: a verb is a file (or a folder, when it is long).

A verb's file imports nothing heavy at its top, so `gpuyard --help` stays quick however many verbs there are; what a
verb needs it imports when it is called. Exit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted. Whatever goes
wrong is said in one sentence on standard error; a traceback means a bug in gpuyard.
"""

import sys
from typing import Annotated

import typer

from gpuyard.cli import (
    agent,
    bench,
    cancel,
    demo,
    docs,
    down,
    explain,
    gpus,
    lease,
    login,
    logs_of,
    nodes,
    ps,
    quota,
    run,
    server,
    show,
    submit,
    tenants,
    tokens,
    up,
    users,
)
from gpuyard.domain.errors import GpuyardError

DONE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130

# Without markup typer leaves rich alone: importing it would double the time that --help takes.
app = typer.Typer(name="gpuyard", rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
WORDS_OF_THE_TASK = {"allow_interspersed_args": False}
"""What follows the command belongs to it, also where it looks like an option of ours."""

app.command("up")(up.up)
app.command("down")(down.down)
app.command("server")(server.server)
app.command("agent")(agent.agent)
app.command("submit", context_settings=WORDS_OF_THE_TASK)(submit.submit)
app.command("run", context_settings=WORDS_OF_THE_TASK)(run.run)
app.command("ps")(ps.ps)
app.command("show")(show.show)
app.command("logs")(logs_of.logs)
app.command("cancel")(cancel.cancel)
app.command("explain")(explain.explain)
app.add_typer(lease.app, name="lease")
app.command("gpus")(gpus.gpus)
app.add_typer(nodes.app, name="nodes")
app.command("quota")(quota.quota)
app.add_typer(tenants.app, name="tenants")
app.add_typer(users.app, name="users")
app.add_typer(tokens.app, name="tokens")
app.command("login")(login.login)
app.command("demo")(demo.demo)
app.command("docs")(docs.docs)
app.add_typer(bench.app, name="bench")


@app.callback(invoke_without_command=True)
def gpuyard(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Say which version this is, and stop.")] = False,
) -> None:
    """Schedule GPU work for people who share GPUs."""
    if version:
        from gpuyard import __version__

        typer.echo(f"gpuyard {__version__}")
        raise typer.Exit(DONE)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(WRONG_USE)


def main() -> int:
    """Run one command line and return its exit code."""
    try:
        code = app(prog_name="gpuyard", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except GpuyardError as error:
        return _complain(str(error), FAILED)
    except OSError as error:
        return _complain(_spoken(error), FAILED)
    except Exception as error:
        # Which class means wrong use depends on the version of typer; all of them can say what was wrong.
        if not hasattr(error, "format_message"):
            raise
        return _complain(_with_way_out(error), WRONG_USE)
    return code if isinstance(code, int) else DONE


def _complain(sentence: str, code: int) -> int:
    print(f"gpuyard: {sentence}", file=sys.stderr)
    return code


def _spoken(error: OSError) -> str:
    """What the system said, without its number."""
    words = error.strerror or str(error)
    return f"{error.filename}: {words}." if error.filename else f"{words}."


def _with_way_out(error: Exception) -> str:
    """What was wrong in a call, and where to read how it is right."""
    message = str(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "gpuyard"
    return f"{message}; see '{command} --help'."
