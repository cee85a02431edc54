"""Asks the kernel which user listens at the scheduler's address, if that is on this machine.

Any local user can bind the scheduler's port while the scheduler is down. The proof of the join token protects against
that; this is a second check, which needs no secret: the process must belong to root, to the agent's own user, or to the
user that ran the scheduler when this node joined.
"""

import os
import pwd
import socket

from gpuyard.live.agent.agent_state import AgentState
from gpuyard.live.wire.loopback_peer import is_on_this_machine, owner_of_server

LOOK_SECONDS = 2.0


def uid_of_listener(address: str) -> int | None:
    """Return the uid of the process that listens at an address; None if it is on another machine or unknown."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), LOOK_SECONDS) as connection:
            return owner_of_server(connection, LOOK_SECONDS) if is_on_this_machine(connection) else None
    except (OSError, ValueError):  # the connection that follows reports the error
        return None


def refused(uid: int | None, address: str, memory: AgentState) -> str:
    """Return why the agent does not talk to this listener; empty if there is no objection."""
    known = memory.scheduler_uid
    if uid is None or uid in {0, os.geteuid()} or known is None or uid == known:
        return ""
    return (
        f"The process that listens at {address} belongs to {_name(uid)}, but the scheduler ran as "
        f"{_name(known)} when this node joined, so the agent does not connect. If the scheduler now "
        f"runs as {_name(uid)}, start this agent once with --accept-cluster {memory.cluster_id}."
    )


def _name(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"uid {uid}"
