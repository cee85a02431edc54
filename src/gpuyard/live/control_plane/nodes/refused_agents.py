"""Log lines about agents that are not admitted.

An agent that has proven its identity gets one line a minute for its node. All others get one line a minute per address,
and a limited number of lines in total, so that unknown clients cannot fill the disk.
"""

from collections import OrderedDict
from typing import NamedTuple

import structlog

QUIET_SECONDS = 60.0
MOST_NAMES = 200
"""Number of nodes and addresses that are remembered; beyond it, all others share one line a minute."""
ANSWER_SECONDS = 10.0
"""An agent that got a challenge and does not register within this time has broken off."""
MOST_CHALLENGED = 200
OTHERS = "(others)"
BROKE_OFF = (
    "An agent requested the proof of this scheduler and did not register. Its log has the reason; "
    "usually its agent.join_token differs from auth.join_token, or it belongs to another cluster."
)

log = structlog.get_logger()


class _Challenged(NamedTuple):
    at: float
    node: str
    peer: str


class RefusedAgents:
    """Logs agents that are refused or break off."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}
        """By node or address: time of the last line, and number of lines suppressed since."""
        self._challenged: OrderedDict[bytes, _Challenged] = OrderedDict()

    def refused(self, now: float, why: str, message: str, *, peer: str, node: str = "", proven: bool = False) -> None:
        """Log that an agent is refused. Until it has proven its identity, its node name is only a claim."""
        address = peer.rpartition(":")[0] or peer
        key = f"node {node}" if proven else address
        self._forget_old(now)
        if key not in self._last and len(self._last) >= MOST_NAMES:
            key = OTHERS
        before, left_out = self._last.get(key, (-QUIET_SECONDS, 0))
        if now - before < QUIET_SECONDS:
            self._last[key] = (before, left_out + 1)
            return
        self._last[key] = (now, 0)
        more = {"left_out": left_out} if left_out else {}
        log.warning("agent_refused", node=_printable(node), peer=peer, why=why, message=message, **more)

    def challenged(self, now: float, nonce: bytes, node: str, peer: str) -> None:
        """Note that an agent was given a challenge and should register now."""
        self._challenged[nonce] = _Challenged(now, node[:256], peer)
        if len(self._challenged) > MOST_CHALLENGED:
            self._challenged.popitem(last=False)

    def answered(self, nonce: bytes) -> None:
        """Note that an agent has registered, or was refused with a line of its own."""
        self._challenged.pop(nonce, None)

    def look(self, now: float) -> None:
        """Log agents that have broken off."""
        while self._challenged and now - next(iter(self._challenged.values())).at > ANSWER_SECONDS:
            _, (_, node, peer) = self._challenged.popitem(last=False)
            self.refused(now, "BrokeOff", BROKE_OFF, peer=peer, node=node)

    def _forget_old(self, now: float) -> None:
        if len(self._last) >= MOST_NAMES:
            # An entry with suppressed lines is kept a little longer, so that its next line gives their number.
            self._last = {
                key: (at, left_out)
                for key, (at, left_out) in self._last.items()
                if now - at < (2 * QUIET_SECONDS if left_out else QUIET_SECONDS)
            }


def _printable(text: str) -> str:
    """Make a name from outside safe for a log line."""
    return "".join(character if character.isprintable() else "?" for character in text[:128])
