"""Behavior shared by all commands: suggestions for unknown commands, and the wait for a scheduler.

The words of other tools are looked up by meaning, because the closest spelling can be the opposite (`undrain`); any
other word gets the command with the most similar spelling.
"""

from typing import Any

from typer.core import TyperCommand, TyperGroup

from gpuyard.cli.input.options import wait_option

MEANT = {
    "gpuyard": {
        "up": "start",
        "submit": "sbatch qsub",
        "run": "srun exec",
        "ps": "list ls status jobs tasks queue squeue qstat",
        "show": "get describe inspect info",
        "logs": "tail attach output",
        "cancel": "kill stop delete rm scancel qdel",
        "hold": "qhold",
        "release": "unhold qrls",
        "suspend": "pause",
        "resume": "continue unpause",
        "priority": "renice nice",
        "explain": "why",
        "lease": "salloc allocate reserve",
        "gpus": "top smi",
        "nodes": "sinfo hosts agents",
        "nodes cordon": "cordon",
        "nodes drain": "drain",
        "nodes uncordon": "uncordon undrain",
        "users passwd": "passwd password",
        "login --forget": "logout",
        "--help": "help",
        "--version": "version",
    },
    "gpuyard nodes": {"": "list ls show", "uncordon": "undrain resume open enable", "cordon": "close disable", "remove": "delete rm"},
    "gpuyard lease": {"": "create new take", "list": "ls show", "release": "return free end stop cancel delete rm"},
    "gpuyard tenants": {"": "list ls show", "set": "add create new update"},
    "gpuyard users": {"": "list ls show", "add": "create new", "passwd": "password", "remove": "delete rm"},
    "gpuyard tokens": {"": "list ls show", "create": "new add make", "revoke": "remove delete rm"},
}  # fmt: skip
"""By group: our command, and the words of other tools for it. Empty: the group alone."""
FEW = 8
"""Up to this number, all commands are listed."""


class ApiCommand(TyperCommand):
    """A command that calls a scheduler; adds `--wait-for-scheduler`."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        _add_wait_option(self.params)


def _add_wait_option(params: list[Any]) -> None:
    if any(parameter.name == "server" for parameter in params):
        params.append(wait_option())


class CommandGroup(TyperGroup):
    """A group of commands that suggests a command for an unknown one."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        _add_wait_option(self.params)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve as typer does, with a different error message."""
        typed = args[0]
        if self.get_command(ctx, typed) is None and not typed.startswith("-"):
            ctx.fail(f"Unknown command {typed!r}{self._hint(ctx.command_path, typed)}")
        return super().resolve_command(ctx, args)

    def _hint(self, above: str, typed: str) -> str:
        from difflib import get_close_matches

        meant = [ours for ours, words in MEANT.get(above, {}).items() if typed in words.split()]
        meant = meant or get_close_matches(typed, self.commands, n=1)
        if meant:
            path = f"{above} {meant[0]}".rstrip()
            return f"; did you mean '{path}'?"
        return f"; available commands: {', '.join(sorted(self.commands))}" if len(self.commands) <= FEW else ""
