"""The documentation, generated from the route table: a document for programs and a page for people."""

import asyncio
from collections.abc import Callable, Sequence
from functools import cache

from gpuyard.live.control_plane.rest import openapi
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import HTML, Response, encode
from gpuyard.live.control_plane.rest.route import Handler, Route
from gpuyard.version import __version__

_ALONE = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}
"""The page loads and runs nothing, cannot be framed, and sends no referrer."""


def documented(routes: Callable[[], Sequence[Route]]) -> tuple[Handler, Handler]:
    """Return the handlers of the document and the page. Both are generated once, because this is slow."""
    made = cache(lambda: openapi.openapi_document(routes(), version=__version__))

    async def get_document(context: AppContext, request: Request) -> Response:  # noqa: ARG001
        return Response(encode(await asyncio.to_thread(made)))

    async def get_page(context: AppContext, request: Request) -> Response:  # noqa: ARG001
        document = await asyncio.to_thread(made)
        page = openapi.docs_page(document, server=f"http://{request.headers.get('host')}")
        return Response(page, 200, _ALONE, HTML)

    return get_document, get_page
