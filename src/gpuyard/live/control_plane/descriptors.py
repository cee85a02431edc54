"""File descriptors: as many as the system allows, and some kept for the journal and the stores."""

import resource

MOST = 1 << 20
"""More than this is of no use, and some systems say "unlimited" and mean less."""
RESERVE = 128
"""Not for connections of clients: the journal, its segments, snapshots, stores and logs need some at any time."""


def raise_limit() -> int:
    """Raise the soft limit to the hard one; returns the limit that holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY:
        return MOST
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft
    return max(soft, wanted)


def for_clients(limit: int) -> int:
    """How many of these descriptors connections of clients may use."""
    return limit - min(RESERVE, limit // 4)


def for_agents(limit: int) -> int:
    """How many of those connections to the agents' port may use: half, however many strangers come there."""
    return for_clients(limit) // 2


def for_http(limit: int) -> int:
    """How many of those connections over HTTP may use: the other half."""
    return for_clients(limit) - for_agents(limit)
