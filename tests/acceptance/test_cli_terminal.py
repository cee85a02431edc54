"""Output at a terminal: colored tables, why a task waits, and what Ctrl-C does."""

import os
import pty
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.acceptance.cli_cluster import GPUYARD, CliCluster, running_cluster
from tests.acceptance.waiting import until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


class Terminal:
    """A command with its own terminal."""

    def __init__(self, process: "subprocess.Popen[bytes]", screen: int) -> None:
        self.process = process
        self._screen = screen
        self.shown = b""

    def shows(self, words: bytes, seconds: float = 60.0) -> None:
        """Read until these words are there."""
        give_up_at = time.monotonic() + seconds
        while words not in self.shown:
            assert time.monotonic() < give_up_at, self.shown
            self._read()

    def ends(self) -> int:
        """Read to the end; the exit code."""
        while self._read():
            continue
        return self.process.wait(60)

    def press_ctrl_c(self) -> None:
        """As the terminal does it."""
        os.write(self._screen, b"\x03")

    def types(self, text: bytes) -> None:
        """Type some keys."""
        os.write(self._screen, text)

    def _read(self) -> bytes:
        try:
            part = os.read(self._screen, 65536)
        except OSError:  # the other end is closed
            return b""
        self.shown += part
        return part


@contextmanager
def at_a_terminal(cluster: CliCluster, *words: str) -> Iterator[Terminal]:
    screen, inside = pty.openpty()
    env = {**cluster.env, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(
        ["setsid", "--ctty", "--wait", GPUYARD, *words],
        env=env,
        stdin=inside,
        stdout=inside,
        stderr=inside,
        cwd=cluster.folder,
    )
    os.close(inside)
    try:
        yield Terminal(process, screen)
    finally:
        process.kill()
        process.wait(60)
        os.close(screen)


def test_a_table_is_colored_and_fits_the_terminal(cluster: CliCluster) -> None:
    task = cluster.client().submit("true", gpu_count=64, name="n" * 150)
    with at_a_terminal(cluster, "ps") as terminal:
        assert terminal.ends() == 0
    cluster.client().cancel(task)

    assert b"\x1b[" in terminal.shown
    plain = re.sub(rb"\x1b\[[0-9;]*m", b"", terminal.shown).decode()
    assert max(map(len, plain.splitlines())) <= 120
    assert task.id in plain


def test_run_says_that_a_shell_needs_a_terminal(cluster: CliCluster) -> None:
    hint = b"reads nothing without a terminal and ends at once; `gpuyard run --pty` gives it one."
    for words, hinted in ((["bash"], True), (["/bin/sh"], True), (["bash", "-c", "true"], False), (["true"], False)):
        with at_a_terminal(cluster, "run", "-g", "0", "--cpus", "1", "--", *words) as terminal:
            assert terminal.ends() == 0
        assert (hint in terminal.shown) is hinted, words
    assert "terminal" not in cluster.call("run", "-g", "0", "--cpus", "1", "--", "bash").stderr


def test_a_lease_at_a_terminal_is_printed_for_people(cluster: CliCluster) -> None:
    with at_a_terminal(cluster, "lease", "-g", "1", "--timeout", "1h") as terminal:
        assert terminal.ends() == 0
    lines = terminal.shown.decode().replace("\x1b[K", "").split("\r\n")
    said = next(line for line in lines if " holds 1 GPU of node " in line)
    lease = next(line for line in lines if line.startswith("task-"))
    assert f"{lease} holds 1 GPU of node " in said
    assert re.search(r", until \d\d:\d\d:\d\d\. To give back", said)
    assert "export" not in terminal.shown.decode()
    assert any(line.startswith("CUDA_VISIBLE_DEVICES=") for line in lines)
    cluster.does("lease", "release", lease)


def test_run_shows_why_it_waits_and_ctrl_c_cancels(cluster: CliCluster) -> None:
    with at_a_terminal(cluster, "run", "-g", "64", "-n", "waiting", "--", "true") as terminal:
        terminal.shows(b"waits.")
        terminal.press_ctrl_c()
        assert terminal.ends() == 130

    assert b"is being cancelled" in terminal.shown
    assert b"Traceback" not in terminal.shown
    [task] = cluster.client().tasks(name="waiting")
    assert task.status == "cancelled"


def test_a_second_ctrl_c_exits_at_once(cluster: CliCluster) -> None:
    stubborn = "trap '' TERM; echo ready; while true; do sleep 0.1; done"
    with at_a_terminal(cluster, "run", "-n", "stubborn", "--shell", stubborn) as terminal:
        terminal.shows(b"ready")
        terminal.press_ctrl_c()
        terminal.shows(b"is being cancelled")
        began = time.monotonic()
        terminal.press_ctrl_c()
        assert terminal.ends() == 130
        assert time.monotonic() - began < 8, "it did not wait for the end of the task, which takes 10 s"

    assert b"Traceback" not in terminal.shown
    [task] = cluster.client().tasks(name="stubborn")
    until(lambda: cluster.client().task(task).status == "cancelled", what="the task is cancelled all the same")


def test_up_at_a_terminal_prints_a_summary_and_stops_with_ctrl_c(cluster: CliCluster) -> None:
    words = ("up", "--data-dir", str(cluster.folder / "second"), "--http-address", "127.0.0.1:0")
    with at_a_terminal(cluster, *words, "--grpc-address", "127.0.0.1:0", "--virtual-gpus", "2:A100:80") as terminal:
        terminal.shows(b"2 \xc3\x97 A100, 80 GB (virtual")
        terminal.press_ctrl_c()
        assert terminal.ends() == 0

    assert b"is running at http://127.0.0.1:" in terminal.shown
    assert b"Stopped." in terminal.shown


@pytest.mark.parametrize("form", ["--csv", "--json"])
def test_names_of_others_do_not_control_the_terminal(cluster: CliCluster, form: str) -> None:
    cluster.client().submit("true", project="\x9b2Jx\u202ey")
    with at_a_terminal(cluster, "usage", "--by", "project", form) as terminal:
        assert terminal.ends() == 0
    shown = terminal.shown.decode()
    assert "2Jx" in shown
    assert "\x9b" not in shown
    assert "\u202e" not in shown
    assert "\x9b2Jx\u202ey" in cluster.does("usage", "--by", "project", form), "a pipe gets what the scheduler sent"


def test_a_large_sweep_asks_and_prints_the_first_and_the_last_task(cluster: CliCluster) -> None:
    words = ("submit", "-n", "big", "--after", "999", "--sweep", "i=1..101", "--", "true", "{i}")
    with at_a_terminal(cluster, *words) as terminal:
        terminal.shows(b"Submit 101 tasks? [y/N]")
        terminal.types(b"n\n")
        assert terminal.ends() == 130
    assert not list(cluster.client().tasks(name="big[i=1]"))
    first = cluster.does("submit", "--", "sleep", "0").strip()
    words = ("submit", "-n", "big", "--after", first, "--sweep", "i=1..101", "--", "true", "{i}")
    with at_a_terminal(cluster, *words) as terminal:
        terminal.shows(b"Submit 101 tasks? [y/N]")
        terminal.types(b"y\n")
        assert terminal.ends() == 0
        shown = [line.strip() for line in terminal.shown.decode().splitlines() if "big[" in line or "…" in line]
    assert [line.partition("  ")[2] for line in shown] == ["big[i=1]", "big[i=2]", "big[i=3]", "", "big[i=101]"]
    assert b"101 tasks were submitted." in terminal.shown
