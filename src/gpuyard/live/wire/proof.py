"""How a scheduler and an agent prove to each other that they know the join token, without saying it.

    agent      ── challenge: 32 random bytes ──────────────────────►  scheduler
    agent      ◄─ 32 random bytes, yard, epoch, HMAC over all of it ─  scheduler      only who knows the token can make it
    agent      ── registration, HMAC over both nonces and all of it ►  scheduler

The agent says nothing about itself or its tasks before the scheduler has proven itself, and obeys nobody who has not.
The scheduler's nonce is good once and for a minute, so a registration that was overheard is worth nothing. The proof
of an epoch is made with a key of the yard that no agent knows: an agent can show it and can not invent one.

This keeps out whoever takes the scheduler's port or pretends to be a node. It does not hide what is said and does not
protect the connection afterwards: beyond the machine itself that is TLS's part.
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
    """Random bytes that nobody has used before."""
    return secrets.token_bytes(NONCE_BYTES)


def scheduler_proof(token: str, agent_nonce: bytes, node: str, answer: pb.ChallengeAnswer) -> bytes:
    """What only a scheduler that knows the join token can answer to a challenge."""
    said = (answer.nonce, answer.yard.encode(), str(answer.epoch).encode(), str(answer.origin).encode())
    return _mac(token.encode(), b"gpuyard scheduler", agent_nonce, node.encode(), *said)


def agent_proof(token: str, nonce: bytes, agent_nonce: bytes, body: bytes) -> bytes:
    """What only an agent that knows the join token can register with."""
    return _mac(token.encode(), b"gpuyard agent", nonce, agent_nonce, body)


def epoch_proof(key: bytes, yard: str, epoch: int, origin: int) -> bytes:
    """What a scheduler gives its agents to show for its epoch; `key` belongs to the yard and never leaves it."""
    return _mac(key, b"gpuyard epoch", yard.encode(), str(epoch).encode(), str(origin).encode())


def proofs_equal(one: bytes, other: bytes) -> bool:
    """Whether two proofs are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(one, other)


class NonceIssuer:
    """The nonces a scheduler gives out. Nothing is kept of those nobody used, so strangers can not fill its memory."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._used: OrderedDict[bytes, float] = OrderedDict()

    def give(self, agent_nonce: bytes, now: float) -> bytes:
        """One for the agent that asked with this nonce of its own."""
        head = secrets.token_bytes(8) + int(now * 1000).to_bytes(8)
        return head + self._seal(head, agent_nonce)

    def is_good(self, nonce: bytes, agent_nonce: bytes, now: float) -> bool:
        """Whether it is one of ours, for this agent, not too old and not used before."""
        head, seal = nonce[:16], nonce[16:]
        if len(nonce) != NONCE_BYTES or not proofs_equal(seal, self._seal(head, agent_nonce)):
            return False
        age = now - int.from_bytes(head[8:]) / 1000
        return -1.0 <= age <= NONCE_SECONDS and nonce not in self._used

    def use(self, nonce: bytes, now: float) -> None:
        """It is worth nothing from now on."""
        self._used[nonce] = now
        while len(self._used) > MOST_USED or now - next(iter(self._used.values())) > NONCE_SECONDS + 1:
            self._used.popitem(last=False)

    def _seal(self, head: bytes, agent_nonce: bytes) -> bytes:
        return _mac(self._key, b"gpuyard nonce", head, agent_nonce)[:16]


def _mac(key: bytes, *parts: bytes) -> bytes:
    """Over all parts, each with its length, so that none can be moved into another."""
    mac = hmac.new(key, digestmod=sha256)
    for part in parts:
        mac.update(len(part).to_bytes(8))
        mac.update(part)
    return mac.digest()
