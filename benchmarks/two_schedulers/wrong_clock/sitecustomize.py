"""Loaded first by a Python whose wall clock is wrong (PYTHONPATH): `time.time` is wrong by what the file WRONG_CLOCK says.

The scheduler reads its wall clock in no other way. libfaketime 0.9.10 would shift it for C code as well, but Python 3.11 cannot
sleep under it (`clock_nanosleep` fails), and it slows down every change of the thread so much that a scheduler falls behind.
"""

import os
import time
from pathlib import Path

LOOK_SECONDS = 0.5
_true = time.time
_file = Path(os.environ["WRONG_CLOCK"])
_looked_at, _shift = float("-inf"), 0.0


def _wrong() -> float:
    global _looked_at, _shift
    now = time.monotonic()
    if now - _looked_at >= LOOK_SECONDS:
        _looked_at, _shift = now, float(_file.read_text())
    return _true() + _shift


time.time = _wrong
