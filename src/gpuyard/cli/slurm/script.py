"""Which lines of a file are directives: as sbatch reads them.

Lines that begin with exactly `#SBATCH`, up to the first line that is neither a comment nor empty. `##SBATCH`, `# SBATCH`
and indented ones are comments. A line may have several options, quotes, and a comment after a `#`.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuyard.cli.slurm.options import SbatchOptions, WrongDirective

MAGIC: Final = "#SBATCH"
LARGEST_SCRIPT: Final = 120 * 1024
"""The script travels in the request, which is limited to 128 KiB with its arguments and variables."""
HEAD: Final = 64 * 1024
"""Only in so much of a file directives are looked for when it is not said that it is a job script."""
_DIRECTIVE: Final = re.compile(r"#SBATCH(?=\s|$)")


@dataclass(frozen=True, slots=True)
class JobScript:
    """A script as it will run, and its options."""

    name: str
    text: str
    options: SbatchOptions
    remarks: tuple[str, ...]
    """What the user should know about the file."""


def is_job_script(path: Path) -> bool:
    """Return whether a file has `#SBATCH` lines before its first command. Anything that cannot be read has none.

    A program that writes job scripts has such lines in its text, after its first command.
    """
    from gpuyard.input.files import open_file

    try:
        with open_file(path) as file:
            head = file.read(HEAD)
    except OSError:
        return False
    for line in head.splitlines():
        if line.startswith(b"#SBATCH") and not line[7:8].strip():
            return True
        if line.strip() and not line.lstrip().startswith(b"#"):
            return False
    return False


def read_script(path: Path) -> JobScript:
    """Read a job script. Raises `WrongDirective` with the line."""
    from gpuyard.input.files import read_file, shown_path

    try:
        content = read_file(path, largest=LARGEST_SCRIPT)
    except OSError as error:
        raise WrongDirective(f"{shown_path(path)}: {error.strerror or error}.") from None
    return parse_script(path.name, content)


def parse_script(name: str, content: bytes) -> JobScript:
    """Read the content of a job script."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        where = content[: error.start].count(b"\n") + 1
        raise WrongDirective(f"{name}, line {where}: this is not UTF-8; a job script must be text.") from None
    if "\0" in text:
        raise WrongDirective(f"{name} is not a text file.")
    if not text.startswith("#!"):
        raise WrongDirective(f"{name} does not begin with #!, such as #!/bin/bash; it is not a script.")
    remarks = []
    if "\r\n" in text:
        text = text.replace("\r\n", "\n")
        remarks.append("line ends of Windows were removed")
    options = SbatchOptions()
    dead: list[int] = []
    alive = True
    for number, line in enumerate(text.split("\n"), 1):
        if _DIRECTIVE.match(line):
            if alive:
                _read_line(line, f"{name}, line {number}", options)
            else:
                dead.append(number)
        elif line.strip() and not line.lstrip().startswith("#"):
            alive = False
    if dead:
        lines = f"line {dead[0]}" if len(dead) == 1 else f"lines {', '.join(map(str, dead))}"
        remarks.append(f"{MAGIC} in {lines} has no effect, because a command precedes it")
    return JobScript(name, text, options, tuple(remarks))


def _read_line(line: str, origin: str, options: SbatchOptions) -> None:
    words = split_directive(line[len(MAGIC) :], origin)
    if words and words[0].lower() in {"hetjob", "packjob"}:
        raise WrongDirective(f"{origin}: heterogeneous jobs are not supported; submit the parts as tasks of their own.")
    left = options.add(words, origin)
    if left:
        raise WrongDirective(f"{origin}: {left[0][:60]!r} is not an option; options begin with - or --.")


def split_directive(text: str, origin: str = "") -> list[str]:
    """Split the rest of a directive into words, as sbatch does: quotes, backslashes, and `#` for a comment."""
    words: list[str] = []
    word: str | None = None
    opened, escaped = "", False
    for character in text:
        if escaped:
            word, escaped = (word or "") + character, False
        elif character == "\\":
            word, escaped = word or "", True
        elif opened:
            if character == opened:
                opened = ""
            else:
                word = (word or "") + character
        elif character in "'\"":
            word, opened = word or "", character
        elif character == "#":
            break
        elif character.isspace():
            if word is not None:
                words.append(word)
            word = None
        else:
            word = (word or "") + character
    if opened:
        raise WrongDirective(f"{origin}: a quote ({opened}) is not closed." if origin else "A quote is not closed.")
    return words if word is None else [*words, word]
