"""The event loop of long-lived commands: uvloop, which serves about twice as many requests as asyncio's own loop."""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import structlog
import uvloop

SWITCH_SECONDS = 0.0003
"""Thread switch interval: how long gRPC's thread waits to hand over input. Python's 5 ms exceed a task's round trip."""


def silence_grpc() -> None:
    """Keep gRPC's own messages out of our log, unless GRPC_VERBOSITY is set. gRPC reads this when it is imported.

    Failures are reported as errors of calls and logged in our own format.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def protect_settings(config: Path | None) -> None:
    """Remove other users' access to a settings file that holds a join token or passwords, or warn about it."""
    if config is None:
        return
    mode = config.stat().st_mode & 0o777
    if not mode & 0o007:
        return
    log = structlog.get_logger()
    try:
        config.chmod(mode & ~0o007)
    except OSError:
        message = (
            f"{config} contains a join token or passwords, and other users (including tasks) can read it. "
            f"Run: chmod o-rwx {config}"
        )
        log.warning("settings_found_readable", message=message)
    else:
        log.warning(
            "settings_permissions_corrected",
            message=f"{config} was readable by other users; its permissions have been corrected.",
        )


def run_in_loop(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run this coroutine function to its end."""
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())
