"""Manual pages made from the table of commands: as roff for `man`, and as text for `gpuyard help`.

Only Python's own library is used: the pages are also made while a wheel is built, where nothing else is installed.
"""

import json
import os
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from gpuyard.cli.shell.messages import first_sentence, translated_about

Table = dict[str, dict[str, Any]]
ENVIRONMENT = (
    ("GPUYARD_SERVER", "Address of the scheduler, such as http://gpu-head:8080 (default: http://127.0.0.1:8080)."),
    ("GPUYARD_TOKEN", "Token; otherwise the one that gpuyard login stored."),
    ("GPUYARD_LANG", "Language of messages: en or zh; otherwise that of the locale."),
)
EXIT_CODES = (
    ("0", "The command has succeeded."),
    ("1", "It failed; one sentence on standard error says why."),
    ("2", "It was called wrongly; nothing was changed."),
    ("75", "The scheduler could not be reached in time; tasks continue."),
    ("130", "It was interrupted."),
)


def pages(table: Table, version: str) -> dict[str, str]:
    """Return all pages as roff by file name: one for gpuyard, and one for each command with all its subcommands."""
    tops = [path for path in table if path.count(" ") <= 1]
    return {f"{path.replace(' ', '-')}.1": roff_page(path, table, version) for path in tops}


def roff_page(path: str, table: Table, version: str) -> str:
    """Return the page of a command as roff; a group includes its subcommands."""
    row = table[path]
    name = path.replace(" ", "-")
    lines = [f'.TH "{_escaped(name.upper())}" 1 "" "gpuyard {version}" "gpuyard"', ".SH NAME"]
    lines += [
        f"{_escaped(name)} \\- {_escaped(first_sentence(row['about']))}",
        ".SH SYNOPSIS",
        f".B {_escaped(row['usage'])}",
    ]
    lines += [".SH DESCRIPTION", *_paragraphs(row["about"])]
    if path == "gpuyard":
        lines.append(".SH COMMANDS")
        for command in row["commands"]:
            lines += [
                ".TP",
                f".BR gpuyard-{_escaped(command)} (1)",
                _escaped(first_sentence(table[f"gpuyard {command}"]["about"])),
            ]
    lines += _roff_parameters(row, ".SH", ("ARGUMENTS", "OPTIONS"))
    for command in row.get("commands", ()) if path != "gpuyard" else ():
        for below, other in _with_members(f"{path} {command}", table):
            lines += [f'.SH "{_escaped(below)}"', f".B {_escaped(other['usage'])}", ".PP", *_paragraphs(other["about"])]
            lines += _roff_parameters(other, ".SS", ("Arguments", "Options"))
    for title, pairs in (("ENVIRONMENT", ENVIRONMENT), ("EXIT STATUS", EXIT_CODES)):
        lines.append(f'.SH "{title}"')
        for term, meaning in pairs:
            lines += [".TP", f".B {_escaped(term)}", _escaped(meaning)]
    others = ["gpuyard"] if path != "gpuyard" else ["gpuyard-submit", "gpuyard-up"]
    lines += ['.SH "SEE ALSO"', ", ".join(f"\\fB{_escaped(other)}\\fR(1)" for other in others)]
    return "\n".join(lines) + "\n"


def text_page(path: str, table: Table, *, width: int = 80) -> str:
    """Return the page of a command as plain text, in the language of the person."""
    row = table[path]
    parts = [_titled("NAME", f"{path} - {first_sentence(translated_about(row['about']))}", width)]
    parts.append(_titled("SYNOPSIS", row["usage"], width))
    parts.append(_titled("DESCRIPTION", translated_about(row["about"]), width))
    if "commands" in row:
        pairs = [
            (f"{path} {command}", first_sentence(translated_about(table[f"{path} {command}"]["about"])))
            for command in row["commands"]
        ]
        parts.append(_listed("COMMANDS", pairs, width))
    for title, pairs in (("ARGUMENTS", _arguments(row)), ("OPTIONS", _options(row))):
        if pairs:
            parts.append(_listed(title, [(term, translated_about(about)) for term, about in pairs], width))
    return "\n".join(parts)


def _with_members(path: str, table: Table) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, table[path]
    for command in table[path].get("commands", ()):
        yield from _with_members(f"{path} {command}", table)


def _roff_parameters(row: dict[str, Any], section: str, titles: tuple[str, str]) -> list[str]:
    lines = []
    for title, pairs in zip(titles, (_arguments(row), _options(row)), strict=True):
        if pairs:
            lines.append(f'{section} "{title}"')
        for term, about in pairs:
            lines += [".TP", f".B {_escaped(term)}", *_paragraphs(about)]
    return lines


def _arguments(row: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["name"], one["about"]) for one in row.get("arguments", ())]


def _options(row: dict[str, Any]) -> list[tuple[str, str]]:
    found = []
    for option in row.get("options", ()):
        term = ", ".join(option["names"]) + (f" {option['value']}" if "value" in option else "")
        found.append((term, option["about"]))
    return found


def _paragraphs(text: str) -> list[str]:
    """Return a text as lines of roff. A line must not begin with a period or an apostrophe."""
    lines = []
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text.strip())):
        lines += [".PP"] * bool(number)
        lines += [_escaped(" ".join(paragraph.split()))]
    return lines


def _escaped(text: str) -> str:
    safe = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{safe}" if safe.startswith((".", "'")) else safe


def _titled(title: str, text: str, width: int) -> str:
    body = "\n\n".join(_filled(" ".join(one.split()), width, 4) for one in re.split(r"\n\s*\n", text.strip()))
    return f"{title}\n{body}\n"


def _listed(title: str, pairs: list[tuple[str, str]], width: int) -> str:
    lines = [title]
    for term, about in pairs:
        lines += [f"    {term}", _filled(about, width, 8)]
    return "\n".join(lines) + "\n"


def _filled(text: str, width: int, indent: int) -> str:
    """Return a text in lines of this width. Chinese characters take two columns, so their lines have half as many."""
    wide = sum(ord(letter) > 0x2E80 for letter in text) > len(text) / 4
    room = (width - indent) // 2 + indent if wide else width
    return textwrap.fill(
        text, room, initial_indent=" " * indent, subsequent_indent=" " * indent, break_on_hyphens=False
    )


def write_pages(folder: str, version: str) -> list[str]:
    """Write all pages into a folder and return their paths, for the build of a wheel."""
    with open(os.path.join(os.path.dirname(__file__), "commands.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH120, PTH123
        table: Table = json.load(file)
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    written = []
    for name, text in pages(table, version).items():
        path = os.path.join(folder, name)  # noqa: PTH118
        with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(text)
        written.append(path)
    return written
