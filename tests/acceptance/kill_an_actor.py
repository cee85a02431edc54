"""Run a program, and kill one of the Ray actors that hold its models as soon as one of them computes."""

import subprocess
import sys
import time

import psutil

PATIENCE_S = 120.0


def kill_one() -> bool:
    """The first worker that does something, if there is one. Ray writes into a process's name what it does."""
    for process in psutil.process_iter(["cmdline"]):
        if any(word.startswith("ray::Actor.obey") for word in process.info["cmdline"] or ()):
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
