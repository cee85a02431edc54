"""Errors in the form of the legacy API: `error` is the text."""

import msgspec

from gpuyard.live.control_plane.rest.legacy.messages import LegacyError
from gpuyard.live.control_plane.rest.responses import Response, encode
from gpuyard.live.wire.answers import ErrorAnswer


def is_legacy(path: str) -> bool:
    """Whether a path belongs to the legacy API."""
    return path.startswith("/api/") and not path.startswith("/api/v1")


def legacy_error(response: Response) -> Response:
    """Rewrite an error response: the message becomes `error`; code and field are added next to it."""
    told = msgspec.json.decode(response.body, type=ErrorAnswer).error
    response.body = encode(LegacyError(told.message, told.code, told.field))
    response.headers["content-length"] = str(len(response.body))
    return response
