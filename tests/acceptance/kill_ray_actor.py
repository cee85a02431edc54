"""Run a program, and kill one of the Ray actors that hold its models as soon as one of them computes."""

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

PATIENCE_S = 120.0
OUR_NETWORK = Path("/proc/self/ns/net").readlink()
"""The cluster has a network namespace of its own; other tests may have theirs."""


def kill_one() -> bool:
    """The first worker of our cluster that does something, if there is one. Ray writes that into a process's name."""
    for process in psutil.process_iter(["cmdline"]):
        if any(word.startswith("ray::Actor.execute") for word in process.info["cmdline"] or ()):
            with suppress(OSError, psutil.Error):  # it may just have ended
                if Path(f"/proc/{process.pid}/ns/net").readlink() == OUR_NETWORK:
                    process.kill()
                    return True
    return False


def main() -> int:
    with subprocess.Popen(sys.argv[1:]) as run:
        end = time.monotonic() + PATIENCE_S
        while run.poll() is None and time.monotonic() < end and not kill_one():
            time.sleep(0.02)
        return run.wait()


if __name__ == "__main__":
    sys.exit(main())
