"""Turns gRPC failures into plain sentences. gRPC's own text is for its developers and changes between versions."""

import grpc
import grpc.aio

_CLOSED = ("cancelling all calls", "socket closed", "stream removed", "connection reset", "goaway", "broken pipe")
_NO_WAY = ("no route to host", "network is unreachable", "host is unreachable")
_SILENT = ("keepalive", "ping timeout", "timed out", "timeout occurred", "deadline")


def sentence(error: BaseException, address: str, *, stood: bool = False) -> str:
    """Explain why the connection to an address failed.

    `stood`: there was a connection that the scheduler had accepted.
    """
    if isinstance(error, TimeoutError):
        return f"{address} did not answer in time."
    if not isinstance(error, grpc.aio.AioRpcError):
        return str(error) or type(error).__name__
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"{address} did not answer in time."
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return f"The process that listens at {address} is not a gpuyard scheduler of this version."
    if code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN, grpc.StatusCode.CANCELLED}:
        return _of_transport(details.lower(), address, stood) or details or code.name
    return details or code.name  # a message of the scheduler itself


def _of_transport(text: str, address: str, stood: bool) -> str:
    """Explain gRPC's text about a connection; empty if the text is unknown."""
    if "connection refused" in text:
        return f"No process listens at {address}."
    if any(part in text for part in _NO_WAY):
        return f"There is no route to {address}."
    if "dns resolution failed" in text or "name resolution" in text:
        return f"The host name {address.rpartition(':')[0]} cannot be resolved."
    if "handshake" in text:
        return f"The TLS handshake with {address} failed."
    if any(part in text for part in _CLOSED):
        return (
            "The scheduler closed the connection."
            if stood
            else f"The process that listens at {address} closed the connection."
        )
    if any(part in text for part in _SILENT):
        return f"{address} did not answer in time."
    return f"The connection to {address} failed." if "failed to connect to all addresses" in text else ""


def raw(error: BaseException) -> str:
    """Return the error as gRPC words it, for the log."""
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
