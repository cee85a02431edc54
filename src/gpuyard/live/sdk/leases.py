"""What a lease does while its block runs: it is renewed, and sets the devices of this process."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gpuyard.core.domain.errors import WrongInput
from gpuyard.live.sdk.errors import ClusterError, NotAllowed, NotFound
from gpuyard.live.sdk.values import Lease

RENEWALS = 3
"""How often a lease is renewed within its time limit."""
AGAIN_SECONDS = 2.0
"""Pause after a renewal that failed; at most a tenth of the time limit."""


def check_renewal(timeout: float | None, *, renew: bool) -> None:
    """Refuse to renew a lease that has no time limit, before it is requested."""
    if renew and not timeout:
        raise WrongInput("renew needs a timeout: how long the GPUs stay reserved after this program has gone.")


class RenewalPlan:
    """When a lease is renewed, and until when; the same for threads and for asyncio."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._granted_at = time.monotonic()
        self.pause = timeout / RENEWALS

    def limit(self) -> float:
        """Return the time limit to set now, in seconds from the start of the lease."""
        return time.monotonic() - self._granted_at + self._timeout

    def failed(self, error: ClusterError) -> bool:
        """Note a failed renewal; return whether another one makes sense."""
        self.pause = min(AGAIN_SECONDS, self._timeout / 10)
        return not isinstance(error, NotFound | NotAllowed)

    def succeeded(self) -> None:
        """Note a renewal."""
        self.pause = self._timeout / RENEWALS


@contextmanager
def renewed(plan: RenewalPlan, renew: Callable[[float], object]) -> Iterator[None]:
    """Renew a lease on a thread while the block runs. `renew` sets its time limit."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(plan.pause):
            try:
                renew(plan.limit())
            except ClusterError as error:
                if not plan.failed(error):
                    return
            else:
                plan.succeeded()

    thread = threading.Thread(target=work, name="gpuyard-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def devices_set(lease: Lease) -> Iterator[None]:
    """Set the environment variables of a lease for this process while the block runs."""
    before = {name: os.environ.get(name) for name in lease.env}
    os.environ.update(lease.env)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
