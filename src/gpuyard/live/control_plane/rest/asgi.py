"""The words of ASGI, the line between an HTTP server and us."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Any], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

HANG_UP = "gpuyard.hang_up"
"""Among the extensions of a scope: a function that breaks the connection off, whatever is on its way."""

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Names in small letters."""
