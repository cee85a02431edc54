"""Idempotency keys: a repeated request gets the tasks of the first one.

    in progress       the repeated request waits for the answer of the first
    accepted          the events hold key and digest; they are kept here until the archive holds them
    in the archive    for a day

Nearly every key is new. A filter in memory detects this without a search in the archive, which would need a thread.

Bodies are compared by a digest made with a secret of the cluster, so that the journal reveals nothing about the secrets
in a request.
"""

import asyncio
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import structlog

from gpuyard.core.domain import events
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import TaskId, TenantId
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.stores.archive import Archive, SubmitKey
from gpuyard.live.control_plane.stores.database import StoreError

SubmitResult = asyncio.Future[list[TaskId] | Refusal]
RequestKey = tuple[TenantId, str]
"""A tenant and its key."""

log = structlog.get_logger()


@dataclass(slots=True)
class _Accepted:
    """A request whose tasks are accepted."""

    digest: str
    at: float
    tasks: list[TaskId]


def keys_of(accepted: Mapping[RequestKey, _Accepted]) -> list[SubmitKey]:
    """Convert accepted requests to rows of the archive."""
    return [
        SubmitKey(tenant, key, bytes.fromhex(each.digest), tuple(each.tasks), each.at)
        for (tenant, key), each in accepted.items()
    ]


def _used_before(name: RequestKey) -> WrongRequest:
    message = f"The Idempotency-Key {name[1]!r} was already used with another body; use a new key for a new request."
    return WrongRequest("KeyUsedBefore", message, "Idempotency-Key", status=409)


class KeyFilter:
    """The keys that the archive may hold: a Bloom filter, so a key that it does not know is certainly not there.

    False positives, which cost a search, are 2 in 1,000 new keys with half a million keys, and 1 in 7 with two million.
    """

    SIZE = 1 << 20

    def __init__(self) -> None:
        self._bits = bytearray(self.SIZE)

    def add(self, name: RequestKey) -> None:
        """Add a key of the archive."""
        for place in self._places(name):
            self._bits[place >> 3] |= 1 << (place & 7)

    def __contains__(self, name: RequestKey) -> bool:
        return all(self._bits[place >> 3] & 1 << (place & 7) for place in self._places(name))

    def update(self, other: "KeyFilter") -> None:
        """Add all keys of another filter."""
        both = int.from_bytes(self._bits, "big") | int.from_bytes(other._bits, "big")
        self._bits = bytearray(both.to_bytes(self.SIZE, "big"))

    def _places(self, name: RequestKey) -> tuple[int, ...]:
        drawn = hashlib.blake2b(f"{name[0]}\0{name[1]}".encode(), digest_size=16).digest()
        return tuple(int.from_bytes(drawn[at : at + 4], "big") % (self.SIZE * 8) for at in (0, 4, 8, 12))


class IdempotentRequests:
    """Requests with an idempotency key."""

    def __init__(self, archive: Archive, secret: bytes) -> None:
        self._archive, self._secret = archive, secret
        self._open: dict[RequestKey, tuple[str, SubmitResult]] = {}
        self._sought: dict[RequestKey, asyncio.Future[SubmitKey | None]] = {}
        self._searching: asyncio.Task[None] | None = None
        self._accepted: dict[RequestKey, _Accepted] = {}
        self._filter = KeyFilter()
        self._filter_is_whole = False
        """Whether the filter holds all keys that were in the archive at the start."""

    async def fill_filter(self) -> None:
        """Load the archive's keys. Until then, or if it cannot be read, the archive is searched for every key."""
        try:
            self._filter.update(await asyncio.to_thread(self._read_keys))
        except StoreError as error:
            log.warning("idempotency_lookup_failed", message=str(error))
        else:
            self._filter_is_whole = True

    def _read_keys(self) -> KeyFilter:
        read = KeyFilter()
        for name in self._archive.all_keys():
            read.add(name)
        return read

    def digest(self, body: bytes) -> str:
        """Return the digest that identifies a body."""
        return hmac.digest(self._secret, body, "sha256").hex()

    async def known(self, name: RequestKey, digest: str, answer: SubmitResult) -> SubmitResult | None:
        """Return the answer of the first request with this key. None: this is the first; others wait for `answer`."""
        before = self._open.get(name)
        if before is not None:
            if before[0] != digest:
                raise _used_before(name)
            return before[1]
        self._open[name] = (digest, answer)  # before the search: the request may be repeated meanwhile
        if self._filter_is_whole and name not in self._filter:
            return None
        kept = await self._search(name)
        if kept is None:
            return None
        if kept.body_hash.hex() != digest:
            raise _used_before(name)
        self._open.pop(name, None)
        answer.set_result(list(kept.tasks))
        return answer

    async def _search(self, name: RequestKey) -> SubmitKey | None:
        """Search the archive in a thread, together with concurrent requests; a damaged archive holds no keys."""
        found: asyncio.Future[SubmitKey | None] = asyncio.get_running_loop().create_future()
        self._sought[name] = found
        if self._searching is None:
            self._searching = asyncio.create_task(self._search_all())
        return await found

    async def _search_all(self) -> None:
        try:
            while self._sought:
                sought, self._sought = self._sought, {}
                kept = await asyncio.to_thread(self._look_up, list(sought))
                for name, found in sought.items():
                    if not found.done():
                        found.set_result(kept.get(name))
        finally:
            self._searching = None

    def _look_up(self, names: list[RequestKey]) -> dict[RequestKey, SubmitKey]:
        try:
            return {name: kept for name in names if (kept := self._archive.lookup(*name)) is not None}
        except (StoreError, msgspec.MsgspecError) as error:
            log.warning("idempotency_lookup_failed", message=str(error))
            return {}

    def is_first(self, name: RequestKey, answer: SubmitResult) -> bool:
        """Whether this is the answer that other requests wait for."""
        return name in self._open and self._open[name][1] is answer

    def fail(self, name: RequestKey) -> None:
        """Forget a failed request, which may be sent again as a new one."""
        self._open.pop(name, None)

    def note(self, event: events.TaskSubmitted, at: float) -> None:
        """Note that a task of the request was accepted, by this scheduler or by the one that it follows."""
        name = (event.spec.tenant, event.key)
        accepted = self._accepted.setdefault(name, _Accepted(event.digest, at, []))
        accepted.tasks.append(event.task)
        if name not in self._open:  # followed; if this scheduler leads before the key is archived, the request may come
            answer: SubmitResult = asyncio.get_running_loop().create_future()
            answer.set_result(accepted.tasks)
            self._open[name] = (event.digest, answer)

    def take_accepted(self) -> dict[RequestKey, "_Accepted"]:
        """Return the accepted requests that the archive does not hold, to be archived now."""
        accepted, self._accepted = self._accepted, {}
        return accepted

    def put_back(self, accepted: dict[RequestKey, "_Accepted"]) -> None:
        """Keep these requests after all, because archiving them failed."""
        self._accepted = {**accepted, **self._accepted}

    def archived(self, accepted: dict[RequestKey, "_Accepted"]) -> None:
        """Forget requests that the archive now holds."""
        for name in accepted:
            self._filter.add(name)
            self._open.pop(name, None)
