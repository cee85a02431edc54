"""The first plan on a machine: without waiting for the compiler.

Compiling the planner takes the better part of a minute, once per machine and version. If that has not been done, a small problem is planned
by the same code as plain Python, and another process compiles for the next time:

    compiled before              compiled code
    a small problem              plain Python in this process; `python -m gpuyard.cli.plan.first_use` compiles, with low priority
    a large one, or --rounds     compiled now; plain Python would take too long

`NUMBA_DISABLE_JIT` decides instead if it is set: 1 plain Python, 0 compiled code.
"""

import fcntl
import hashlib
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from gpuyard.plan.planner import code_mode

if TYPE_CHECKING:
    from gpuyard.plan.planner.problem import Problem

SWITCH = "NUMBA_DISABLE_JIT"
MOST_CALLS = 1_000
"""The largest problem that is planned by plain Python: one list schedule of it takes a second."""
STRATEGIES = ("batch", "dynamic", "auto", "pareto")
"""Strategies that together use all compiled functions."""
WITHOUT = "gpuyard: first use on this machine: planned without compiled code; it is being compiled in the background for next time."


def choose_code(problem: "Problem", rounds: int | None) -> None:
    """Decide whether this process compiles; call it before anything of `planner.compiled` is imported."""
    if SWITCH in os.environ:
        code_mode.plain = os.environ[SWITCH] not in {"", "0"}
        return
    if (
        "gpuyard.plan.planner.compiled.jit" in sys.modules
        or rounds is not None
        or len(problem.calls) > MOST_CALLS
        or marker().exists()
    ):
        return
    code_mode.plain = True
    print(WITHOUT, file=sys.stderr)
    subprocess.Popen(
        [sys.executable, "-m", "gpuyard.cli.plan.first_use"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def marker() -> Path:
    """Return the file that exists once everything is compiled for this version, interpreter and processor."""
    source = Path(__file__).parents[2] / "plan" / "planner" / "compiled"
    of_files = [(file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(source.glob("*.py"))]
    of_all = (of_files, sys.version, version("numba"), version("numpy"), platform.machine(), _processor())
    name = f"compiled-{hashlib.sha256(repr(of_all).encode()).hexdigest()[:16]}"
    beside = source / "__pycache__"
    folder = beside if os.access(beside if beside.exists() else source, os.W_OK) else _user_cache()
    return folder / name


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuyard"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("model name")), "")


def compile_all() -> None:
    """Compile everything and leave the marker; return at once if another process is at it."""
    from gpuyard.plan.planner.api import prepare

    done = marker()
    done.parent.mkdir(parents=True, exist_ok=True)
    with done.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        for strategy in STRATEGIES:
            prepare(strategy)
        done.touch()


if __name__ == "__main__":
    os.nice(10)
    compile_all()
