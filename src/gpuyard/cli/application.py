"""Builds the command line with typer, runs it, and reports its errors."""

import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from gpuyard.cli import BEFORE_A_COMMAND, COMMANDS, DONE, FAILED, INTERRUPTED, OPTIONS_OF_OTHERS, WRONG_USE
from gpuyard.cli.input.suggestions import ApiCommand, CommandGroup, option_hint
from gpuyard.cli.output.errors import CallContext, complain, fields_to_options, plain_usage_error
from gpuyard.core.domain.errors import GpuyardError, WrongInput

HELP = "--help"
ERRORS_IN_FILES = {"WrongSettings", "WrongTaskFile"}
"""Errors that name the keys of a file, which are not replaced by options."""


def make_app(only: str | None = None) -> typer.Typer:
    """Build the command line with all commands, or with one: building the others takes longer than `ps` itself.

    With `HELP`, only the list of commands can be shown.
    """
    # Without markup typer leaves rich alone: importing it would double the time that --help takes.
    made = typer.Typer(
        name="gpuyard",
        cls=CommandGroup,
        rich_markup_mode=None,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    made.callback(invoke_without_command=True)(gpuyard)
    if only == HELP:
        _add_names(made)
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
            settings = {
                "allow_interspersed_args": command not in BEFORE_A_COMMAND,
                "ignore_unknown_options": command in OPTIONS_OF_OTHERS,
            }
            made.command(command, cls=ApiCommand, context_settings=settings)(found)
    return made


def _add_names(made: typer.Typer) -> None:
    """Add all commands with their help texts only, from the table: importing them takes ten times as long."""
    from gpuyard.cli.shell.command_table import command_table

    table = command_table()
    for command in COMMANDS:
        made.command(command, cls=ApiCommand, help=table[f"gpuyard {command}"]["about"])(_only_a_name)


def _only_a_name() -> None:
    raise AssertionError("it is listed, and never called")


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


def run(words: list[str], app: typer.Typer | None = None) -> int:
    """Run one command line and return its exit code. `app`: use this one instead of building what is needed."""
    command = words[0] if words else ""
    only = command if command in COMMANDS else HELP if words in ([], ["--help"], ["--version"]) else None
    called = app or make_app(only)
    asked = CallContext()
    asked.words = tuple(words)
    try:
        code = called(prog_name="gpuyard", standalone_mode=False, obj=asked)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except GpuyardError as error:
        field = getattr(error, "field", None)
        plain = asked.as_json or error.code in ERRORS_IN_FILES
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
    context = getattr(error, "ctx", None)
    message = plain_usage_error(_with_hint(error, context))
    path = context.command_path if context is not None else f"gpuyard {command}" if command in COMMANDS else "gpuyard"
    see = f"'{path} --help'."
    return f"{message} See {see}" if message.endswith("?") else f"{message}; see {see}"


def _with_hint(error: Any, context: Any) -> str:
    """Return the message of typer; for an unknown option that is one of another program, with ours."""
    is_unknown = context is not None and hasattr(error, "possibilities")
    hint = option_hint(error.option_name, context.command) if is_unknown else None
    return f"{error.message}; {hint}" if hint else str(error.format_message())


def _wrong_option(error: Exception) -> str | None:
    """Return the option or argument that caused the error, if there is one."""
    named = getattr(error, "param_hint", None) or getattr(error, "option_name", None)
    parameter = getattr(error, "param", None)
    return str(named).strip("'") if named else parameter.opts[-1] if parameter is not None else None
