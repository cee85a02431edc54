"""The page about every command of the command line, generated from the commands."""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

GROUPS = {
    "a cluster": ("up", "down", "server", "agent", "witness", "status", "promote", "detach-standby"),
    "tasks": (
        "submit",
        "sbatch",
        "run",
        "demo",
        "ps",
        "top",
        "show",
        "logs",
        "attach",
        "shell",
        "forward",
        "cancel",
        "hold",
        "release",
        "suspend",
        "resume",
        "priority",
        "boost",
        "extend",
        "max-running",
        "clone",
        "retry",
        "wait",
        "explain",
        "lease",
        "book",
        "bookings",
    ),
    "the cluster": (
        "top",
        "gpus",
        "nodes",
        "quota",
        "predictions",
        "alerts",
        "usage",
        "tenants",
        "users",
        "tokens",
        "login",
        "whoami",
        "journal",
    ),
    "without a cluster": ("plan", "analyze", "profile", "train", "predict", "partition", "simulate", "trace"),
    "the shell": ("completion", "help"),
}


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its full name, a group before its members, in the order of `GROUPS`."""
    from gpuyard.cli import app

    known: dict[str, Any] = getattr(get_command(app), "commands", {})
    named = [name for names in GROUPS.values() for name in names]
    for name in named + [name for name in known if name not in named]:
        yield from _with_members(f"gpuyard {name}", known[name])


def _with_members(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from _with_members(f"{path} {name}", below)


def usage(path: str, command: Any) -> str:
    """How it is called."""
    words = [path]
    if any(not is_argument(parameter) for parameter in command.params):
        words.append("[OPTIONS]")
    for parameter in command.params:
        if is_argument(parameter):
            name = (parameter.metavar or parameter.name.upper()).strip("[]")
            words.append(name if parameter.required else f"[{name}]")
    return " ".join(words)


def rows(command: Any) -> Iterator[tuple[str, str]]:
    """Every argument and option, with what it means."""
    for parameter in sorted(command.params, key=is_argument, reverse=True):
        if parameter.name in {"help", "context"}:
            continue
        if is_argument(parameter):
            yield f"`{(parameter.metavar or parameter.name.upper()).strip('[]')}`", parameter.help or ""
            continue
        names = ", ".join(f"`{name}`" for name in parameter.opts)
        value = "" if parameter.is_flag else f" `{parameter.metavar or 'VALUE'}`"
        yield f"{names}{value}", _meaning(parameter)


def _meaning(parameter: Any) -> str:
    default = parameter.default
    shown = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    again = " Can be given again." if parameter.multiple else ""
    return f"{parameter.help or ''}{f' (default: {default})' if shown else ''}{again}"


def is_argument(parameter: Any) -> bool:
    """Whether it is an argument, not an option."""
    return str(parameter.param_type_name) == "argument"
