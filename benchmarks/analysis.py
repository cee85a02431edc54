"""Runs the scripts of `examples/analysis` in the orders that `gpuyard analyze` allows, and compares their files.

    python -m benchmarks.analysis --out benchmarks/results/analysis.json

Each script runs as it is, with its statements in two other orders that respect the claimed dependencies (iterations that are
called independent backwards), and, if it can be divided, as separate processes in the order that is farthest from that
of the code. Needs torch, pandas, scipy, lightgbm and Pillow.
"""

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common.results import about  # noqa: E402
from tests.unit.learn.analysis.orders import try_scripts  # noqa: E402

LIBRARIES = ["torch", "numpy", "pandas", "scipy", "lightgbm", "PIL"]
SEEDS = (0, 1)


def measure(names: list[str]) -> dict[str, Any]:
    scripts = {path.stem: path for path in sorted((ROOT / "examples" / "analysis").glob("*.py"))}
    chosen = {name: path for name, path in scripts.items() if not names or name in names}
    with TemporaryDirectory() as scratch:
        tried = try_scripts(chosen, Path(scratch), LIBRARIES, SEEDS)
    rows = [
        {
            "script": name,
            "shape": (chosen[name].read_text().splitlines()[0].strip('"').rstrip(".")),
            "steps": [task.id for task in one.graph.tasks],
            "independent": [f"{task.id} ×{task.rounds}" for task in one.graph.tasks if task.independent],
            "width": one.graph.width,
            "parts": sum(request.array or 1 for request in one.graph.requests),
            "wrong": one.wrong,
        }
        for name, one in tried.items()
    ]
    return {
        "about": about("python -m benchmarks.analysis --out benchmarks/results/analysis.json", list(SEEDS)),
        "scripts": rows,
    }


def render(data: dict[str, Any]) -> str:
    """The table of docs/manual/analysis.md."""
    lines = [
        "| script | steps | at once | independent rounds | processes | files as the script |",
        "|---|---|---|---|---|---|",
    ]
    for row in data["scripts"]:
        independent = ", ".join(row["independent"]) or "–"
        same = "yes" if not row["wrong"] else "**no**"
        lines.append(
            f"| `{row['script']}` | {len(row['steps'])} | {row['width']} | {independent} | {row['parts']} | {same} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="scripts to run (default: all)")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    data = measure(options.names)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    print(render(data))
    for row in data["scripts"]:
        for wrong in row["wrong"]:
            print(f"{row['script']}: {wrong}", file=sys.stderr)
    sys.exit(any(row["wrong"] for row in data["scripts"]))


if __name__ == "__main__":
    main()
