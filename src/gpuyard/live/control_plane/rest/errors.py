"""Every error of the API in its one shape: {"error": {"code", "message", "field"}}.

client errors     400 invalid, 401 not authenticated, 403 not permitted, 404 not found, 405 wrong method, 408 too slow,
                  409 conflict, 413 too large, 415 unsupported media type, 429 too many requests
temporary errors  503 disk full, node unreachable, starting or stopping: the same request may be sent again
server errors     500, with the request id under which the log has the details
"""

from collections.abc import Mapping

import structlog

from gpuyard.core.domain.errors import GpuyardError, NotLeading, OutcomeUnknown, StorageUnavailable, WriterDeposed
from gpuyard.core.domain.refusals import Invalid, QueueFull, Refusal, TooManyOpenTasks, UnknownNode, UnknownTask
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.principal import Denied
from gpuyard.live.control_plane.access.refusals import UnknownToken, UnknownUser
from gpuyard.live.control_plane.jobs import TooManyJobs
from gpuyard.live.control_plane.loop import EngineCrashed
from gpuyard.live.control_plane.nodes.channels import ChannelNotOpened, TooManyChannels
from gpuyard.live.control_plane.nodes.outputs import NodeUnreachable, NoOutput, TooManyReaders
from gpuyard.live.control_plane.rest.open_streams import TooManyStreams
from gpuyard.live.control_plane.rest.responses import Response, json_response
from gpuyard.live.control_plane.stores.database import StoreError, StoreFull, StoreUnreachable
from gpuyard.live.wire.answers import Error, ErrorAnswer

_NOT_THERE = (UnknownTask, UnknownNode, UnknownUser, UnknownToken)
_TOO_MANY = (QueueFull, TooManyOpenTasks)
_AGAIN = {"retry-after": "5"}
_CLOSE = {"connection": "close"}

log = structlog.get_logger()


class AccessDenied(Exception):
    """The request was denied; `denied` has the status and the reason."""

    def __init__(self, denied: Denied) -> None:
        super().__init__(denied.sentence)
        self.denied = denied


class CommandRefused(Exception):
    """The engine or the user store refused the request."""

    def __init__(self, refusal: Refusal, field: str | None = None) -> None:
        super().__init__(refusal.sentence())
        self.refusal = refusal
        self.field = field


class Unavailable(Exception):
    """The scheduler cannot handle the request now; send it again later."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def error(
    status: int, code: str, message: str, field: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error response in the shape of the API."""
    return json_response(ErrorAnswer(Error(code, message, field)), status, headers)


def denial(denied: Denied) -> Response:
    """Return the response to a caller without permission."""
    return error(denied.status, denied.code, denied.sentence, None, dict(denied.headers))


def error_response(problem: Exception, request_id: str) -> Response:
    """Return the response for an exception; an unexpected one is logged and becomes a 500."""
    match problem:
        case WrongRequest():
            closing = _CLOSE if problem.status == 413 else None  # the rest of the body is not read
            return error(problem.status, problem.code, problem.message, problem.field, closing)
        case AccessDenied():
            return denial(problem.denied)
        case CommandRefused():
            refusal = problem.refusal
            status = 404 if isinstance(refusal, _NOT_THERE) else 400 if isinstance(refusal, Invalid) else 409
            field = problem.field or getattr(refusal, "field", None)
            if isinstance(refusal, _TOO_MANY):
                return error(429, refusal.code, str(problem), field, _AGAIN)
            return error(status, refusal.code, str(problem), field)
        case TooManyJobs() | TooManyStreams():
            return error(429, problem.code, str(problem), None, _AGAIN)
        case NoOutput():
            return error(404, problem.code, str(problem))
        case Unavailable():
            return error(503, problem.code, str(problem), None, _AGAIN)
        case NotLeading():  # it stopped to lead after the request was admitted; nothing was done
            return error(
                503, "NotReady", "The scheduler has just changed its role; try again.", None, {"retry-after": "1"}
            )
        case OutcomeUnknown() | StorageUnavailable() | StoreFull() | StoreUnreachable() | WriterDeposed():
            return error(503, problem.code, str(problem), None, _AGAIN)
        case ChannelNotOpened():
            return error(409, problem.code, str(problem))
        case NodeUnreachable() | TooManyReaders() | TooManyChannels():
            return error(503, problem.code, str(problem), None, _AGAIN)
        case EngineCrashed() | StoreError():
            log.error("request_failed", code=problem.code, message=str(problem))
            return error(500, problem.code, str(problem))
    log.error("request_crashed", request_id=request_id, exc_info=problem)
    code = problem.code if isinstance(problem, GpuyardError) else "InternalError"
    return error(
        500,
        code,
        (f"Internal error; the log of the scheduler contains it under request id {request_id}. Please report it."),
    )
