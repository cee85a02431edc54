"""The documentation, made from the table of routes: a document for programs and a page for people."""

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
"""The page loads nothing, runs nothing, is shown in nobody's frame, and tells nobody where one came from."""


def documented(routes: Callable[[], Sequence[Route]]) -> tuple[Handler, Handler]:
    """The handlers of the document and of the page. It takes a moment to make, and does not change: it is made once."""
    made = cache(lambda: openapi.openapi_document(routes(), version=__version__))

    async def get_document(context: AppContext, request: Request) -> Response:  # noqa: ARG001
        return Response(encode(await asyncio.to_thread(made)))

    async def get_page(context: AppContext, request: Request) -> Response:  # noqa: ARG001
        document = await asyncio.to_thread(made)
        page = openapi.docs_page(document, server=f"http://{request.headers.get('host')}")
        return Response(page, 200, _ALONE, HTML)

    return get_document, get_page
