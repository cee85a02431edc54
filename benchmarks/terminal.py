"""Terminals: `gpuyard run --pty` beside a local terminal in the same run, as ratios.

    .venv/bin/python -m benchmarks.terminal --json        needs a running cluster (GPUYARD_SERVER) on this machine

Measured are the time from a key to its echo, and the speed at which much output arrives.
"""

import argparse
import json
import os
import pty
import select
import statistics
import sys
import time
import tty
from pathlib import Path
from typing import Any

KEYS = 300
OUTPUT_BYTES = 64 << 20
READY = b"ready"
SECONDS = 120.0


class TimedTerminal:
    """A command below a terminal of its own."""

    def __init__(self, words: list[str]) -> None:
        self.pid, self.screen = pty.fork()
        if self.pid == 0:
            os.execvp(words[0], words)
        tty.setraw(self.screen)

    def read_until(self, wanted: bytes) -> bytes:
        """Read until these bytes are there; return everything."""
        shown = b""
        while wanted not in shown:
            shown += self.read()
        return shown

    def read(self) -> bytes:
        """Return what comes next."""
        if not select.select([self.screen], [], [], SECONDS)[0]:
            raise TimeoutError("the command does not answer")
        return os.read(self.screen, 1 << 16)

    def close(self) -> None:
        """End the command."""
        os.close(self.screen)
        os.waitpid(self.pid, 0)


def echo_seconds(before: list[str]) -> list[float]:
    """Return the times from a key to its echo by a program that copies its input."""
    copy = "import os,sys,tty;tty.setraw(0);os.write(1,b'ready');\nwhile d:=os.read(0,64): os.write(1,d)"
    terminal = TimedTerminal([*before, sys.executable, "-c", copy])
    terminal.read_until(READY)
    times = []
    for number in range(KEYS):
        key = b"%c" % (97 + number % 26)
        began = time.perf_counter()
        os.write(terminal.screen, key)
        terminal.read_until(key)
        times.append(time.perf_counter() - began)
        time.sleep(0.005)
    terminal.close()
    return times


def megabytes_per_second(before: list[str]) -> float:
    """Return how fast much output arrives."""
    line = f"echo ready; read key; head -c {OUTPUT_BYTES} /dev/zero | tr '\\0' x; echo; echo end-of-it"
    terminal = TimedTerminal([*before, "sh", "-c", f"stty -opost -echo; {line}"])
    got = len(terminal.read_until(READY))
    os.write(terminal.screen, b"\n")
    began, tail = time.perf_counter(), b""
    while b"end-of-it" not in tail:
        part = terminal.read()
        got += len(part)
        tail = tail[-32:] + part
    seconds = time.perf_counter() - began
    terminal.close()
    return got / seconds / 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    through = [
        str(Path(sys.executable).with_name("gpuyard")),
        "run",
        "-q",
        "-g",
        "1",
        "--pty",
        "--escape",
        "none",
        "--",
    ]
    result: dict[str, Any] = {}
    for name, before in (("local", []), ("gpuyard", through)):
        times = sorted(echo_seconds(before))
        result[name] = {
            "echo_ms_p50": round(1000 * statistics.median(times), 3),
            "echo_ms_p99": round(1000 * times[int(len(times) * 0.99)], 3),
            "megabytes_per_second": round(megabytes_per_second(before), 1),
        }
    result["ratios"] = {
        figure: round(result["gpuyard"][figure] / result["local"][figure], 3) for figure in result["local"]
    }
    if as_json:
        print(json.dumps(result))
        return
    for name, figures in result.items():
        print(name, figures)


if __name__ == "__main__":
    main()
