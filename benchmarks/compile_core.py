"""Build a copy of gpuyard whose deciding core is compiled to C with mypyc: same sources, same behaviour, less time.

Only the modules on the way of a decision are compiled; the rest is copied as it is. The copy lies in build/fast and is
used by putting that folder in front: PYTHONPATH=build/fast gpuyard bench engine. Nothing else ever looks there.
Needs a C compiler and the Python headers. Run it through `make fast`.
"""

import os
import shutil
import sys
from pathlib import Path

CORE = [
    *(
        f"gpuyard/core/placement/{name}.py"
        for name in ("bayset", "topology", "index", "shape", "room", "worth", "demand", "descent", "choose")
    ),
    "gpuyard/core/placement/scores/fragmentation.py",
    *(
        f"gpuyard/core/engine/{name}.py"
        for name in (
            "quota",
            "task",
            "queue",
            "state",
            "folds/__init__",
            "folds/fits",
            "folds/tasks",
            "folds/attempts",
            "folds/reservations",
            "folds/nodes",
            "folds/yard",
            "standing",
            "backfill",
            "advice",
            "figures",
            "preemption",
            "deeds",
            "schedule",
            "short_ways",
            "ledger",
            "endings",
            "attempts",
            "handlers/__init__",
            "handlers/tasks",
            "handlers/reports",
            "handlers/nodes",
            "handlers/yard",
            "engine",
        )
    ),
]


def main() -> None:
    root = Path(__file__).resolve().parent.parent
    out = root / "build" / "fast"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(root / "src" / "gpuyard", out / "gpuyard", ignore=shutil.ignore_patterns("__pycache__"))
    os.chdir(out)
    os.environ["MYPYPATH"] = str(out)
    from mypyc.build import mypycify
    from setuptools import setup

    sys.argv = ["compile_core", "--quiet", "build_ext", "--inplace"]
    setup(name="gpuyard-core", packages=[], ext_modules=mypycify(CORE, opt_level="3", group_name="core"))
    shutil.rmtree(out / "build", ignore_errors=True)


if __name__ == "__main__":
    main()
