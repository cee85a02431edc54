"""The protocol between an agent and its supervisor: commands one way, events the other.

A frame on the socket is four bytes of length (big-endian) and a list of messages in msgpack, so a burst of a thousand
launches is one write and one read. Fields are only ever added, with a default, and each side ignores messages it does
not know: an agent may be newer or older than the supervisor it finds.

Durations are seconds from now; times (`at`) are seconds of the wall clock, for display.
"""

import struct
from collections.abc import Iterable
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple, TypeVar

import msgspec

from gpuyard.live.agent.supervisor.clock import now

DEFAULT_GRACE_SECONDS = 10.0
DEFAULT_LAUNCH_SECONDS = 30.0
DEFAULT_OUTPUT_LIMIT_BYTES = 64 * 1024 * 1024


class AttemptKey(NamedTuple):
    """Identifies an attempt. Two schedulers that use the same numbers have different origins."""

    task: int
    attempt: int
    origin: int = 0


class SupervisorMessage(msgspec.Struct, frozen=True, gc=False, tag=True, tag_field="type", omit_defaults=True):
    """Base class of all messages."""


# --- commands ---------------------------------------------------------------------------------------------------------


class LaunchConsole(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A terminal, or only an open standard input, to which clients attach (`console_holder.py`)."""

    socket: str
    """Where its holder listens."""
    terminal: bool = True
    columns: int = 80
    rows: int = 24
    linger_seconds: float | None = None
    """How long the command goes on without a client; None: for ever."""
    record: str = ""
    """Of a shell: the file that its holder makes before the command begins, and writes its end to. Without it the
    command is not begun, so it runs at most once."""


class Launch(SupervisorMessage, frozen=True):
    """Run an attempt. Safe to repeat: an attempt that is already held is not run again, only reported again.

    The supervisor adds the variables by which it recognizes its processes (`GPUYARD_TASK_ID`, `GPUYARD_ATTEMPT`,
    `GPUYARD_MARK`); the rest of the environment is as given here.
    """

    key: AttemptKey
    argv: tuple[str, ...] = ()
    """The command and its arguments; empty: `shell` is used."""
    shell: str = ""
    """A command line for `/bin/sh -c`."""
    env: dict[str, str] = {}
    """The complete environment: nothing of the supervisor's own is inherited."""
    cwd: str = "/"
    uid: int | None = None
    """The uid to run as; None: the supervisor's own."""
    gid: int | None = None
    groups: tuple[int, ...] = ()
    output: str = ""
    """The file for stdout and stderr together; empty: output is discarded."""
    output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES
    """About how much of the end of the output the file keeps. 0: everything."""
    timeout_seconds: float = 0.0
    """Limit on the running time, without time in suspension. 0: none."""
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    """Time between TERM and KILL, however the attempt is ended; `StopAttempt` may give another one."""
    fence: bool = False
    """End it when the lease of `Renew` has run out. Send `Renew` first: without a lease it is not started."""
    wait: bool = False
    """Only prepare it (a member of a gang), and run it at `Start`."""
    lease: bool = False
    """Start no process: the attempt is held and listed, and `StopAttempt` or its time-out ends it."""
    cgroup: bool = False
    """Put it into its own control group if the machine allows it; no process can hide from that (`cgroup.py`)."""
    launch_seconds: float = DEFAULT_LAUNCH_SECONDS
    """How long its work dir, its output and its command may take to open; after that it is not launched."""
    checkpoint_dir: str = ""
    """The folder to make for its checkpoints, unless it exists; empty: none."""
    python: str = ""
    """The Python of its virtual environment; the attempt is not started without it. Empty: none."""
    umask: int | None = None
    """None: the supervisor's own."""
    limits: dict[str, int] = {}
    """Soft limits: nofile, stack, memlock, core; at most the hard ones. -1: unlimited."""
    console: LaunchConsole | None = None
    """Clients can be attached to it; None: it reads nothing."""


class OpenShell(SupervisorMessage, frozen=True):
    """Start another command beside a running attempt: same user, folder, environment, GPUs. It ends with the attempt.

    Safe to repeat: a session whose command has begun before is not begun again (`LaunchConsole.record`).
    """

    key: AttemptKey
    session: str
    console: LaunchConsole
    argv: tuple[str, ...] = ()
    """Empty: the shell of the user."""
    env: dict[str, str] = {}
    """Variables in addition to those of the attempt."""
    most_of_attempt: int = 16
    """No more shells than this are open beside one attempt."""
    most: int = 64
    """Nor beside all attempts, except the first one of an attempt."""


class Start(SupervisorMessage, frozen=True):
    """Run an attempt that was prepared."""

    key: AttemptKey
    env: dict[str, str] = {}
    """Variables that override those of the launch, such as the address of the gang's master."""


class StopAttempt(SupervisorMessage, frozen=True, tag="Stop"):
    """End an attempt: TERM to all of its processes, and after the grace KILL."""

    key: AttemptKey
    grace_seconds: float | None = None
    """None: that of its launch."""


class Suspend(SupervisorMessage, frozen=True):
    """Stop all processes of an attempt with SIGSTOP."""

    key: AttemptKey


class Resume(SupervisorMessage, frozen=True):
    """Continue all processes of a suspended attempt."""

    key: AttemptKey


class Extend(SupervisorMessage, frozen=True):
    """Replace the time-out of an attempt."""

    key: AttemptKey
    seconds_left: float
    """Counted from `made_at`. 0: no time-out any more."""
    made_at: float = msgspec.field(default_factory=now)
    """On the boot clock, because the message may be repeated later."""


class Renew(SupervisorMessage, frozen=True):
    """Extend the lease of all fenced attempts, after a message from the scheduler. It never shortens a lease.

    It counts from when it was made, not from when it is read: a supervisor that was stopped for a minute finds old
    renewals on its socket, and those must not extend the lease.
    """

    seconds: float
    made_at: float = msgspec.field(default_factory=now)
    """On the boot clock, which is the same in every process of a machine."""


class Shorten(SupervisorMessage, frozen=True):
    """Limit the lease of fenced attempts, whatever was allowed before this was made.

    An agent that is stopped on purpose leaves a long lease behind. When the next agent is back, the scheduler counts
    the node's silence again, and no fenced attempt may outlive that count.
    """

    seconds: float
    made_at: float = msgspec.field(default_factory=now)
    """On the boot clock; renewals that were made earlier and are read later have no effect."""


class ForgetAttempts(SupervisorMessage, frozen=True, tag="Forget"):
    """Forget the ends of these attempts, which are durable elsewhere. Attempts that have not ended are kept."""

    keys: tuple[AttemptKey, ...]


class ListAttempts(SupervisorMessage, frozen=True, tag="List"):
    """List the attempts once; the answer is `AttemptList`."""


class Subscribe(SupervisorMessage, frozen=True):
    """Answer with `AttemptList` now and send every event from here on."""


class Ping(SupervisorMessage, frozen=True):
    """Answer with `Pong`, which shows that the supervisor's loop runs."""


class Replace(SupervisorMessage, frozen=True):
    """Execute the code that is installed now: same process, same children, nothing lost. The connection closes."""


SupervisorCommand = (
    Launch
    | OpenShell
    | Start
    | StopAttempt
    | Suspend
    | Resume
    | Extend
    | Renew
    | Shorten
    | ForgetAttempts
    | ListAttempts
    | Subscribe
    | Ping
    | Replace
)


# --- events -----------------------------------------------------------------------------------------------------------


class AttemptEnding(StrEnum):
    """How an attempt ended, as far as its node knows."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The command ended by itself, with a non-zero exit code or a signal."""
    STOPPED = "stopped"
    """Because of a `StopAttempt`."""
    TIMED_OUT = "timed_out"
    FENCED = "fenced"
    """Its lease ran out."""
    LOST = "lost"
    """It is gone, and how it ended is unknown."""
    NOT_LAUNCHED = "not_launched"


class Launched(SupervisorMessage, frozen=True):
    """The attempt runs. A lease has no process, so its pid is 0."""

    key: AttemptKey
    pid: int
    at: float


class Prepared(SupervisorMessage, frozen=True):
    """The attempt waits for `Start`."""

    key: AttemptKey
    port: int
    """A TCP port that was free a moment ago, for the gang's rendezvous."""


class NotLaunched(SupervisorMessage, frozen=True):
    """The attempt could not be started. Held like an end until it is forgotten."""

    key: AttemptKey
    message: str
    at: float


class ProcessEnded(SupervisorMessage, frozen=True, tag="Ended"):
    """The attempt and everything it left behind are over: its GPUs are free."""

    key: AttemptKey
    ending: AttemptEnding
    exit_code: int | None
    """The exit code of the command, if it exited."""
    signal: int | None
    """The signal that ended the command, if one did."""
    at: float
    message: str = ""
    """One sentence of explanation; empty if there is nothing to add."""


class SuspendedNow(SupervisorMessage, frozen=True):
    """All processes of the attempt are stopped."""

    key: AttemptKey


class ResumedNow(SupervisorMessage, frozen=True):
    """All processes of the attempt run again."""

    key: AttemptKey


class ShellOpened(SupervisorMessage, frozen=True):
    """The answer to `OpenShell`."""

    key: AttemptKey
    session: str
    message: str = ""
    """Why it was not started; empty: its holder begins to listen."""
    code: str = ""
    """The reason, for programs."""


class Extended(SupervisorMessage, frozen=True):
    """The new time-out of `Extend` was received."""

    key: AttemptKey


class NotHeld(SupervisorMessage, frozen=True):
    """A command named an attempt that is not held: never launched, or forgotten."""

    key: AttemptKey


class NotReplaced(SupervisorMessage, frozen=True):
    """The supervisor continues as it is, because the installed code does not start."""

    message: str


class Pong(SupervisorMessage, frozen=True):
    """The answer to `Ping`."""


class ProcessPhase(StrEnum):
    """The phase of an attempt."""

    WAITING = "waiting"
    """Prepared, before `Start`."""
    RUNNING = "running"
    SUSPENDED = "suspended"
    ENDED = "ended"


class HeldAttempt(SupervisorMessage, frozen=True, tag="Held"):
    """One attempt in the answer to `ListAttempts`."""

    key: AttemptKey
    phase: ProcessPhase
    at: float
    """When it was launched, or when its command began."""
    pid: int = 0
    """The pid of its command, which leads its session; 0: it has none."""
    lease: bool = False
    fence: bool = False
    port: int = 0
    """The rendezvous port of an attempt that waits."""
    output: str = ""
    end: ProcessEnded | NotLaunched | None = None
    grace_seconds: float = DEFAULT_GRACE_SECONDS


class AttemptList(SupervisorMessage, frozen=True, tag="Holding"):
    """All attempts held, with the ends that have not been forgotten yet."""

    attempts: tuple[HeldAttempt, ...]
    pid: int
    """The pid of the supervisor."""
    version: str
    """The version of gpuyard when the supervisor began."""


SupervisorEvent = (
    Launched
    | Prepared
    | NotLaunched
    | ProcessEnded
    | SuspendedNow
    | ResumedNow
    | Extended
    | ShellOpened
    | NotHeld
    | NotReplaced
    | AttemptList
    | Pong
)


# --- frames -----------------------------------------------------------------------------------------------------------

T = TypeVar("T")
MAX_FRAME_BYTES = 256 * 1024 * 1024
_LENGTH = struct.Struct(">I")
_ENCODER = msgspec.msgpack.Encoder()
_COMMANDS, _EVENTS = msgspec.msgpack.Decoder(list[SupervisorCommand]), msgspec.msgpack.Decoder(list[SupervisorEvent])
_WORDS = msgspec.msgpack.Decoder(list[msgspec.Raw])


def decode_commands(body: bytes) -> list[SupervisorCommand]:
    """Decode the commands of a frame, without those that only a newer agent knows. Raise `ValueError` for garbage."""
    try:
        return _COMMANDS.decode(body)
    except msgspec.ValidationError:
        return _what_is_known(_COMMANDS, body)


def decode_events(body: bytes) -> list[SupervisorEvent]:
    """Decode the events of a frame, without those that only a newer supervisor knows.

    Raise `ValueError` for garbage.
    """
    try:
        return _EVENTS.decode(body)
    except msgspec.ValidationError:
        return _what_is_known(_EVENTS, body)


def _what_is_known(decoder: "msgspec.msgpack.Decoder[list[T]]", body: bytes) -> list[T]:
    known: list[T] = []
    for word in _WORDS.decode(body):
        with suppress(msgspec.ValidationError):
            known += decoder.decode(b"\x91" + word)  # a list of one
    return known


def frame(messages: Iterable[SupervisorMessage]) -> bytes:
    """Encode messages as one frame."""
    body = _ENCODER.encode(list(messages))
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Splits the received bytes into the bodies of frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that are complete now. Raise `ValueError` for an impossible length."""
        buffer = self._buffer
        buffer += data
        bodies = []
        begin = 0
        while len(buffer) - begin >= 4:
            (length,) = _LENGTH.unpack_from(buffer, begin)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"A frame of {length} bytes was announced, which is above the limit.")
            if len(buffer) - begin - 4 < length:
                break
            bodies.append(bytes(buffer[begin + 4 : begin + 4 + length]))
            begin += 4 + length
        if begin:
            del buffer[:begin]
        return bodies
