"""The table of all commands, options and arguments, generated from the commands by `make docs`."""

import json
import os

TYPE_CHECKING = False  # importing `typing` takes as long as a completion
if TYPE_CHECKING:
    from typing import Any

_FILE = os.path.join(os.path.dirname(__file__), "commands.json")  # noqa: PTH118, PTH120 - pathlib takes as long to import


def command_table() -> "dict[str, dict[str, Any]]":
    """Return what is known of each command, by its full name such as `gpuyard nodes drain`."""
    with open(_FILE, encoding="utf-8") as file:  # noqa: PTH123
        found: dict[str, dict[str, Any]] = json.load(file)
    return found


def command_path(words: "list[str]", table: "dict[str, dict[str, Any]]") -> str:
    """Return the longest full name of a command at the beginning of these words: `gpuyard` if there is none."""
    path = "gpuyard"
    for word in words:
        if f"{path} {word}" not in table:
            break
        path = f"{path} {word}"
    return path
