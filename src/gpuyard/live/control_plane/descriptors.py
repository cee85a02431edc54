"""File descriptors: as many as the system allows, with some reserved for the journal and the stores."""

import resource

MOST = 1 << 20
"""More are of no use, and some systems report "unlimited" but allow fewer."""
RESERVE = 128
"""Not available to client connections: the journal, its segments, snapshots, stores and logs need some at any time."""


def raise_limit() -> int:
    """Raise the soft limit to the hard limit; return the limit now in effect."""
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
    """Return how many descriptors clients' connections may use."""
    return limit - min(RESERVE, limit // 4)


def for_agents(limit: int) -> int:
    """Return how many of those the agents' port may use: half, so that unknown clients there cannot take all."""
    return for_clients(limit) // 2


def for_http(limit: int) -> int:
    """Return how many of those HTTP connections may use: the other half."""
    return for_clients(limit) - for_agents(limit)
