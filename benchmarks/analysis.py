"""Runs the scripts of `examples/analysis` in the orders that `gpuyard analyze` allows, and compares their files.

    python -m benchmarks.analysis --out benchmarks/results/analysis.json

Each script runs as it is, with its statements in two other orders that respect the claimed dependencies (iterations that are
called independent backwards), and, if it can be divided, as separate processes in the order that is farthest from that
of the code. Then scripts of 250 to 2,000 statements are made and analyzed, to see how the time grows. Needs torch, pandas, scipy, lightgbm and Pillow.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common.results import about  # noqa: E402
from gpuyard.learn.analysis import analyze  # noqa: E402
from tests.unit.learn.analysis.orders import try_scripts  # noqa: E402

LIBRARIES = ["torch", "torch._dynamo", "numpy", "pandas", "scipy", "lightgbm", "PIL"]
SEEDS = (0, 1)


def measure(names: list[str]) -> dict[str, Any]:
    scripts = {path.stem: path for path in sorted((ROOT / "examples" / "analysis").glob("*.py"))}
    made = about("python -m benchmarks.analysis --out benchmarks/results/analysis.json", list(SEEDS))
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
            "cpu_seconds": round(one.cpu_seconds, 2),
        }
        for name, one in tried.items()
    ]
    return {
        "about": made,
        "scripts": rows,
        "growth": growth(),
    }


HEAD = """import json
import numpy as np
import strange
def make(name, n):
    x = np.arange(n)
    np.save(name, x)
    return x
def add(x, y): return x + y
def grow(x): x.append(1)
"""
SHAPES = {
    "calls that write files": (
        "a{0} = make('f{0}.npy', {0})",
        "b{0} = add(a{0}, 1)",
        "c{0} = [b{0}]",
        "grow(c{0})",
    ),
    "loops over files": ("for i in range(4):", "    make(f'd{0}/p{{i}}.npy', i)"),
    "functions": ("def f{0}(x): return add(x, {0})", "r{0} = f{0}({0})", "print(r{0})", "grow([r{0}])"),
    "unknown calls": ("x{0} = strange.work({0})", "y{0} = add(x{0}, 1)"),
}
"""Statements that are repeated with another number."""
SIZES = (250, 500, 1_000, 2_000)


def growth() -> list[dict[str, Any]]:
    """CPU seconds of the analysis of scripts of several lengths, one run each."""
    rows = []
    with TemporaryDirectory() as scratch:
        path = Path(scratch, "long.py")
        for shape, lines in SHAPES.items():
            seconds = []
            for size in SIZES:
                body = [line.format(number) for number in range(size // len(lines)) for line in lines]
                path.write_text(HEAD + "\n".join(body) + "\n")
                seconds.append(_seconds(path))
            rows.append({"shape": shape, "statements": list(SIZES), "seconds": seconds})
    return rows


def _seconds(path: Path) -> float:
    start = time.process_time()
    analyze(path)
    return round(time.process_time() - start, 3)


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
    if not data["growth"]:
        return "\n".join(lines)
    sizes = data["growth"][0]["statements"]
    lines += [
        "",
        f"| statements of a script | {' | '.join(f'{size:,}' for size in sizes)} | {sizes[-1] // sizes[-2]} times as long |",
        f"|---|{'---|' * len(sizes)}---|",
    ]
    for row in data["growth"]:
        times = " | ".join(f"{seconds:.1f} s" for seconds in row["seconds"])
        lines.append(f"| {row['shape']} | {times} | {row['seconds'][-1] / row['seconds'][-2]:.1f} times the time |")
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
