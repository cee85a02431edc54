"""One line of the route table, from which dispatch, the OpenAPI document and the documentation page are made."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from gpuyard.live.control_plane.access.principal import ROLE_SCOPES, Action, Role, Scope
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.query import Parameter
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import Response

Handler: TypeAlias = Callable[[AppContext, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method on one path."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    """With parameters in braces."""
    handle: Handler
    action: Action | None
    """The action that the caller must be permitted; None: no login is needed."""
    names_caller: bool = False
    """Without an action: the caller is authenticated if it can be, and the request must obey the rules for cookies."""
    summary: str
    request: Any = None
    """The type of the JSON body."""
    answer: Any = None
    """The type of the JSON response; None: the response has the media type `media`."""
    status: int = 200
    other: tuple[int, Any] | None = None
    """Another status and type with which it answers, if a parameter asks for it."""
    query: tuple[Parameter, ...] = ()
    errors: tuple[int, ...] = ()
    """Error statuses in addition to those that every route can have."""
    asks_nodes: bool = False
    """Whether the answer comes from a node, so that a standby, which has no connection to nodes, cannot give it."""
    here: bool = False
    """Whether a standby carries it out itself, although it changes something."""
    upgrades: bool = False
    """Whether it becomes a WebSocket."""
    section: str = ""
    """The heading in the documentation."""
    takes: str = ""
    """The media type of a body that is not JSON; empty: it takes none."""
    media: str = "application/json"
    """The media type of a response without a type."""
    idempotent: bool = False
    """Whether it takes the header Idempotency-Key."""
    example: Mapping[str, Any] | None = None
    """An example of a valid body."""

    @property
    def roles(self) -> tuple[Role, ...]:
        """Return the roles that may use it; empty: no login is needed."""
        if self.action is None:
            return ()
        return tuple(role for role, scope in ROLE_SCOPES[self.action].items() if scope is not Scope.NONE)

    @property
    def all_errors(self) -> list[int]:
        """Return every error status that it can answer with."""
        errors = {*self.errors, 400, 403}  # Host, Origin and query are checked everywhere
        if self.request is not None or self.takes:
            errors |= {413, 415}
        if self.action is not None:
            errors |= {401, 503}
        return sorted(errors)
