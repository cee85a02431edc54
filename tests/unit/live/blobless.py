"""The part of a played scheduler that stores no blobs."""

from collections.abc import AsyncIterator
from typing import Any

import grpc

from gpuyard.live.wire import agents_pb2 as pb


class Blobless:
    """Refuses every blob."""

    async def fetch_blob(self, request: pb.BlobRequest, context: Any) -> AsyncIterator[pb.BlobChunk]:
        await context.abort(grpc.StatusCode.NOT_FOUND, f"The blob {request.sha256} is no longer stored.")
        yield pb.BlobChunk()

    async def store_blob(self, chunks: AsyncIterator[pb.BlobChunk], context: Any) -> pb.BlobReceipt:
        assert context.peer()
        async for chunk in chunks:
            assert chunk.data is not None
        return pb.BlobReceipt(error="Nothing is stored here.")
