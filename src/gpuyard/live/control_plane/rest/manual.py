"""The documentation, made from the table of routes: a document for programs and a page for people."""

import asyncio
from collections.abc import Callable, Sequence
from functools import cache

from gpuyard import __version__
from gpuyard.live.control_plane.access.who import TABLE, Reach
from gpuyard.live.control_plane.rest.answer import HTML, Answer, encode
from gpuyard.live.control_plane.rest.call import Call, Desk, Handler, Route
from gpuyard.live.wire import openapi

_ALONE = (
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
)
"""The page loads nothing, runs nothing, is shown in nobody's frame, and tells nobody where one came from."""


def documented(routes: Callable[[], Sequence[Route]]) -> tuple[Handler, Handler]:
    """The handlers of the document and of the page. It takes a moment to make, and does not change: it is made once."""
    made = cache(lambda: document_of(routes()))

    async def get_document(desk: Desk, call: Call) -> Answer:  # noqa: ARG001
        return Answer(200, encode(await asyncio.to_thread(made)))

    async def get_page(desk: Desk, call: Call) -> Answer:  # noqa: ARG001
        document = await asyncio.to_thread(made)
        page = openapi.docs_page(document, server=f"http://{call.header(b'host')}")
        return Answer(200, page.encode(), HTML, _ALONE)

    return get_document, get_page


def document_of(routes: Sequence[Route]) -> openapi.Document:
    """The OpenAPI document of these routes."""
    return openapi.openapi_document([_told(route) for route in routes], version=__version__)


def _told(route: Route) -> openapi.Route:
    roles = [] if route.action is None else [r for r, reach in TABLE[route.action].items() if reach is not Reach.NONE]
    query = tuple(
        openapi.Query(name=it.name, summary=it.words, type=it.type, values=it.values, least=it.least, most=it.most)
        for it in route.query
    )
    errors = {*route.errors, 400, 403}  # Host, Origin and query are checked everywhere
    if route.request:
        errors |= {413, 415}
    if roles:
        errors |= {401, 503}
    return openapi.Route(
        method=route.method,
        path=route.path,
        summary=route.summary,
        request=route.request,
        answer=route.answer,
        status=route.status,
        query=query,
        errors=tuple(sorted(errors)),
        roles=tuple(role.value for role in roles),
        section=route.section,
        media=route.media,
        idempotent=route.idempotent,
        example=route.example,
    )
