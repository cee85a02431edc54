"""Polling with a timeout."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_SECONDS = 60.0
"""Generous, for busy machines."""
T = TypeVar("T")


def until(happens: Callable[[], T | None], seconds: float = PATIENCE_SECONDS, what: str = "it") -> T:
    """Poll until there is an answer and return it; fail after a timeout."""
    give_up_at = time.monotonic() + seconds
    while True:
        if found := happens():
            return found
        assert time.monotonic() < give_up_at, f"waited {seconds:g} s for: {what}"
        time.sleep(0.02)
