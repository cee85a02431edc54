"""Behavior shared by all commands: suggestions for unknown commands, and the wait for a scheduler.

The words of other tools are looked up by meaning, because the closest spelling can be the opposite (`undrain`); any
other word gets the command with the most similar spelling. Their options are looked up, too: in the
tables below, and in `gpuyard.input.nearest_name` where they are also words for fields (`--num-gpus`).
"""

from typing import Any

from typer.core import TyperCommand, TyperGroup

from gpuyard.cli.input.options import NO_PARTITIONS, wait_option
from gpuyard.cli.output.errors import option_of
from gpuyard.cli.shell.messages import first_sentence, translated, translated_about
from gpuyard.input.nearest_name import fields_meant

MEANT = {
    "gpuyard": {
        "up": "start",
        "submit": "qsub",
        "run": "srun exec",
        "ps": "list ls jobs tasks queue squeue qstat",
        "show": "get describe inspect info",
        "logs": "tail output",
        "cancel": "kill stop delete rm scancel qdel",
        "hold": "qhold",
        "release": "unhold qrls",
        "suspend": "pause",
        "resume": "continue unpause",
        "priority": "renice nice",
        "boost": "raise bump",
        "extend": "prolong",
        "retry": "rerun resubmit requeue restart again",
        "clone": "copy duplicate",
        "whoami": "who id me",
        "book": "booking maintenance reservation",
        "bookings": "reservations",
        "explain": "why",
        "lease": "salloc allocate reserve",
        "top": "htop nvitop",
        "gpus": "smi nvidia-smi",
        "nodes": "sinfo hosts agents",
        "nodes cordon": "cordon",
        "nodes drain": "drain",
        "nodes uncordon": "uncordon undrain",
        "users passwd": "passwd password",
        "login --forget": "logout",
        "--version": "version",
    },
    "gpuyard nodes": {"": "list ls show", "uncordon": "undrain resume open enable", "cordon": "close disable", "remove": "delete rm"},
    "gpuyard lease": {"": "create new take", "list": "ls show", "release": "return free end stop cancel delete rm"},
    "gpuyard tenants": {"": "list ls show", "set": "add create new update"},
    "gpuyard users": {"": "list ls show", "add": "create new", "passwd": "password", "remove": "delete rm"},
    "gpuyard tokens": {"": "list ls show", "create": "new add make", "revoke": "remove delete rm"},
}  # fmt: skip
"""By group: our command, and the words of other tools for it. Empty: the group alone."""
MEANT_OPTIONS = {
    "--gpus": "-G",
    "--nodes": "-N",
    "--cpus": "-c",
    "--mem": "--memory",
    "--name": "-J",
    "--work-dir": "-D",
    "--project": "-A",
    "--pty": "-i -it --interactive --tty",
}
"""Our option, and the options of other programs for it. Each is suggested only by commands that have ours."""
_NO_WAIT = "`gpuyard submit` does not wait for the task, and has no option for it"
_TERMINAL = "`gpuyard run --pty` gives a task your terminal"
INSTEAD_OF_OPTIONS = {
    "-d": _NO_WAIT,
    "--detach": _NO_WAIT,
    "-i": _TERMINAL,
    "--interactive": _TERMINAL,
    "--tty": _TERMINAL,
    "--pty": _TERMINAL,
    "--partition": NO_PARTITIONS,
    "--rm": "a task leaves nothing that has to be removed, so omit it",
}
"""What commands that start tasks or leases say to options of other programs for which we have none."""
FEW = 8
"""Up to this number, all commands are listed."""


class ApiCommand(TyperCommand):
    """A command that calls a scheduler; adds `--wait-for-scheduler`, and shows its help in the language of the person."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        _add_wait_option(self.params)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, translated."""
        translate(self, ctx)
        super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options below translated titles."""
        _write_parameters(self, ctx, formatter)


def translate(command: Any, context: Any) -> None:
    """Put help texts in the language of the person in place of the English ones."""
    command.help = translated_about(command.help or "")
    for parameter in command.get_params(context):
        if getattr(parameter, "help", None):
            parameter.help = translated_about(parameter.help)


def _write_parameters(command: Any, context: Any, formatter: Any) -> None:
    rows: dict[str, list[Any]] = {"Arguments": [], "Options": []}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            rows["Arguments" if parameter.param_type_name == "argument" else "Options"].append(record)
    for title, records in rows.items():
        if records:
            with formatter.section(translated(title)):
                formatter.write_dl(records)


def _add_wait_option(params: list[Any]) -> None:
    if any(parameter.name == "server" for parameter in params):
        params.append(wait_option())


def option_hint(typed: str, command: Any) -> str | None:
    """Return what to write instead of an option of another program, as the end of a sentence; None: it is not known."""
    known = {name for parameter in command.params for name in parameter.opts}
    meant = [ours for ours, words in MEANT_OPTIONS.items() if typed in words.split()]
    if typed.startswith("--"):
        meant += [option_of(field) for field in fields_meant(typed[2:])]
    found = next((option for option in meant if option in known), None)
    if found is not None:
        return f"did you mean {found}?"
    return INSTEAD_OF_OPTIONS.get(typed) if "--gpus" in known else None


class CommandGroup(TyperGroup):
    """A group of commands that suggests a command for an unknown one."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        _add_wait_option(self.params)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, translated."""
        translate(self, ctx)
        super().format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, options and commands below translated titles."""
        _write_parameters(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """List the commands with their first sentence, whole, on as many lines as it takes."""
        rows = [
            (name, first_sentence(translated_about(command.help or "")))
            for name, command in self.commands.items()
            if not command.hidden
        ]
        if rows:
            with formatter.section(translated("Commands")):
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve as typer does, with a different error message."""
        typed = args[0]
        if self.get_command(ctx, typed) is None and not typed.startswith("-"):
            ctx.fail(f"Unknown command {typed!r}{self._hint(ctx.command_path, typed)}")
        return super().resolve_command(ctx, args)

    def command_hint(self, typed: str) -> str | None:  # noqa: ARG002
        """Return what to write instead of a word that no table has, as the end of a sentence; None: it is not known."""
        return None

    def _hint(self, above: str, typed: str) -> str:
        from difflib import get_close_matches

        meant = [ours for ours, words in MEANT.get(above, {}).items() if typed in words.split()]
        if not meant and (hint := self.command_hint(typed)):
            return f"; {hint}"
        meant = meant or get_close_matches(typed, self.commands, n=1)
        if meant:
            path = f"{above} {meant[0]}".rstrip()
            return f"; did you mean '{path}'?"
        return f"; available commands: {', '.join(sorted(self.commands))}" if len(self.commands) <= FEW else ""
