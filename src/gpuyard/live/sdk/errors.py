"""The errors of the client.

    GpuyardError
    └── ClusterError
        ├── WrongAddress    caller: not the address of a scheduler
        ├── Unreachable     outside: no answer at this address; retrying may help
        ├── UntrustedServer outside: another user of this machine answers; nothing was sent
        ├── NotAYard        outside: the server that answers is not a gpuyard scheduler
        ├── Refused         caller: the scheduler refused the request; code and message are the scheduler's
        │   ├── NotAllowed  caller: not with this token, or not without one
        │   ├── NotFound    caller: it does not exist, or you may not see it
        │   └── NotNow      outside: it starts, stops, or has no space left; the same request may be sent again
        ├── TaskFailed      the task did not succeed; `task` has the details
        └── TookTooLong     the time limit of a wait was reached; it may still happen

The message is one sentence for the user, and says what to do.
"""

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.live.sdk.values import Task


class ClusterError(GpuyardError):
    """The yard could not do what it was asked for."""

    may_have_arrived = False
    """Whether a scheduler may nevertheless have received the request and carried it out."""


class WrongAddress(ClusterError):
    """This is no address of a scheduler; give one such as http://127.0.0.1:8080."""


class Unreachable(ClusterError):
    """No scheduler answers. Start one with `gpuyard up`, or set GPUYARD_SERVER to the address of one that runs."""

    def __init__(self, message: str = "", *, may_have_arrived: bool = False, nothing_listens: bool = False) -> None:
        super().__init__(message)
        self.nothing_listens = nothing_listens
        """Whether no process accepts connections at this address, as during a restart of the scheduler."""
        self.may_have_arrived = may_have_arrived


class UntrustedServer(ClusterError):
    """Another user of this machine answers at this address. Nothing was sent; accept that user if it runs the scheduler."""


class NotAYard(ClusterError):
    """Something answers at this address, but it is no gpuyard scheduler. Check GPUYARD_SERVER."""


class Refused(ClusterError):
    """The yard refused this."""

    def __init__(self, message: str, *, status: int, code: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        """The HTTP status."""
        self.field = field
        """The field of the request that was refused; None if it is not about one."""
        self._code = code

    @property
    def code(self) -> str:
        """The stable name of the error in the API."""
        return self._code


class NotAllowed(Refused):
    """Log in with `gpuyard login`, or set GPUYARD_TOKEN; the sentence says what is missing."""


class NotFound(Refused):
    """There is no such thing, or not for you."""


class NotNow(Refused):
    """Not at the moment; the same request may be sent again."""


class TaskFailed(ClusterError):
    """A task that was to succeed did not."""

    def __init__(self, task: Task) -> None:
        super().__init__(f"{task.id} ended as {task.status}. {task.reason or ''}".strip())
        self.task = task


class TookTooLong(ClusterError, TimeoutError):
    """It did not happen in the time given; it may still happen."""


_BY_STATUS: dict[int, type[Refused]] = {401: NotAllowed, 403: NotAllowed, 404: NotFound, 503: NotNow}


def refused(status: int, code: str, message: str, field: str | None) -> Refused:
    """Build the error for a refusal of the scheduler."""
    return _BY_STATUS.get(status, Refused)(message, status=status, code=code, field=field)
