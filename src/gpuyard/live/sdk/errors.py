"""The errors of the client.

    GpuyardError
    └── ClusterError
        ├── WrongAddress    caller: not the address of a scheduler
        ├── Unreachable     outside: no answer at this address; retrying may help
        ├── UntrustedServer outside: another user of this machine answers; nothing was sent
        ├── NotGpuyard        outside: the server that answers is not a gpuyard scheduler
        ├── Refused         caller: the scheduler refused the request; code and message are the scheduler's
        │   ├── NotAllowed  caller: not with this token, or not without one
        │   ├── NotFound    caller: it does not exist, or you may not see it
        │   └── TemporarilyRefused
        │                   outside: it starts, stops, or has no space left; the same request may be sent again
        ├── TaskFailed      the task did not succeed; `task` has the details
        │   └── CallFailed  a function left no result; `lines` has the end of its output
        │       ├── CallKilled, CallOutOfMemory, CallTimedOut, CallCancelled, CallLost
        │       ├── RemoteError  its exception cannot be loaded here; it has its name, text and traceback
        │       └── ResultUnreadable  its result cannot be loaded here
        └── TookTooLong     the time limit of a wait was reached; it may still happen

The message is one sentence for the user, and says what to do.
"""

from collections.abc import Sequence

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.live.sdk.values import Task


class ClusterError(GpuyardError):
    """The request to the cluster failed."""

    may_have_arrived = False
    """Whether a scheduler may nevertheless have received the request and carried it out."""


class WrongAddress(ClusterError):
    """The address is not valid; use one such as http://127.0.0.1:8080."""


class Unreachable(ClusterError):
    """No scheduler answers. Start one with `gpuyard up`, or set GPUYARD_SERVER to the address of a running one."""

    def __init__(self, message: str = "", *, may_have_arrived: bool = False, nothing_listens: bool = False) -> None:
        super().__init__(message)
        self.nothing_listens = nothing_listens
        """Whether no process accepts connections at this address, as during a restart of the scheduler."""
        self.may_have_arrived = may_have_arrived


class UntrustedServer(ClusterError):
    """Another user of this machine runs the server at this address. Nothing was sent; trust that user if it runs the scheduler."""


class NotGpuyard(ClusterError):
    """The server at this address is not a gpuyard scheduler. Check GPUYARD_SERVER."""


class Refused(ClusterError):
    """The scheduler rejected the request."""

    def __init__(self, message: str, *, status: int, code: str, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        """The HTTP status."""
        self.field = field
        """The field of the request that caused the error; None if there is none."""
        self._code = code

    @property
    def code(self) -> str:
        """The stable name of the error in the API."""
        return self._code


class NotAllowed(Refused):
    """Log in with `gpuyard login`, or set GPUYARD_TOKEN; the message says what is missing."""


class NotFound(Refused):
    """The object does not exist, or you may not see it."""


class TemporarilyRefused(Refused):
    """The scheduler cannot handle the request now; send it again later."""


class TaskFailed(ClusterError):
    """A task did not succeed, and `check` was set."""

    def __init__(self, task: Task) -> None:
        super().__init__(f"{task.id} ended as {task.status}. {task.reason or ''}".strip())
        self.task = task


class CallFailed(TaskFailed):
    """A function ended without a result."""

    def __init__(self, message: str, task: Task, lines: Sequence[str] = ()) -> None:
        ClusterError.__init__(self, message)
        self.task = task
        self.lines = list(lines)
        """The last lines of its output."""
        if lines:
            self.add_note("The last lines of its output:\n" + "\n".join(lines))


class CallKilled(CallFailed):
    """A signal ended the function; SIGKILL often means that the machine had no memory left."""


class CallOutOfMemory(CallFailed):
    """The function ran out of GPU memory."""


class CallTimedOut(CallFailed):
    """The function reached the time limit of its task."""


class CallCancelled(CallFailed):
    """The task of the function was cancelled."""


class CallLost(CallFailed):
    """The node of the function was lost, or could not start it."""


class RemoteError(CallFailed):
    """A function raised an exception that cannot be sent; the note has its traceback."""

    def __init__(self, type_name: str, text: str, task: Task) -> None:
        super().__init__(f"{type_name}: {text}", task)
        self.type_name = type_name
        self.text = text


class ResultUnreadable(CallFailed):
    """The result of a function cannot be loaded here."""


class TookTooLong(ClusterError, TimeoutError):
    """The time limit has passed; the event may still happen."""


_BY_STATUS: dict[int, type[Refused]] = {
    307: TemporarilyRefused,
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    503: TemporarilyRefused,
}


def refused(status: int, code: str, message: str, field: str | None) -> Refused:
    """Build the error for a refusal of the scheduler."""
    return _BY_STATUS.get(status, Refused)(message, status=status, code=code, field=field)
