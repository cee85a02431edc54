"""Asks both schedulers for their health all the time, each on its own host, so that no cut lies between."""

import json
import threading
import time
from contextlib import nullcontext, suppress
from http.client import HTTPConnection, HTTPException
from typing import NamedTuple

from benchmarks.two_schedulers.pair import NAMES, Pair, boot
from gpuyard.live.sdk import ClusterError, connect

POLL_SECONDS = 0.05
POLL_TIMEOUT_SECONDS = 0.5


class Look(NamedTuple):
    """An answer of /health, with the times between which it was given."""

    sent: float
    received: float
    name: str
    role: str
    status: str
    epoch: int

    @property
    def leads(self) -> bool:
        """Whether this scheduler says that it leads and works."""
        return self.role == "master" and self.status == "ok"


class Watch:
    """One thread for each scheduler."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.over = threading.Event()
        self.looks: dict[str, list[Look]] = {name: [] for name in NAMES}
        self._threads = [threading.Thread(target=self._ask, args=(name,), daemon=True) for name in NAMES]
        for thread in self._threads:
            thread.start()

    def _ask(self, name: str) -> None:
        network = self._pair.network
        with network.thread_within(name) if network is not None else nullcontext():
            scheduler = self._pair.of(name)
            connection = HTTPConnection(scheduler.address, scheduler.http, timeout=POLL_TIMEOUT_SECONDS)
            while not self.over.is_set():
                sent = boot()
                try:
                    connection.request("GET", "/health")
                    said = json.loads(connection.getresponse().read())
                    if "role" in said:
                        self.looks[name].append(Look(sent, boot(), name, said["role"], said["status"], said["epoch"]))
                except (OSError, HTTPException, ValueError):
                    connection.close()
                time.sleep(max(0.0, sent + POLL_SECONDS - boot()))
            connection.close()

    def stop(self) -> None:
        """End both threads."""
        self.over.set()
        for thread in self._threads:
            thread.join()

    def latest(self, name: str) -> Look | None:
        """Return the last answer of a scheduler, unless it is older than a second."""
        looks = self.looks[name]
        return looks[-1] if looks and looks[-1].received > boot() - 1 else None

    def leader(self) -> str | None:
        """Return the name of the scheduler that leads; of two, the later one."""
        found = [look for name in NAMES if (look := self.latest(name)) and look.leads]
        return max(found, key=lambda look: look.epoch).name if found else None

    def leads_after(self, at: float, epoch: int) -> Look | None:
        """Return the first answer of a leader of this epoch or a later one, to a request that was sent after a time."""
        looks = [look for name in NAMES for look in self.looks[name] if look.leads]
        return min(
            (look for look in looks if look.sent >= at and look.epoch >= epoch),
            key=lambda look: look.received,
            default=None,
        )

    def is_whole(self) -> bool:
        """Whether one scheduler leads and the other one follows."""
        found = [self.latest(name) for name in NAMES]
        if sorted(look.role for look in found if look and look.status == "ok") != ["master", "standby"]:
            return False
        return bool(self._pair.database) or all(self._is_complete(name) for name in NAMES)

    def _is_complete(self, name: str) -> bool:
        """Whether both have every event, as one of them knows, and enough voters answer."""
        with suppress(ClusterError), connect(self._pair.of(name).url, token=self._pair.token()) as client:
            told = client.replication()
            return len(told.in_sync) == len(NAMES) and not told.problems
        return False

    def two_leaders(self) -> list[str]:
        """Describe every answer of a leader to a request that was sent after a later leader had answered as such."""
        broken: list[str] = []
        began: dict[int, Look] = {}
        for look in sorted(
            (look for name in NAMES for look in self.looks[name] if look.leads), key=lambda it: it.received
        ):
            began.setdefault(look.epoch, look)
        for look in (look for name in NAMES for look in self.looks[name] if look.leads):
            latest = max(
                ((other.epoch, other.name) for other in began.values() if other.received < look.sent), default=(0, "")
            )
            if latest[0] > look.epoch or (latest[0] == look.epoch and latest[1] != look.name):
                broken.append(
                    f"{look.name} answered as the leader of epoch {look.epoch} to a request sent at {look.sent:.3f}, when "
                    f"{latest[1]} led epoch {latest[0]} since {began[latest[0]].received:.3f}"
                )
        return broken
