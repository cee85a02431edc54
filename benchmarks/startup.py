"""Start-up time of the command line beside `python -c pass`, on a cluster of virtual GPUs that it starts itself.

    python benchmarks/startup.py [--rounds 20] [--json] [--write]

Every round runs each command once, in turn, so that all see the same load. Wall time is what a person waits for; CPU time
hardly depends on other work of the machine. `over` is the difference to `python -c pass` in the same round.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common.results import about, write_result

PYTHON = sys.executable
GPUYARD = str(Path(sys.executable).with_name("gpuyard"))
BASE = "python -c pass"
COMMANDS = {
    BASE: [PYTHON, "-c", "pass"],
    "import gpuyard": [PYTHON, "-c", "import gpuyard"],
    "gpuyard --help": [GPUYARD, "--help"],
    "gpuyard ps": [GPUYARD, "ps"],
    "gpuyard submit": [GPUYARD, "submit", "--cpus", "1", "-g", "0", "--", "true"],
    "gpuyard run -g 1 -- true": [GPUYARD, "run", "-q", "-g", "1", "--", "true"],
    "completion of a word": ["/usr/bin/env", "_GPUYARD_COMPLETE=bash", GPUYARD, "canc"],
}


@contextmanager
def cluster() -> Iterator[dict[str, str]]:
    """Start a cluster and yield the environment of its clients."""
    with tempfile.TemporaryDirectory() as folder:
        env = {name: value for name, value in os.environ.items() if not name.startswith("GPUYARD_")}
        env["XDG_CONFIG_HOME"] = folder
        words = [GPUYARD, "up", "--data-dir", f"{folder}/data", "--http-address", "127.0.0.1:0", "--grpc-address"]
        words += ["127.0.0.1:0", "--virtual-gpus", "4:RTX4090:24", "--json"]
        process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            assert process.stdout is not None
            env["GPUYARD_SERVER"] = json.loads(process.stdout.readline())["http"]
            subprocess.run(
                [GPUYARD, "run", "-q", "--", "true"], env=env, check=True, timeout=120
            )  # the node has joined
            yield env
        finally:
            process.terminate()
            process.wait(60)
            subprocess.run(
                [GPUYARD, "down", "--data-dir", f"{folder}/data", "--stop-tasks"],
                env=env,
                capture_output=True,
                check=False,
            )


def measured(words: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds of one call."""
    began = time.perf_counter()
    process = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    return seconds, used.ru_utime + used.ru_stime


def render(result: dict[str, Any]) -> str:
    """Return the table of the documentation."""
    lines = [
        "| command | CPU ms | above `python -c pass` | times `python -c pass` | wall ms, least / p50 |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| `{row['command']}` | {row['cpu_ms_p50']:.0f} | {row['over_cpu_ms_p50']:.0f} | {row['times_python']} "
        f"| {row['wall_ms_min']:.0f} / {row['wall_ms_p50']:.0f} |"
        for row in result["rows"]
    ]
    made = result["about"]["settings"]
    return "\n".join(
        [*lines, "", f"{made['rounds']} rounds on {made['cores']} cores, load average {made['load_average']}."]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="keep the figures in benchmarks/results")
    asked = parser.parse_args()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    with cluster() as env:
        for _ in range(asked.rounds):
            for name, words in COMMANDS.items():
                times[name].append(measured(words, env))
    rows = {}
    for name, each in times.items():
        over = [(wall - base, cpu - base_cpu) for (wall, cpu), (base, base_cpu) in zip(each, times[BASE], strict=True)]
        rows[name] = {
            "wall_ms_p50": round(1000 * median(wall for wall, _ in each), 1),
            "wall_ms_min": round(1000 * min(wall for wall, _ in each), 1),
            "cpu_ms_p50": round(1000 * median(cpu for _, cpu in each), 1),
            "over_wall_ms_p50": round(1000 * median(wall for wall, _ in over), 1),
            "over_cpu_ms_p50": round(1000 * median(cpu for _, cpu in over), 1),
            "times_python": round(median(cpu for _, cpu in each) / median(cpu for _, cpu in times[BASE]), 1),
        }
    load, cores = round(os.getloadavg()[0], 1), os.cpu_count()
    if asked.write:
        made = about("python benchmarks/startup.py --write", [], rounds=asked.rounds, load_average=load, cores=cores)
        write_result("startup", made, [{"command": name, **row} for name, row in rows.items()])
    result = {"rounds": asked.rounds, "python": sys.version.split()[0], "load": load, "commands": rows}
    if asked.json:
        print(json.dumps(result, indent=1))
        return
    for name, row in rows.items():
        print(f"{name:28}", *(f"{key}={value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
