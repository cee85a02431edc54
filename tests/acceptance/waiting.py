"""Waiting for something real to happen."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_SECONDS = 60.0
"""A busy machine takes its time."""
T = TypeVar("T")


def until(happens: Callable[[], T | None], seconds: float = PATIENCE_SECONDS, what: str = "it") -> T:
    """Ask until there is an answer, and hand it back; not for ever."""
    give_up_at = time.monotonic() + seconds
    while True:
        if found := happens():
            return found
        assert time.monotonic() < give_up_at, f"waited {seconds:g} s for: {what}"
        time.sleep(0.02)
