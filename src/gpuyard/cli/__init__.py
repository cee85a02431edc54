"""The command line. Each command has a file, or a folder if it is long.

The file of a command imports nothing heavy at its top, so that `gpuyard --help` stays fast; it imports what it needs when
the command is called. Exit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted. An error is reported in one sentence on
standard error, with `--json` in one object; a traceback means a bug in gpuyard.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from gpuyard.cli.input.suggestions import ApiCommand, CommandGroup
from gpuyard.cli.output.errors import CallContext, complain, fields_to_options, plain_usage_error
from gpuyard.core.domain.errors import GpuyardError, WrongInput

if TYPE_CHECKING:
    app: typer.Typer

DONE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130

COMMANDS = {
    "up": "up:up",
    "down": "down:down",
    "server": "server:server",
    "agent": "agent:agent",
    "submit": "submit:submit",
    "run": "run:run",
    "demo": "demo:demo",
    "ps": "ps:ps",
    "show": "show:show",
    "logs": "logs:logs",
    "cancel": "cancel:cancel",
    "hold": "task_actions:hold",
    "release": "task_actions:release",
    "suspend": "task_actions:suspend",
    "resume": "task_actions:resume",
    "priority": "task_actions:priority",
    "explain": "explain:explain",
    "lease": "lease:app",
    "gpus": "gpus:gpus",
    "nodes": "nodes:app",
    "quota": "quota:quota",
    "predictions": "predictions:predictions",
    "alerts": "alerts:app",
    "usage": "usage:usage",
    "tenants": "tenants:app",
    "users": "users:app",
    "tokens": "tokens:app",
    "login": "login:login",
    "plan": "plan:app",
    "train": "train:app",
    "predict": "predict:predict",
    "partition": "partition:partition",
    "analyze": "analyze:analyze",
    "simulate": "simulate:simulate",
    "journal": "journal:app",
    "trace": "trace:app",
    "profile": "profile:app",
}
"""Every command: its file and the function in it. A group of commands is called `app`."""

BEFORE_A_COMMAND = {"submit", "run"}
"""Arguments after the command of a task belong to that command, even if they look like options of gpuyard."""


def make_app(only: str | None = None) -> typer.Typer:
    """Build the command line with all commands, or with one: building the others takes longer than `ps` itself."""
    # Without markup typer leaves rich alone: importing it would double the time that --help takes.
    made = typer.Typer(
        name="gpuyard", cls=CommandGroup, rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False
    )
    made.callback(invoke_without_command=True)(gpuyard)
    for command, place in COMMANDS.items():
        if only not in {None, command}:
            continue
        file, _, name = place.partition(":")
        found = getattr(import_module(f"gpuyard.cli.{file}"), name)
        if isinstance(found, typer.Typer):
            for below in found.registered_commands:
                if below.cls is TyperCommand:  # one that reads its words in its own way keeps that
                    below.cls = ApiCommand
            made.add_typer(found, name=command)
        else:
            settings = {"allow_interspersed_args": command not in BEFORE_A_COMMAND}
            made.command(command, cls=ApiCommand, context_settings=settings)(found)
    return made


def __getattr__(name: str) -> typer.Typer:
    """Build `app`, the command line with all commands."""
    if name == "app":
        return make_app()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def gpuyard(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Schedule tasks on shared GPUs."""
    if version:
        from gpuyard.version import __version__

        typer.echo(f"gpuyard {__version__}")
        raise typer.Exit(DONE)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(WRONG_USE)


def main() -> int:
    """Run one command line and return its exit code."""
    words = sys.argv[1:]
    command = words[0] if words else ""
    called = globals().get("app") or make_app(command if command in COMMANDS else None)
    asked = CallContext()
    try:
        code = called(prog_name="gpuyard", standalone_mode=False, obj=asked)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except GpuyardError as error:
        field = getattr(error, "field", None)
        of_a_file = error.code == "WrongSettings"  # names keys of the settings, not fields of the API
        plain = asked.as_json or of_a_file
        message = str(error) if plain else fields_to_options(str(error), field, _options(called, words))
        complain(message, code=error.code, field=field, as_json=asked.as_json)
        return WRONG_USE if isinstance(error, WrongInput) else FAILED
    except BrokenPipeError:
        return _nobody_reads()
    except OSError as error:
        complain(_spoken(error), code=type(error).__name__, as_json=asked.as_json)
        return FAILED
    except Exception as error:
        # Which class means wrong use depends on the version of typer; all of them can say what was wrong.
        if not hasattr(error, "format_message"):
            raise
        as_json = "--json" in words[: words.index("--") if "--" in words else None]  # it may not have been read yet
        complain(_with_way_out(error, command), code="WrongUse", field=_wrong_option(error), as_json=as_json)
        return WRONG_USE
    return code if isinstance(code, int) else DONE


def _options(app: typer.Typer, words: list[str]) -> set[str]:
    """Return the options of the command that was called."""
    command: Any = typer.main.get_command(app)
    for word in words:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
    return {name for parameter in command.params for name in parameter.opts}


def _nobody_reads() -> int:
    """Handle a closed pipe: the reader of the output, such as `head`, has ended; write nothing more, also not at exit."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return DONE


def _spoken(error: OSError) -> str:
    """Return the message of the operating system without its error number."""
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"File {error.filename} does not exist."
    words = error.strerror or str(error)
    return f"{error.filename}: {words}." if error.filename else f"{words}."


def _with_way_out(error: Exception, command: str) -> str:
    """Print what was wrong in a call, and the command that shows the help."""
    message = plain_usage_error(str(error.format_message()))  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else f"gpuyard {command}" if command in COMMANDS else "gpuyard"
    see = f"'{path} --help'."
    return f"{message} See {see}" if message.endswith("?") else f"{message}; see {see}"


def _wrong_option(error: Exception) -> str | None:
    """Return the option or argument that caused the error, if there is one."""
    named = getattr(error, "param_hint", None) or getattr(error, "option_name", None)
    parameter = getattr(error, "param", None)
    return str(named).strip("'") if named else parameter.opts[-1] if parameter is not None else None
