"""Answers a shell that asks for completions: words with descriptions, or what the shell completes itself.

The environment names the shell. The words typed so far are the arguments of the program, the last one the word that is completed, perhaps empty. Every
line of the answer is a word, a tab and a description. A line that begins with a colon asks the shell for its own
completion: `:files`, `:folders`, or `:command N`: the words from place N on are a command of their own.

Nothing heavy is imported, and any error gives an empty answer: a completion must never disturb what is being typed.
"""

import os
import sys

from gpuyard.cli import COMPLETION_VARIABLE
from gpuyard.cli.shell.command_table import command_path, command_table

TYPE_CHECKING = False  # importing `typing` takes as long as a completion
if TYPE_CHECKING:
    from typing import Any

FILES, FOLDERS, COMMAND = ":files", ":folders", ":command"
_KIND_OF_VALUE = {
    "TASK": "task",
    "TASK...": "task",
    "TASK,...": "task",
    "NODE": "node",
    "MODEL,...": "gpu_model",
    "N|MODEL:N": "gpu_model",
}
"""What of a cluster is named by an argument or value with this placeholder."""
_KIND_OF_OPTION = {"--tenant": "tenant", "--node": "node", "--gpu-model": "gpu_model"}
_KIND_OF_ID = {"gpuyard nodes": "node", "gpuyard lease": "task", "gpuyard tenants": "tenant"}
"""What `ID` or `NAME` is in a group of commands."""
_FILES_OF = ("FILE", "FILE...", "SCRIPT", "PATH", "IN", "OUT", "PLAN", "PLAN...")
_FOLDERS_OF = ("DIR", "FOLDER", "FOLDER|URL")


def print_completions(words: list[str]) -> int:
    """Print the completions of the last word."""
    try:
        lines = completions(words or [""], os.environ[COMPLETION_VARIABLE])
    except Exception:
        return 0
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def completions(words: list[str], shell: str = "zsh") -> list[str]:
    """Return the lines of the answer."""
    joined = _joined(words)
    lines = _lines(joined[:-1], joined[-1])
    if shell != "bash":
        return lines
    # bash replaces only the part behind the last = or :, which it takes for a word of its own.
    kept = len(joined[-1]) - (0 if words[-1] in {"=", ":"} else len(words[-1]))
    return [line if line.startswith(":") else line[kept:] for line in lines]


def _lines(before: list[str], last: str) -> list[str]:
    table = command_table()
    path = command_path(before, table)
    command = table[path]
    rest = before[len(path.split()) - 1 :]
    pending, arguments, ended = _read(rest, command)
    if command.get("before_a_command") and (arguments or ended):
        begin = next((at for at in range(len(rest)) if _begins(rest, at, command)), len(rest))
        return _of_command(len(before) - len(rest) + begin, len(before))
    if pending is not None:
        return _of_value(pending["value"], pending["names"][-1], last)
    options = _options(command)
    name, equals, value = last.partition("=")
    if equals and name.startswith("--"):
        option = options.get(name, {})
        return [_with_prefix(f"{name}=", line) for line in _of_value(option.get("value", ""), name, value)]
    if last.startswith("-") and not ended:
        known = options if last != "-" else [name for name in options if name.startswith("--")]
        return [_line(name, options[name]["about"]) for name in known if name.startswith(last)]
    if path == "gpuyard help":
        path = command_path(rest, table)
        command = {"commands": table[path].get("commands", [])}
    if path == "gpuyard" and rest:
        return []  # a command that does not exist
    found = [
        _line(word, table[f"{path} {word}"]["about"]) for word in command.get("commands", ()) if word.startswith(last)
    ]
    names = command.get("arguments", [])
    if names and (len(arguments) < len(names) or names[-1]["name"].endswith("...")):
        name = names[min(len(arguments), len(names) - 1)]["name"]
        found += _of_command(len(before), len(before)) if name == "COMMAND..." else _of_value(name, "", last, path)
    return found


def _of_command(place: int, last: int) -> list[str]:
    """Return the completions of a command that begins at this place; its first word may be a script or a task file."""
    return [f"{COMMAND} {place}", FILES] if place == last else [f"{COMMAND} {place}"]


def _read(words: list[str], command: "dict[str, Any]") -> "tuple[dict[str, Any] | None, list[str], bool]":
    """Return the option whose value comes next, the arguments so far, and whether `--` has ended the options."""
    arguments: list[str] = []
    options, pending = _options(command), None
    for place, word in enumerate(words):
        if pending is not None:
            pending = None
        elif word == "--":
            return None, [*arguments, *words[place + 1 :]], True
        elif word.startswith("-") and not (command.get("before_a_command") and arguments):
            option = options.get(word)
            pending = option if option is not None and "value" in option else None
        else:
            arguments.append(word)
    return pending, arguments, False


def _begins(words: list[str], place: int, command: "dict[str, Any]") -> bool:
    """Return whether the command of a task begins at this place."""
    if "--" in words[:place]:
        return words.index("--") == place - 1
    pending, arguments, _ = _read(words[:place], command)
    return pending is None and not arguments and words[place] != "--" and not words[place].startswith("-")


def _options(command: "dict[str, Any]") -> "dict[str, dict[str, Any]]":
    return {name: option for option in command.get("options", []) for name in option["names"]} | {
        "--help": {"names": ["--help"], "about": "Show this message and exit."}
    }


def _of_value(placeholder: str, option: str, typed: str, path: str = "") -> list[str]:
    """Return the completions of a value, by its placeholder."""
    if any(word in _FILES_OF for word in placeholder.split()):  # such as [OPTIONS] SCRIPT [ARGS]
        return [FILES]
    if placeholder in _FOLDERS_OF:
        return [FOLDERS]
    kind = _KIND_OF_OPTION.get(option) or _KIND_OF_VALUE.get(placeholder)
    if placeholder in {"ID", "ID...", "NAME"} and not option:
        kind = next((named for group, named in _KIND_OF_ID.items() if path.startswith(group)), None)
    if kind is not None:
        from gpuyard.cli.shell.live_names import live_names

        head, comma, tail = typed.rpartition(",")  # lists of ids and models
        return [_with_prefix(f"{head}{comma}", _line(word, hint)) for word, hint in live_names(kind, tail)]
    words = placeholder.split("|")
    if len(words) > 1 and all(word.replace("-", "").replace("_", "").isalpha() and word.islower() for word in words):
        return [word for word in words if word.startswith(typed)]
    return []


def _joined(words: list[str]) -> list[str]:
    """Return the words with `--option`, `=`, `value` as one, and `A100`, `:`, `2`: bash splits at these characters."""
    joined: list[str] = []
    for word in words:
        before = joined[-1] if joined else ""
        behind_equals = before.startswith("--") and (word == "=" or before.endswith("="))
        behind_colon = before and (word == ":" or (before.endswith(":") and before != ":"))
        if behind_equals or behind_colon:
            joined[-1] += word
        else:
            joined.append(word)
    return joined


def _line(word: str, about: str) -> str:
    from gpuyard.cli.shell.messages import first_sentence, translated_about

    return f"{word}\t{first_sentence(translated_about(about))}" if about else word


def _with_prefix(prefix: str, line: str) -> str:
    return line if line.startswith(":") else f"{prefix}{line}"
