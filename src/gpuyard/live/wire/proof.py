"""Mutual proof between scheduler and agent that they know the join token, without sending it.

    agent      ── challenge: 32 random bytes ──────────────────────►  scheduler
    agent      ◄─ 32 random bytes, cluster, epoch, HMAC over all of it ─  scheduler      needs the token
    agent      ── registration, HMAC over both nonces and all of it ►  scheduler

The agent sends nothing about itself or its tasks before the scheduler has proven itself, and obeys no other. The
scheduler's nonce is valid once and for a minute, so an intercepted registration is useless. The proof of an epoch is
made with a key of the cluster that no agent knows: an agent can show it but cannot forge one.

This protects against processes that take the scheduler's port or pretend to be a node. It does not encrypt and does not
protect the connection afterwards: beyond one machine that is the task of TLS.
"""

import hmac
import secrets
from collections import OrderedDict
from hashlib import sha256

from gpuyard.live.wire import agents_pb2 as pb

NONCE_BYTES = 32
NONCE_SECONDS = 60.0
MOST_USED = 100_000


def new_nonce() -> bytes:
    """Return new random bytes."""
    return secrets.token_bytes(NONCE_BYTES)


def scheduler_proof(token: str, agent_nonce: bytes, node: str, answer: pb.ChallengeAnswer) -> bytes:
    """Return the answer to a challenge that only a scheduler with the join token can compute."""
    said = (answer.nonce, answer.yard.encode(), str(answer.epoch).encode(), str(answer.origin).encode())
    return mac(token.encode(), b"gpuyard scheduler", agent_nonce, node.encode(), *said)


def agent_proof(token: str, nonce: bytes, agent_nonce: bytes, body: bytes) -> bytes:
    """Return the proof for a registration that only an agent with the join token can compute."""
    return mac(token.encode(), b"gpuyard agent", nonce, agent_nonce, body)


def epoch_proof(key: bytes, cluster_id: str, epoch: int, origin: int) -> bytes:
    """Return a scheduler's proof of its epoch, for its agents. `key` belongs to the cluster and never leaves it."""
    return mac(key, b"gpuyard epoch", cluster_id.encode(), str(epoch).encode(), str(origin).encode())


def proofs_equal(one: bytes, other: bytes) -> bool:
    """Return whether two proofs are equal, in constant time."""
    return hmac.compare_digest(one, other)


class NonceIssuer:
    """Issues the nonces of a scheduler. Unused ones take no memory, so that strangers cannot fill it."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._used: OrderedDict[bytes, float] = OrderedDict()

    def give(self, agent_nonce: bytes, now: float) -> bytes:
        """Return a nonce for the agent that sent this nonce of its own."""
        head = secrets.token_bytes(8) + int(now * 1000).to_bytes(8)
        return head + self._seal(head, agent_nonce)

    def is_good(self, nonce: bytes, agent_nonce: bytes, now: float) -> bool:
        """Return whether a nonce was issued here, for this agent, and is not too old and not used."""
        head, seal = nonce[:16], nonce[16:]
        if len(nonce) != NONCE_BYTES or not proofs_equal(seal, self._seal(head, agent_nonce)):
            return False
        age = now - int.from_bytes(head[8:]) / 1000
        return -1.0 <= age <= NONCE_SECONDS and nonce not in self._used

    def use(self, nonce: bytes, now: float) -> None:
        """Mark a nonce as used."""
        self._used[nonce] = now
        while len(self._used) > MOST_USED or now - next(iter(self._used.values())) > NONCE_SECONDS + 1:
            self._used.popitem(last=False)

    def _seal(self, head: bytes, agent_nonce: bytes) -> bytes:
        return mac(self._key, b"gpuyard nonce", head, agent_nonce)[:16]


def mac(key: bytes, *parts: bytes) -> bytes:
    """Return the HMAC over all parts, each with its length, so that bytes cannot be moved from one part to another."""
    mac = hmac.new(key, digestmod=sha256)
    for part in parts:
        mac.update(len(part).to_bytes(8))
        mac.update(part)
    return mac.digest()
