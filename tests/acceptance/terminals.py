"""A person at a terminal: the real program below a pseudo terminal, by pexpect."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pexpect

from tests.acceptance.cli_cluster import GPUYARD
from tests.acceptance.live import Cluster
from tests.acceptance.waiting import PATIENCE_SECONDS

PROMPT = "ready> "
BASH = ("-e", f"PS1={PROMPT}", "--", "bash", "--norc", "--noediting")


class Person:
    """One program at a terminal."""

    def __init__(self, child: "pexpect.spawn[str]") -> None:
        self.child = child

    @property
    def pid(self) -> int:
        pid = self.child.pid
        assert pid is not None, "it was started"
        return int(pid)

    def sees(self, words: str, seconds: float = PATIENCE_SECONDS) -> str:
        """Wait until these words are shown; return what came before."""
        self.child.expect_exact(words, timeout=seconds)
        return str(self.child.before)

    def sees_like(self, pattern: str, seconds: float = PATIENCE_SECONDS) -> "re.Match[str]":
        """Wait until something like this is shown."""
        self.child.expect(pattern, timeout=seconds)
        found = self.child.match
        assert isinstance(found, re.Match)
        return found

    def types(self, line: str) -> None:
        """Type a line."""
        self.child.send(line + "\r")

    def presses(self, key: str, times: int = 1) -> None:
        """Press control and a key."""
        for _ in range(times):
            self.child.sendcontrol(key)

    def ends(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for the end; return the exit code, or the negative number of a signal."""
        self.child.expect(pexpect.EOF, timeout=seconds)
        self.child.close()
        return int(self.child.exitstatus) if self.child.exitstatus is not None else -int(self.child.signalstatus or 0)

    @property
    def rest(self) -> str:
        """What was shown at the end."""
        return str(self.child.before)


def environment(cluster: Cluster, **more: str) -> dict[str, str]:
    """The environment of a user of a cluster."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GPUYARD_", "LC_"))}
    return {
        **kept, "GPUYARD_SERVER": f"http://127.0.0.1:{cluster.http}", "TERM": "xterm-256color", "LANG": "C.UTF-8",
        "XDG_CONFIG_HOME": str(cluster.folder / "config"), **more,
    }  # fmt: skip


@contextmanager
def at_terminal(
    command: str, *words: str, env: Mapping[str, str], folder: Path, size: tuple[int, int] = (24, 80)
) -> Iterator[Person]:
    """Run a program below a terminal of this many rows and columns."""
    child = pexpect.spawn(
        command, list(words), env=dict(env), cwd=str(folder), dimensions=size, encoding="utf-8", codec_errors="replace"
    )
    child.delaybeforesend = None
    try:
        yield Person(child)
    finally:
        child.close(force=True)


@contextmanager
def person(cluster: Cluster, *words: str, size: tuple[int, int] = (24, 80), **env: str) -> Iterator[Person]:
    """Someone who calls gpuyard."""
    with at_terminal(GPUYARD, *words, env=environment(cluster, **env), folder=cluster.folder, size=size) as one:
        yield one
