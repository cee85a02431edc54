"""Drive the real program in a real terminal, with pexpect."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pexpect

from tests.acceptance.cli_cluster import GPUYARD, CliCluster

PATIENCE_SECONDS = 60
_MOVES = re.compile(r"\x1b(?:\[[0-9;?<>=]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78])")


@contextmanager
def terminal(
    cluster: CliCluster, *words: str, columns: int = 120, lines: int = 40, env: Mapping[str, str] | None = None
) -> "Iterator[pexpect.spawn[str]]":
    """Run a command in a terminal of this size; it is ended at the end."""
    given = {name: value for name, value in cluster.env.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
    child = pexpect.spawn(
        GPUYARD,
        list(words),
        env={**given, "TERM": "xterm-256color", "LANG": "C.UTF-8", **(env or {})},
        cwd=str(cluster.folder),
        dimensions=(lines, columns),
        encoding="utf-8",
        timeout=PATIENCE_SECONDS,
    )
    try:
        yield child
    finally:
        child.close(force=True)


def text_of(shown: str) -> str:
    """What was shown, without colors and movements of the cursor."""
    return _MOVES.sub("", shown).replace("\r\n", "\n").replace("\r", "\n")


def all_of(child: "pexpect.spawn[str]") -> str:
    """Read to the end of the program; return everything it has shown since the last match."""
    child.expect(pexpect.EOF)
    return str(child.before)


def exit_code(child: "pexpect.spawn[str]") -> int | None:
    """Wait for the end of the program."""
    child.expect(pexpect.EOF)
    child.close()
    return child.exitstatus if child.signalstatus is None else -child.signalstatus
