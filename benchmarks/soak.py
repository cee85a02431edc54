"""Faults with real processes, drawn from a seed; or outages with the default settings.

    .venv/bin/python benchmarks/soak.py --seed 7 --faults 1000 [--minutes 120] [--json FILE] [--only KIND,...]
    .venv/bin/python benchmarks/soak.py --outages [--long] [--json FILE]

The exit code is 1 when a promise was broken; then the folder with all logs, the journal and the ledger is kept, and the
command is printed that draws the same faults again. tests/acceptance/soak.py has the faults, tests/acceptance/ledger.py
what is counted. As root it also fills a disk and runs duplicates of nodes.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.acceptance.soak import FAULTS, outages, soak

LENGTHS = (1.0, 20.0, 90.0)
LONG_SECONDS = 600.0
SHOWN = 30


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="which faults; random if left out")
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=120.0, help="no new fault after this time")
    parser.add_argument("--only", default="", help=f"kinds of faults, separated by commas: {', '.join(FAULTS)}")
    parser.add_argument("--outages", action="store_true", help="outages with the default settings instead")
    parser.add_argument("--long", action="store_true", help="with --outages: one of 10 minutes too")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--keep", action="store_true", help="keep the folder in any case")
    asked = parser.parse_args()
    only = tuple(name.strip() for name in asked.only.split(",") if name.strip())
    if wrong := [name for name in only if name not in FAULTS]:
        parser.error(f"no such fault: {', '.join(wrong)}")
    folder = Path(tempfile.mkdtemp(prefix="gpuyard-soak-"))
    print(f"everything is in {folder}", flush=True)
    figures, is_broken = _outages(folder, asked) if asked.outages else _soak(folder, asked, only)
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=2) + "\n")
    if is_broken or asked.keep:
        print(f"kept: {folder}")
    else:
        shutil.rmtree(folder)
    return int(is_broken)


def _tell(line: str) -> None:
    print(line, flush=True)


def _soak(folder: Path, asked: argparse.Namespace, only: tuple[str, ...]) -> tuple[dict[str, Any], bool]:
    seed = asked.seed if asked.seed is not None else random.randrange(1, 10**6)
    again = f"python benchmarks/soak.py --seed {seed} --faults {asked.faults}" + (
        f" --only '{asked.only}'" * bool(only)
    )
    _tell(f"seed {seed}, {asked.faults} faults, at most {asked.minutes:g} min")
    try:
        report = soak(folder, seed, faults=asked.faults, seconds=60 * asked.minutes, tell=_tell, only=only)
    except BaseException:
        _tell(f"failed; kept: {folder}\nrepeat with: {again}")
        raise
    figures = report.as_dict()
    _tell(f"\n{figures['faults']} faults in {report.seconds / 60:.1f} min")
    for part in ("faults_by_kind", "counts", "retries"):
        _tell(f"{part}:")
        for name, count in sorted(figures[part].items()):
            _tell(f"  {count:7d}  {name}")
    broken = report.verdict.broken
    for sentence in broken[:SHOWN]:
        _tell(f"BROKEN  {sentence}")
    _tell(f"broken promises: {len(broken)}" + (f"\nrepeat with: {again}" if broken else ""))
    return figures, bool(broken)


def _outages(folder: Path, asked: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    lengths = (*LENGTHS, LONG_SECONDS) if asked.long else LENGTHS
    found = outages(folder, lengths, tell=_tell)
    _tell("\n| outage | seconds | nodes declared lost | attempts started | processes stopped |\n|---|---|---|---|---|")
    for it in found:
        _tell(f"| {it.what} | {it.seconds:g} | {it.nodes_lost} | {it.attempts_started} | {it.processes_stopped} |")
    return {"outages": [asdict(it) for it in found]}, any(it.attempts_started or it.processes_stopped for it in found)


if __name__ == "__main__":
    sys.exit(main())
