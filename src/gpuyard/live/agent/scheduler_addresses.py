"""Addresses of schedulers as a node reaches them: a scheduler may not know under which name that is."""

from collections.abc import Iterable
from urllib.parse import urlsplit

from gpuyard.live.wire.loopback_peer import is_loopback_address

MOST_SCHEDULERS = 16
"""How many addresses of a scheduler are used."""
ALL_INTERFACES = frozenset({"", "*", "0.0.0.0", "::", "[::]"})  # noqa: S104 - recognized, not used


def reachable(told: Iterable[str], scheduler: str) -> tuple[str, ...]:
    """Return the addresses that a scheduler has told, as this node reaches them.

    A host of all interfaces becomes the one under which the node has reached the `scheduler`.
    """
    here = scheduler.rpartition(":")[0]
    found = []
    for address in told:
        host, _, port = address.rpartition(":")
        found.append(f"{here}:{port}" if host in ALL_INTERFACES else address)
    return tuple(dict.fromkeys(found))[:MOST_SCHEDULERS]


def reachable_for_clients(told: Iterable[str], scheduler: str) -> tuple[str, ...]:
    """Return the URLs that a scheduler has told, as clients on this node reach them.

    One on loopback is left out, unless the node itself has reached the `scheduler` on loopback.
    """
    here = scheduler.rpartition(":")[0]
    found = []
    for url in told:
        parts = urlsplit(url)
        if (parts.hostname or "") in ALL_INTERFACES:
            parts = parts._replace(netloc=f"{here}:{parts.port}" if parts.port else here)
        if not is_loopback_address(f"{parts.hostname}:0") or is_loopback_address(scheduler):
            found.append(parts.geturl())
    return tuple(dict.fromkeys(found))[:MOST_SCHEDULERS]
