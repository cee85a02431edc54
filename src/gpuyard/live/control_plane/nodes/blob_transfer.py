"""Blobs between the scheduler and the nodes: what an attempt needs goes there, its result comes back.

A node gets blobs of a tenant only while it has an attempt of that tenant, named in each request. Content is checked at
both ends; a result is durable before the node reports the end of its attempt.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.values import TaskId
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.nodes.sessions import AgentSession
from gpuyard.live.control_plane.stores.blobs import NOT_SHARED, BlobStore
from gpuyard.live.control_plane.views import Views
from gpuyard.live.wire import agents_pb2 as pb
from gpuyard.live.wire.blobs import CHUNK_BYTES, is_sha256
from gpuyard.live.wire.rpc import SESSION

RunInThread = Callable[..., Awaitable[Any]]


class BlobTransfer:
    """Sends blobs to nodes and receives them."""

    def __init__(self, views: Views, store: BlobStore | None, run: RunInThread) -> None:
        """`run`: runs a function in a thread."""
        self._views = views
        self._store = store
        self._run = run

    async def fetch_blob(
        self, sessions: Mapping[str, AgentSession], request: pb.BlobRequest, context: Any
    ) -> AsyncIterator[pb.BlobChunk]:
        """Send a blob to the node of an attempt."""
        tenant = self._tenant(sessions, request, context)
        if tenant is None or self._store is None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, self._why_not())
            return
        try:
            size: int = await self._run(self._store.size, tenant, request.sha256)
            for offset in range(0, max(size, 1), CHUNK_BYTES):
                data = await self._run(self._store.read, tenant, request.sha256, offset, CHUNK_BYTES)
                yield pb.BlobChunk(data=data, size=size)
        except WrongRequest:
            message = f"The blob {request.sha256} is no longer stored; submit the task again."
            await context.abort(grpc.StatusCode.NOT_FOUND, message)

    async def store_blob(
        self, sessions: Mapping[str, AgentSession], chunks: AsyncIterator[pb.BlobChunk], context: Any
    ) -> pb.BlobReceipt:
        """Store the result of an attempt, as its node sends it."""
        upload, sha256 = None, ""
        try:
            async for chunk in chunks:
                if upload is None:
                    sha256 = chunk.about.sha256
                    tenant = self._tenant(sessions, chunk.about, context)
                    if tenant is None or self._store is None:
                        return pb.BlobReceipt(error=self._why_not())
                    upload = await self._run(self._store.begin, tenant)
                await self._run(upload.write, chunk.data)
            if upload is not None:
                await self._run(upload.finish, sha256)
        except (WrongRequest, GpuyardError, OSError) as error:
            return pb.BlobReceipt(error=error.message if isinstance(error, WrongRequest) else str(error))
        finally:
            if upload is not None:
                await self._run(upload.abandon)
        return pb.BlobReceipt()

    def _tenant(self, sessions: Mapping[str, AgentSession], about: pb.BlobRequest, context: Any) -> str | None:
        """Return the tenant whose task the calling node runs; None if it does not run this attempt."""
        session = sessions.get(dict(context.invocation_metadata()).get(SESSION, ""))
        view = self._views.tasks.get(TaskId(about.task))
        if session is None or session.closed or view is None or view.placement is None or not is_sha256(about.sha256):
            return None
        is_here = session.node in view.placement.nodes
        return view.spec.tenant if is_here and (view.attempts, view.origin) == (about.attempt, about.origin) else None

    def _why_not(self) -> str:
        return NOT_SHARED if self._store is None else "This node does not run this attempt."
