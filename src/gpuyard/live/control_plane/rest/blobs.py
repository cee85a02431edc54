"""Upload and download blobs: code, functions, arguments and results, named by the SHA-256 of their content.

A body is written to disk while it arrives, so its size in memory does not depend on that of the blob.
"""

from collections.abc import AsyncGenerator

from gpuyard.input.strict import Strict, WrongRequest
from gpuyard.live.control_plane.access.principal import Action
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.query import Parameter, text
from gpuyard.live.control_plane.rest.request import MAX_BATCH_BYTES, Request
from gpuyard.live.control_plane.rest.responses import Response, StreamingResponse, json_response
from gpuyard.live.control_plane.stores.blobs import NOT_SHARED, BlobStore, BlobUpload
from gpuyard.live.wire.blobs import (
    CHUNK_BYTES,
    MOST_BATCH_BYTES,
    BatchStored,
    BlobAnswer,
    MissingAnswer,
    MissingRequest,
    is_sha256,
    unpack,
)

BINARY = "application/octet-stream"
WRITTEN_AT_ONCE = 1 << 20
"""Bytes that are collected before a thread writes them."""
TENANT = (Parameter("tenant_id", "Tenant that the blob belongs to (default: yours).", text),)
_read_missing = Strict(MissingRequest).json


async def post_missing(context: AppContext, request: Request) -> Response:
    """Return which of the named blobs are not stored."""
    asked = _read_missing(await request.body(MAX_BATCH_BYTES))
    tenant = context.tenant_of(request, Action.SUBMIT, asked.tenant_id)
    missing = await context.scheduler.worker_pools.blobs.run(_store(context).missing, tenant, asked.blobs)
    return json_response(MissingAnswer(missing))


async def put_blob(context: AppContext, request: Request) -> Response:
    """Store a blob."""
    sha256 = _named(request)
    tenant = context.tenant_of(request, Action.SUBMIT, request.query.get("tenant_id"))
    run = context.scheduler.worker_pools.blobs.run
    store = _store(context)
    upload: BlobUpload = await run(store.begin, tenant)
    try:
        collected, size = list[bytes](), 0
        async for part in request.parts(store.limits.blob_bytes):
            collected.append(part)
            size += len(part)
            if size >= WRITTEN_AT_ONCE:
                await run(upload.write, b"".join(collected))
                collected, size = [], 0
        await run(upload.write, b"".join(collected))
        stored: int = await run(upload.finish, sha256)
    finally:
        await run(upload.abandon)
    return json_response(BlobAnswer(sha256, stored, tenant))


async def post_batch(context: AppContext, request: Request) -> Response:
    """Store many small blobs."""
    tenant = context.tenant_of(request, Action.SUBMIT, request.query.get("tenant_id"))
    body = await request.body(MOST_BATCH_BYTES)
    store = _store(context)

    def put() -> int:
        try:
            contents = list(unpack(body))
        except ValueError as error:
            raise WrongRequest("WrongBlob", f"The body is not a sequence of contents: {error}.") from None
        return store.put_all(tenant, contents)

    return json_response(BatchStored(await context.scheduler.worker_pools.blobs.run(put)))


async def get_blob(context: AppContext, request: Request) -> Response:
    """Return the content of a blob."""
    sha256 = _named(request)
    tenant = context.tenant_of(request, Action.SEE, request.query.get("tenant_id"))
    run = context.scheduler.worker_pools.blobs.run
    store = _store(context)
    size: int = await run(store.size, tenant, sha256)

    async def chunks() -> AsyncGenerator[bytes, None]:
        for offset in range(0, size, CHUNK_BYTES):
            yield await run(store.read, tenant, sha256, offset, min(CHUNK_BYTES, size - offset))

    headers = {"content-length": str(size), "content-type": BINARY}
    return StreamingResponse(chunks(), headers, endless=False)


def _named(request: Request) -> str:
    name: str = request.path_params["sha256"]
    if not is_sha256(name):
        shown = name[:70] if name.isprintable() else ascii(name[:70])
        raise WrongRequest("WrongBlob", f"{shown!r} is not a SHA-256, which has 64 lowercase hex digits.", "sha256")
    return name


def _store(context: AppContext) -> BlobStore:
    store = context.scheduler.stores.blobs
    if store is None:
        raise WrongRequest("BlobsNotShared", NOT_SHARED, status=409)
    return store
