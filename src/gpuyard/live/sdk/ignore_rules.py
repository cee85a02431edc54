"""Which files of a folder `.gpuyardignore` leaves out: the syntax and the meaning of `.gitignore`.

A file may lie in any folder and counts from there down. The last pattern that matches decides, that of a deeper file before
that of a higher one; below a folder that is left out nothing can be brought back.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

NAME = ".gpuyardignore"
_NOTHING = re.compile(r"(?!)")


class IgnoreRule(NamedTuple):
    """One line."""

    paths: re.Pattern[str]
    """Of paths from the folder of the file on."""
    negated: bool
    only_folders: bool


def rule_of(line: str) -> IgnoreRule | None:
    """Return the rule of a line; None for an empty line or a comment."""
    given = line.rstrip("\r\n")
    text = given.rstrip(" ")
    if text != given and (len(text) - len(text.rstrip("\\"))) % 2:
        text += " "  # after a backslash a space counts
    if not text or text.startswith("#"):
        return None
    negated = text.startswith("!")
    text = text[negated:]
    only_folders = text.endswith("/")
    text = text.rstrip("/") if only_folders else text
    if not text:
        return None
    anchored = "/" in text
    return IgnoreRule(_pattern(text.removeprefix("/"), anchored=anchored), negated, only_folders)


def _pattern(text: str, *, anchored: bool) -> re.Pattern[str]:
    found, place = "" if anchored else "(?:.*/)?", 0
    while place < len(text):
        at_start = place == 0 or text[place - 1] == "/"
        character = text[place]
        if at_start and text.startswith("**/", place):
            found += "(?:.*/)?"
            place += 3
        elif at_start and text[place:] == "**":
            found += ".+"
            break
        elif character == "*":
            found += "[^/]*"
            place += len(text[place:]) - len(text[place:].lstrip("*"))
        elif character == "?":
            found += "[^/]"
            place += 1
        elif character == "[":
            end = text.find("]", place + (3 if text[place + 1 : place + 2] in {"!", "^"} else 2))
            if end < 0:
                return _NOTHING
            inside = text[place + 1 : end]
            negated = inside[:1] in {"!", "^"}
            listed = "".join(one if one == "-" or one.isalnum() else re.escape(one) for one in inside[negated:])
            found += f"(?!/)[{'^' * negated}{listed}]"
            place = end + 1
        elif character == "\\" and place + 1 < len(text):
            found += re.escape(text[place + 1])
            place += 2
        else:
            found += re.escape(character)
            place += 1
    try:
        return re.compile(found, re.DOTALL)
    except re.error:  # such as the range [z-a], which matches nothing
        return _NOTHING


class IgnoreRules:
    """The rules for one folder and those below it."""

    def __init__(self, folder: Path, defaults: Sequence[str] = ()) -> None:
        """`defaults`: lines that come before those of all files."""
        self._folder = folder
        self._defaults = _rules(defaults)
        self._of_folder: dict[str, list[IgnoreRule]] = {}
        self._left_out: dict[str, bool] = {"": False}

    def leaves_out(self, path: str, *, is_folder: bool) -> bool:
        """Return whether a file or a folder is left out, by itself or because a folder above it is."""
        above = path.rpartition("/")[0]
        if above not in self._left_out:
            self._left_out[above] = self.leaves_out(above, is_folder=True)
        return self._left_out[above] or self._decided(path, is_folder=is_folder)

    def _decided(self, path: str, *, is_folder: bool) -> bool:
        above = path.rpartition("/")[0]
        while True:
            below = path[len(above) + 1 :] if above else path
            for rule in reversed(self._rules_in(above)):
                if (is_folder or not rule.only_folders) and rule.paths.fullmatch(below):
                    return not rule.negated
            if not above:
                return False
            above = above.rpartition("/")[0]

    def _rules_in(self, folder: str) -> list[IgnoreRule]:
        if folder not in self._of_folder:
            try:
                text = (self._folder / folder / NAME).read_text("utf-8-sig", "surrogateescape")
            except OSError:
                text = ""
            self._of_folder[folder] = [*([] if folder else self._defaults), *_rules(text.split("\n"))]
        return self._of_folder[folder]


def _rules(lines: Sequence[str]) -> list[IgnoreRule]:
    return [rule for line in lines if (rule := rule_of(line)) is not None]
