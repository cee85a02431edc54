"""Serve the dashboard: the files that `dashboard/` was built into, from memory.

They contain no data, so they need no login; the page asks the API like every other client. It may run its own scripts
only: no inline code, no code made from text, nothing from other hosts. The names of scripts and styles contain a hash of
their content, so browsers keep them; the first page is asked for again each time.
"""

import gzip
import hashlib
from collections.abc import Mapping
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from gpuyard.live.control_plane.rest.errors import denial, error
from gpuyard.live.control_plane.rest.request_guard import RequestGuard
from gpuyard.live.control_plane.rest.request_id import request_id_of
from gpuyard.live.control_plane.rest.responses import SECURITY_HEADERS, TEXT, Response

FOLDER = Path(__file__).parents[3] / "page"
FIRST = "index.html"
NOT_BUILT = (
    "The dashboard is not built. Run `make page` in a checkout of gpuyard (`make run` does it), or install gpuyard from a "
    "wheel. The REST API works without it: see /docs.\n"
)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; worker-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'; "
    "require-trusted-types-for 'script'; trusted-types gpuyard-worker"
)
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": TEXT,
}
_LEAST_COMPRESSED = 1024
_KEPT = "public, max-age=31536000, immutable"
_ASKED_AGAIN = "no-cache"


class PageFile:
    """One file of the page, plain and compressed, with its headers."""

    def __init__(self, name: str, body: bytes) -> None:
        self.body = body
        self.compressed = gzip.compress(body, 9, mtime=0) if len(body) >= _LEAST_COMPRESSED else None
        self.headers = {
            "content-type": _TYPES.get(Path(name).suffix, "application/octet-stream"),
            "cache-control": _KEPT if name.startswith("assets/") else _ASKED_AGAIN,
            "content-security-policy": POLICY,
            "cross-origin-opener-policy": "same-origin",
        }


def page_files(folder: Path = FOLDER) -> dict[str, PageFile]:
    """Read the files of the built page by their paths; empty if it is not built."""
    if not (folder / FIRST).is_file():
        return {}
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [path.relative_to(folder).as_posix() for path in found]
    files = {name: PageFile(name, path.read_bytes()) for name, path in zip(names, found, strict=True)}
    return {"/" if name == FIRST else f"/{name}": file for name, file in files.items()}


def build_of(files: Mapping[str, PageFile]) -> str:
    """Return a name of this build: the first page names all others with a hash of their content."""
    return hashlib.sha256(files["/"].body).hexdigest()[:16]


class PageApp:
    """The ASGI application of one file of the page; None: the page is not built."""

    def __init__(self, guard: RequestGuard, file: PageFile | None) -> None:
        self._guard = guard
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        response = self._respond(scope)
        response.raw_headers.append((b"x-request-id", request_id_of(scope["headers"]).encode()))
        await response(scope, receive, send)

    def _respond(self, scope: Scope) -> Response:
        if denied := self._guard.check_host(scope["headers"]):
            return denial(denied)
        if scope["method"] not in {"GET", "HEAD"}:
            sentence = f"{scope['path'][:100]} is a file of the dashboard; use GET."
            return error(405, "MethodNotAllowed", sentence, None, {"allow": "GET, HEAD"})
        if self._file is None:
            return Response(NOT_BUILT, 503, media_type=TEXT)
        accepted = Headers(scope=scope).get("accept-encoding", "")
        compressed = self._file.compressed if "gzip" in accepted else None
        body = self._file.body if compressed is None else compressed
        headers: Mapping[str, str] = {**self._file.headers, "vary": "accept-encoding"}
        if compressed is not None:
            headers = {**headers, "content-encoding": "gzip"}
        return _FileResponse(body, 200, headers)


class _FileResponse(Response):
    """A file: unlike answers with data, browsers may keep it."""

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        super(Response, self).init_headers(headers)
        self.raw_headers += SECURITY_HEADERS
