"""The table of commands and options that completion, man pages and `gpuyard help` read, generated from the commands."""

import json
from typing import Any

from tools.manual.commands import commands, is_argument, usage

PLACE = "src/gpuyard/cli/shell/commands.json"


def command_table() -> str:
    """Return the table as JSON, with one line for each command."""
    from typer.main import get_command

    from gpuyard.cli import BEFORE_A_COMMAND, app

    rows = {"gpuyard": _row("gpuyard", get_command(app))}
    for path, command in commands():
        rows[path] = _row(path, command)
        if path.removeprefix("gpuyard ") in BEFORE_A_COMMAND:
            rows[path]["before_a_command"] = True
    lines = [f"{json.dumps(path)}: {json.dumps(row, ensure_ascii=False)}" for path, row in rows.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _row(path: str, command: Any) -> dict[str, Any]:
    below = list(getattr(command, "commands", {}))
    row: dict[str, Any] = {"about": (command.help or "").strip(), "usage": usage(path, command)}
    if below:
        row["commands"] = below
    for parameter in command.params:
        if parameter.name in {"help", "context"} or parameter.hidden:
            continue
        text = (parameter.help or "").strip()
        if is_argument(parameter):
            name = (parameter.metavar or parameter.name.upper()).strip("[]")
            row.setdefault("arguments", []).append({"name": name, "about": text})
            continue
        option: dict[str, Any] = {"names": list(parameter.opts), "about": text}
        if not parameter.is_flag:
            option["value"] = parameter.metavar or "VALUE"
        default = parameter.default
        if isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
            option["default"] = str(default)
        if parameter.multiple:
            option["again"] = True
        row.setdefault("options", []).append(option)
    return row
