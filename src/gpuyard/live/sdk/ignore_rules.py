"""Which files of a folder `.gpuyardignore` leaves out: the syntax and the meaning of `.gitignore`.

A file may lie in any folder and counts from there down. The last pattern that matches decides, that of a deeper file before
that of a higher one; below a folder that is left out nothing can be brought back.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.files import read_file, shown_path

NAME = ".gpuyardignore"
MOST_BYTES = 1 << 20
LONGEST_LINE = 4096
_NOTHING = re.compile(r"(?!)")
_STAR, _DEEP = "*", "**/"


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
    """Return an expression that takes time in proportion to the path, whatever the line.

    What comes between two wildcards has a fixed length, so its first place can be kept for good: if the rest does not
    match behind that, it does not match behind a later one. The same holds for folders between two `**/`.
    """
    tokens = _tokens(text)
    if tokens is None:
        return _NOTHING
    parts = _split([*([] if anchored else [_DEEP]), *tokens], _DEEP)
    parts = [part for place, part in enumerate(parts) if part or place in {0, len(parts) - 1}]
    first, *between = [_of_names(part) for part in parts]
    found = first
    if between:
        found += "".join(f"(?>(?:[^/]*/)*?{part})" for part in between[:-1]) + "(?:.*/)?" + between[-1]
    return re.compile(found, re.DOTALL)


def _tokens(text: str) -> list[str] | None:
    """Return the wildcards of a line, and expressions of one character each; None if it matches nothing."""
    tokens: list[str] = []
    place = 0
    while place < len(text):
        at_start = place == 0 or text[place - 1] == "/"
        character = text[place]
        if at_start and text.startswith("**/", place):
            tokens.append(_DEEP)
            place += 3
        elif at_start and text[place:] == "**":
            tokens.append(".+")
            break
        elif character == "*":
            tokens.append(_STAR)
            place += len(text[place:]) - len(text[place:].lstrip("*"))
        elif character == "?":
            tokens.append("[^/]")
            place += 1
        elif character == "[":
            end = text.find("]", place + (3 if text[place + 1 : place + 2] in {"!", "^"} else 2))
            if end < 0:
                return None
            tokens.append(_listed(text[place + 1 : end]))
            place = end + 1
        elif character == "\\" and place + 1 < len(text):
            tokens.append(re.escape(text[place + 1]))
            place += 2
        else:
            tokens.append(re.escape(character))
            place += 1
    return tokens


def _listed(inside: str) -> str:
    """Return the expression of `[…]`: one character. As for git, a range has its first sign also if it is above the last."""
    negated = inside[:1] in {"!", "^"}
    left, listed = inside[negated:], ""
    while left:
        listed += re.escape(left[0])
        if left[1:2] == "-" and len(left) > 2:
            if left[0] < left[2]:
                listed += f"-{re.escape(left[2])}"
            left = left[3:]
        else:
            left = left[1:]
    return f"(?!/)[{'^' * negated}{listed}]"


def _split(tokens: Sequence[str], at: str) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for token in tokens:
        if token == at:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _of_names(tokens: Sequence[str]) -> str:
    """Return the expression of a part without `**/`, name for name."""
    return "/".join(_of_name(name) for name in _split(tokens, "/"))


def _of_name(tokens: Sequence[str]) -> str:
    first, *between = ["".join(part) for part in _split(tokens, _STAR)]
    if not between:
        return first
    return first + "".join(f"(?>[^/]*?{part})" for part in between[:-1]) + "[^/]*" + between[-1]


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
            lines = _lines(self._folder / folder / NAME)
            self._of_folder[folder] = [*([] if folder else self._defaults), *_rules(lines)]
        return self._of_folder[folder]


def _lines(path: Path) -> list[str]:
    """Return the lines of a file, none if there is none; raise `WrongInput` if it is no file that a person wrote."""
    try:
        lines = read_file(path, largest=MOST_BYTES).decode("utf-8-sig", "surrogateescape").split("\n")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise WrongInput(f"{shown_path(path)}: {error.strerror or error}. Write a file there, or remove it.") from None
    longest = max(range(len(lines)), key=lambda number: len(lines[number]))
    if len(lines[longest]) > LONGEST_LINE:
        raise WrongInput(
            f"{shown_path(path)}, line {longest + 1}: it has more than {LONGEST_LINE:,} characters. Shorten or remove it."
        )
    return lines


def _rules(lines: Sequence[str]) -> list[IgnoreRule]:
    return [rule for line in lines if (rule := rule_of(line)) is not None]
