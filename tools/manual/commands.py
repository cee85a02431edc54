"""The page about every verb of the command line, made from the verbs themselves."""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

GROUPS = {
    "a yard": ("up", "down", "server", "agent"),
    "tasks": ("submit", "run", "ps", "show", "logs", "cancel", "explain", "lease"),
    "the yard's own": ("gpus", "nodes", "quota", "predictions", "tenants", "users", "tokens", "login"),
    "without a yard": ("plan", "analyze", "profile", "train", "predict", "partition", "simulate"),
}


def verbs() -> Iterator[tuple[str, Any]]:
    """Every verb with its full name, a group before what is in it, in the order of `GROUPS`."""
    from gpuyard.cli import app

    known: dict[str, Any] = getattr(get_command(app), "commands", {})
    named = [name for names in GROUPS.values() for name in names]
    for name in named + [name for name in known if name not in named]:
        yield from _with_those_below(f"gpuyard {name}", known[name])


def _with_those_below(path: str, verb: Any) -> Iterator[tuple[str, Any]]:
    yield path, verb
    for name, below in getattr(verb, "commands", {}).items():
        yield from _with_those_below(f"{path} {name}", below)


def usage(path: str, verb: Any) -> str:
    """How it is called."""
    words = [path]
    if any(not _is_argument(parameter) for parameter in verb.params):
        words.append("[OPTIONS]")
    for parameter in verb.params:
        if _is_argument(parameter):
            name = (parameter.metavar or parameter.name.upper()).strip("[]")
            words.append(name if parameter.required else f"[{name}]")
    return " ".join(words)


def rows(verb: Any) -> Iterator[tuple[str, str]]:
    """Every argument and option, with what it means."""
    for parameter in sorted(verb.params, key=_is_argument, reverse=True):
        if parameter.name in {"help", "context"}:
            continue
        if _is_argument(parameter):
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


def _is_argument(parameter: Any) -> bool:
    return str(parameter.param_type_name) == "argument"
