"""Who listens at the scheduler's address, if that is on this machine: the kernel knows.

Any local user can bind the scheduler's port while it is away. The proof of the join token keeps them out; this is a
second lock, which needs no secret: the process must belong to root, to the agent's own user, or to the user who ran the
scheduler when this node joined.
"""

import os
import pwd
import socket

from gpuyard.live.agent.agent_state import AgentState
from gpuyard.live.wire.loopback_peer import is_on_this_machine, owner_of_server

LOOK_SECONDS = 2.0


def uid_of_listener(address: str) -> int | None:
    """The user whose process accepts connections there; none: it is on another machine, or nobody can say."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), LOOK_SECONDS) as line:
            return owner_of_server(line, LOOK_SECONDS) if is_on_this_machine(line) else None
    except (OSError, ValueError):  # the connection that follows says what is wrong
        return None


def refused(uid: int | None, address: str, memory: AgentState) -> str:
    """A sentence why whoever listens there is not spoken to; empty: nothing is against it."""
    known = memory.scheduler_uid
    if uid is None or uid in {0, os.geteuid()} or known is None or uid == known:
        return ""
    return (
        f"The process that listens at {address} belongs to {_name(uid)}, and the scheduler ran as {_name(known)} when this "
        f"node joined, so it is not spoken to. If the scheduler runs as {_name(uid)} now, start this agent once with "
        f"--accept-yard {memory.yard}."
    )


def _name(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"uid {uid}"
