"""`python run_scripts.py < jobs.json`: run scripts one after the other, each in a fork of a process that has the libraries.

A job is a folder, a file in it, arguments and variables. Prints the exit status, the CPU seconds and the end of the output of each.
"""

import contextlib
import importlib
import json
import os
import resource
import runpy
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

SECONDS = 60


def run(job: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 1
    try:
        signal.alarm(SECONDS)
        os.chdir(job["folder"])
        said = os.open("said.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.environ.update(job["env"])
        sys.argv = [job["script"], *job["arguments"]]
        sys.path[0] = job["folder"]
        runpy.run_path(job["script"], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    asked = json.load(sys.stdin)
    for name in asked["libraries"]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    ended = []
    for job in asked["jobs"]:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        code = run(job)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        said = Path(job["folder"], "said.log")
        ended.append({"code": code, "cpu": cpu, "said": said.read_text(errors="replace")[-2000:]})
        said.unlink()
    json.dump(ended, sys.stdout)


if __name__ == "__main__":
    main()
