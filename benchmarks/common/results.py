"""Results of benchmarks as files: what was measured, with the commit, date, command, seeds and settings it was measured with.

`benchmarks/tables.py` makes the tables of the manual from these files.
"""

import json
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from platform import python_version
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
MADE_FROM = ("src", "benchmarks/*.py", "benchmarks/common", "profiles", ":(exclude)*.md")
"""What a result depends on; changes elsewhere do not make a commit unclean."""


def about(command: str, seeds: list[int], **settings: object) -> dict[str, Any]:
    """Return how a result is made. `command` is what a reader types in the root of the repository, without own paths."""
    return {
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "command": command,
        "seeds": seeds,
        "python": python_version(),
        "settings": settings,
    }


def commit() -> str:
    """Return the commit of the working tree, with a mark if a file that matters differs from it."""
    changed = _git("status", "--porcelain", "--", *MADE_FROM)
    return _git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")


def write_result(name: str, made: Mapping[str, Any], rows: object, folder: Path = RESULTS) -> Path:
    """Write a result; the same result always gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"about": made, "rows": rows}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def read_result(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """Read a result."""
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return found


def _git(*words: str) -> str:
    try:
        said = subprocess.run(("git", *words), cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return said.stdout.strip()
