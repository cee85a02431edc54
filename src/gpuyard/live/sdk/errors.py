"""What can go wrong between a program and a yard.

    GpuyardError
    └── ClusterError
        ├── WrongAddress    caller: this is no address of a scheduler
        ├── Unreachable     outside: nobody answers there; trying again may help
        ├── UntrustedServer outside: another user of this machine answers; nothing was sent
        ├── NotAYard        outside: somebody answers, who is no gpuyard scheduler
        ├── Refused         caller: the yard understood and said no; its code and sentence are the yard's own
        │   ├── NotAllowed  caller: not with this token, or not without one
        │   ├── NotFound    caller: there is no such thing, or not for you
        │   └── NotNow      outside: it starts, stops, or has no space left; the same request may be sent again
        ├── TaskFailed      the task ended otherwise than well; `task` tells how
        └── TookTooLong     what was waited for did not happen in the time given; it may still happen

The message is one sentence for people, and says what to do.
"""

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.live.sdk.values import Task


class ClusterError(GpuyardError):
    """The yard could not do what it was asked for."""

    may_have_arrived = False
    """Whether a scheduler may have got the request and obeyed it all the same."""


class WrongAddress(ClusterError):
    """This is no address of a scheduler; give one such as http://127.0.0.1:8080."""


class Unreachable(ClusterError):
    """No scheduler answers. Start one with `gpuyard up`, or set GPUYARD_SERVER to the address of one that runs."""

    def __init__(self, message: str = "", *, may_have_arrived: bool = False, nothing_listens: bool = False) -> None:
        super().__init__(message)
        self.nothing_listens = nothing_listens
        """Whether the address is right but no process accepts connections there, as while a scheduler is restarted."""
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
        """HTTP's word for it."""
        self.field = field
        """Which part of the request it is about."""
        self._code = code

    @property
    def code(self) -> str:
        """The stable name on the API."""
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
    """The error for a refusal of the yard."""
    return _BY_STATUS.get(status, Refused)(message, status=status, code=code, field=field)
