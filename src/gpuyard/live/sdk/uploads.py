"""Upload contents to the cluster: only those that it does not have."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TypeAlias

from gpuyard.live.sdk.steps import Steps, ask, send
from gpuyard.live.wire.blobs import MissingAnswer, pack

Content: TypeAlias = bytes | Path
"""A content, or the file that has it."""
ASKED_AT_ONCE = 10_000
SMALL_BYTES = 1 << 20
BATCH_BYTES = 8 << 20
MOST_IN_A_BATCH = 500
"""Contents up to SMALL_BYTES are sent in batches of at most so many bytes and so many contents."""
Watch: TypeAlias = Callable[[int, int], None]
"""Called with the number of contents that were sent and the number of those to send."""


def name_of(content: bytes) -> str:
    """Return the name of a blob."""
    return sha256(content).hexdigest()


def upload(contents: Mapping[str, Content], tenant: str | None, watch: Watch | None = None) -> Steps[int]:
    """Upload what the cluster does not have of these, by name; return how many were sent."""
    names, missing = iter(contents), list[str]()
    while part := list(islice(names, ASKED_AT_ONCE)):
        body = {"blobs": part, "tenant_id": tenant}
        answer = yield from ask("POST", "/api/v1/blobs:missing", MissingAnswer, body=body, key="missing")
        missing += answer.missing
    batch, size = list[bytes](), 0
    for sent, name in enumerate(missing, start=1):
        content = contents[name]
        data = content if isinstance(content, bytes) else content.read_bytes()
        if batch and (size + len(data) > BATCH_BYTES or len(batch) >= MOST_IN_A_BATCH):
            yield from _send_batch(batch, tenant)
            batch, size = [], 0
        if len(data) > SMALL_BYTES:
            yield from send("PUT", f"/api/v1/blobs/{name}", query={"tenant_id": tenant}, content=data)
        else:
            batch.append(data)
            size += len(data)
        if watch is not None:
            watch(sent, len(missing))
    if batch:
        yield from _send_batch(batch, tenant)
    return len(missing)


def _send_batch(batch: Sequence[bytes], tenant: str | None) -> Steps[None]:
    """Store small contents with one request; it may be repeated, because contents have no other name than their own."""
    query = {"tenant_id": tenant}
    yield from send("POST", "/api/v1/blobs:batch", query=query, content=pack(batch), key="batch")


def download(name: str, tenant: str | None) -> Steps[bytes]:
    """Return the content of a blob."""
    return send("GET", f"/api/v1/blobs/{name}", query={"tenant_id": tenant})
