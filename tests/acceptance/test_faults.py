"""Nothing lost, nothing twice: a short soak. benchmarks/soak.py runs long ones, tests/acceptance/soak.py is what both run.

GPUYARD_FAULT_SEED=7 GPUYARD_FAULT_SECONDS=120 pytest -s tests/acceptance/test_faults.py
"""

import os
import random
from pathlib import Path

from tests.acceptance.soak import FAULTS, soak

SECONDS = float(os.environ.get("GPUYARD_FAULT_SECONDS", "40"))
KINDS = tuple(name for name, fault in FAULTS.items() if fault.touches != "all")
"""Backups and second schedulers take most of these seconds for themselves: they are for the long soaks."""
SEED = int(os.environ.get("GPUYARD_FAULT_SEED", "0")) or random.randrange(1, 10**6)


def test_nothing_is_lost_and_nothing_counts_twice_under_all_faults(tmp_path: Path) -> None:
    print(f"\nfault test: seed {SEED}, {SECONDS:.0f} s")
    report = soak(tmp_path, SEED, faults=10_000, seconds=SECONDS, only=KINDS)
    print(report.as_dict())
    again = f"GPUYARD_FAULT_SEED={SEED} GPUYARD_FAULT_SECONDS={SECONDS:g} pytest -s tests/acceptance/test_faults.py"
    assert not report.verdict.broken, "\n".join([*report.verdict.broken, f"repeat with: {again}"])
