"""Whether the inner loops of the planner are compiled in this process.

A command that should answer before they are compiled sets `plain` before it imports a strategy.
"""

import os

SWITCH = "NUMBA_DISABLE_JIT"
plain = os.environ.get(SWITCH, "0") not in {"", "0"}
