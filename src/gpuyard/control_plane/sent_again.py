"""Requests with an Idempotency-Key: one that is sent again gets the tasks it got the first time.

    under way         the second asker waits for the same answer as the first
    accepted          the facts name key and digest; they are kept here until the archive has them
    in the archive    for a day

What is compared is a digest of the body. It is made with a secret of the yard, so that what the journal says of a
request tells nothing of the secrets in it.
"""

import asyncio
import hmac

from gpuyard.control_plane.archive import Archive, SubmitKey
from gpuyard.domain import events as fact
from gpuyard.domain.refusals import Refusal
from gpuyard.domain.values import TaskId, TenantId
from gpuyard.wire.strict import WrongRequest

Answer = asyncio.Future[list[TaskId] | Refusal]
Name = tuple[TenantId, str]
"""A tenant and its key."""


class SentRequests:
    """Those that can be sent again."""

    def __init__(self, archive: Archive, secret: bytes) -> None:
        self._archive, self._secret = archive, secret
        self._open: dict[Name, tuple[str, Answer]] = {}
        self._accepted: dict[Name, SubmitKey] = {}

    def digest(self, body: bytes) -> str:
        """What a body is recognised by."""
        return hmac.digest(self._secret, body, "sha256").hex()

    def known(self, name: Name, digest: str) -> Answer | None:
        """What the first of these requests gets or got; none: this is the first."""
        before = self._open.get(name)
        if before is None:
            kept = self._archive.lookup(*name)
            if kept is None:
                return None
            answer: Answer = asyncio.get_running_loop().create_future()
            answer.set_result(list(kept.tasks))
            before = (kept.body_hash.hex(), answer)
        if before[0] != digest:
            message = (
                f"The Idempotency-Key {name[1]!r} was used with another body before; use a new key for a new request."
            )
            raise WrongRequest("KeyUsedBefore", message, "Idempotency-Key", status=409)
        return before[1]

    def begin(self, name: Name, digest: str, answer: Answer) -> None:
        """It is under way."""
        self._open[name] = (digest, answer)

    def fail(self, name: Name) -> None:
        """It came to nothing, and may be sent again as a new one."""
        self._open.pop(name, None)

    def note(self, event: fact.TaskSubmitted, at: float) -> None:
        """One of its tasks was accepted."""
        name = (event.spec.tenant, event.key)
        before = self._accepted.get(name)
        tasks = (*(before.tasks if before else ()), event.task)
        self._accepted[name] = SubmitKey(event.spec.tenant, event.key, bytes.fromhex(event.digest), tasks, at)

    def take_accepted(self) -> dict[Name, SubmitKey]:
        """Those that the archive has not got; it gets them now."""
        accepted, self._accepted = self._accepted, {}
        return accepted

    def put_back(self, accepted: dict[Name, SubmitKey]) -> None:
        """The archive did not get them after all."""
        self._accepted = {**accepted, **self._accepted}

    def archived(self, accepted: dict[Name, SubmitKey]) -> None:
        """The archive has them."""
        for name in accepted:
            self._open.pop(name, None)
