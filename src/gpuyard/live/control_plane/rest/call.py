"""What a handler works with: the desk it stands at, and the call it answers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from gpuyard.core.domain.commands import Command
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.values import TenantId
from gpuyard.core.engine.state import State
from gpuyard.live.control_plane.access.store import AccessStore
from gpuyard.live.control_plane.access.who import TABLE, Action, Denied, Reach, Who, forbidden, may
from gpuyard.live.control_plane.rest.answer import Answer, Flow
from gpuyard.live.control_plane.rest.asgi import Receive
from gpuyard.live.control_plane.rest.body import MOST, read_body
from gpuyard.live.control_plane.rest.errors import NotAllowed, Refused
from gpuyard.live.control_plane.rest.history import History
from gpuyard.live.control_plane.rest.query import Parameter
from gpuyard.live.control_plane.scheduler import Yard, by
from gpuyard.live.control_plane.settings import DEFAULT_TENANT, ServerSettings


class Call:
    """One request that was let in as far as its route."""

    __slots__ = ("address", "asked", "headers", "named", "receive", "somebody")

    def __init__(
        self,
        headers: Sequence[tuple[bytes, bytes]],
        receive: Receive,
        *,
        address: str,
        somebody: Who | None,
        named: Mapping[str, str],
        asked: Mapping[str, Any],
    ) -> None:
        self.headers = headers
        self.receive = receive
        self.address = address
        """Where from."""
        self.somebody = somebody
        """None only where nobody has to say who they are."""
        self.named = named
        """The parts of the path that stand for something, by name."""
        self.asked = asked
        """What stands behind the question mark, by name."""

    @property
    def who(self) -> Who:
        """Who asks."""
        assert self.somebody is not None, "this route is open to everybody"
        return self.somebody

    def header(self, name: bytes) -> str | None:
        """A header, by its name in small letters."""
        return next((value.decode("latin-1") for known, value in self.headers if known == name), None)

    async def body(self, most: int = MOST) -> bytes:
        """What was sent."""
        return await read_body(self.receive, self.headers, most)


@dataclass(slots=True)
class Desk:
    """What all handlers share."""

    yard: Yard
    access: AccessStore
    settings: ServerSettings
    history: History

    async def tell(self, call: Call, order: Command | Callable[[State], Command]) -> None:
        """Have a command handled in the caller's name; a refusal is raised."""
        answer = await self.yard.loop.tell(order, by(call.who))
        if isinstance(answer, Refusal):
            raise Refused(answer)

    def tenant_of(self, call: Call, action: Action, named: str | None) -> TenantId:
        """The tenant a request is about: the one it names, or the caller's own, or `default`."""
        who = call.who
        tenant = TenantId(named or who.tenant or DEFAULT_TENANT)
        if not may(who, action, tenant):
            raise NotAllowed(_not_for_that_tenant(who, action))
        return tenant


def _not_for_that_tenant(who: Who, action: Action) -> Denied:
    if TABLE[action][who.role] is not Reach.OWN:
        return forbidden(who, action)
    return Denied(403, "Forbidden", f"{who.username} may do this for tenant {who.tenant} only.")


Handler: TypeAlias = Callable[[Desk, Call], Awaitable[Answer | Flow]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One line of the table."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    handle: Handler
    action: Action | None
    """What somebody must be allowed to do; none: everybody may, without saying who they are."""
    summary: str
    request: Any = None
    """The type of the JSON body."""
    answer: Any = None
    """The type of the JSON answer; none: it is what `media` says."""
    status: int = 200
    query: tuple[Parameter, ...] = ()
    errors: tuple[int, ...] = ()
    """Beside those that every route can have."""
    section: str = ""
    media: str = "application/json"
    idempotent: bool = False
    """Takes the header Idempotency-Key."""
    example: Mapping[str, Any] | None = None


async def in_thread(desk: Desk, work: Callable[..., Any], *arguments: Any) -> Any:
    """A change of users and tokens touches the disk, so it is made beside the loop; a refusal is raised."""
    answer = await desk.yard.lanes.access.run(work, *arguments)
    if isinstance(answer, Refusal):
        raise Refused(answer)
    return answer
