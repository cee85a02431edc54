"""What an agent and its supervisor say to each other: commands one way, events the other.

A frame on the socket is four bytes of length (big-endian) and a list of messages in msgpack, so a burst of a thousand
launches is one write and one read. Fields are only ever added, with a default, and messages that one side does not know
are passed over: an agent may be newer than the supervisor it finds, or older.

Durations are seconds from now; instants (`at`) are seconds of the wall clock, for people.
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
    """Which attempt: two schedulers that use the same numbers have different origins."""

    task: int
    attempt: int
    origin: int = 0


class SupervisorMessage(msgspec.Struct, frozen=True, gc=False, tag=True, tag_field="type", omit_defaults=True):
    """Base of everything that is said."""


# --- commands ---------------------------------------------------------------------------------------------------------


class Launch(SupervisorMessage, frozen=True):
    """Run an attempt. Safe to repeat: a key that is held already is not run again, only told of again.

    The supervisor adds the variables by which it knows its processes (`GPUYARD_TASK_ID`, `GPUYARD_ATTEMPT`,
    `GPUYARD_MARK`); everything else of the environment is as given here.
    """

    key: AttemptKey
    argv: tuple[str, ...] = ()
    """The command and its arguments; empty: `shell` is meant."""
    shell: str = ""
    """A line for `/bin/sh -c`."""
    env: dict[str, str] = {}
    """All of it: nothing of the supervisor's own environment is handed on."""
    cwd: str = "/"
    uid: int | None = None
    """Run as this user; none: as the supervisor's own."""
    gid: int | None = None
    groups: tuple[int, ...] = ()
    output: str = ""
    """The file for stdout and stderr together; empty: nobody keeps it."""
    output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES
    """The file keeps about this much of its newest end. 0: all of it."""
    timeout_seconds: float = 0.0
    """Of running, time in suspension not counted. 0: none."""
    grace_seconds: float = DEFAULT_GRACE_SECONDS
    """Between TERM and KILL, at a time-out and for what the command left behind."""
    fence: bool = False
    """End it when the lease of `Renew` has run out. Send that first: no lease is a lease that ran out."""
    wait: bool = False
    """Only prepare it (one part of a gang), and run it at `Start`."""
    lease: bool = False
    """No process at all: it is held and listed, and `StopAttempt` or its time-out ends it."""
    cgroup: bool = False
    """Put it into a control group of its own, where the machine lets us: nothing can hide there (`cgroup.py`)."""
    launch_seconds: float = DEFAULT_LAUNCH_SECONDS
    """How long its work dir, its output and its command may take to open; after that it is not launched."""


class Start(SupervisorMessage, frozen=True):
    """Run an attempt that was prepared."""

    key: AttemptKey
    env: dict[str, str] = {}
    """Goes over what the launch said: who is the gang's master, and the like."""


class StopAttempt(SupervisorMessage, frozen=True, tag="Stop"):
    """End an attempt: TERM to all of its processes, and after the grace KILL."""

    key: AttemptKey
    grace_seconds: float = DEFAULT_GRACE_SECONDS


class Suspend(SupervisorMessage, frozen=True):
    """Stop all processes of an attempt where they are."""

    key: AttemptKey


class Resume(SupervisorMessage, frozen=True):
    """Let them go on."""

    key: AttemptKey


class Extend(SupervisorMessage, frozen=True):
    """An attempt has another time-out than it was launched with."""

    key: AttemptKey
    seconds_left: float
    """From when this was made. 0: it has none any more."""
    made_at: float = msgspec.field(default_factory=now)
    """On the boot clock: it may be said again later."""


class Renew(SupervisorMessage, frozen=True):
    """The scheduler was heard of: all fenced attempts may go on for so long. A shorter lease never cuts a longer one.

    It counts from when it was made, not from when it is read: a supervisor that was stopped for a minute finds old ones
    on its line, and those must not let anything live on.
    """

    seconds: float
    made_at: float = msgspec.field(default_factory=now)
    """On the boot clock, which is the same in every process of a machine."""


class Shorten(SupervisorMessage, frozen=True):
    """Fenced attempts go on for no longer than this, whatever they were allowed before it was made.

    An agent that is stopped on purpose leaves a long lease behind. When the next one is back the scheduler counts again,
    and nothing may outlive what it counts.
    """

    seconds: float
    made_at: float = msgspec.field(default_factory=now)
    """On the boot clock; renewals that were made earlier and are read later have no effect."""


class ForgetAttempts(SupervisorMessage, frozen=True, tag="Forget"):
    """The ends of these attempts are durable elsewhere. What has not ended is not forgotten."""

    keys: tuple[AttemptKey, ...]


class ListAttempts(SupervisorMessage, frozen=True, tag="List"):
    """Say once what is held; the answer is `Holding`."""


class Subscribe(SupervisorMessage, frozen=True):
    """Answer with `Holding` now and send every event from here on."""


class Ping(SupervisorMessage, frozen=True):
    """Say `Pong`: the supervisor is there and its loop turns."""


class Replace(SupervisorMessage, frozen=True):
    """Begin anew from the code that is installed now: same process, same children, nothing lost. The line closes."""


SupervisorCommand = (
    Launch
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
    """How an attempt ended, as far as its node can know."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """By itself, with a non-zero exit code or a signal."""
    STOPPED = "stopped"
    """Because of a `StopAttempt`."""
    TIMED_OUT = "timed_out"
    FENCED = "fenced"
    """Its lease ran out."""
    LOST = "lost"
    """It is gone and nobody knows how it ended."""
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
    """The attempt could not be started; held like an end until it is forgotten."""

    key: AttemptKey
    message: str
    at: float


class ProcessEnded(SupervisorMessage, frozen=True, tag="Ended"):
    """The attempt is over, and so is everything it left behind: its GPUs are free."""

    key: AttemptKey
    ending: AttemptEnding
    exit_code: int | None
    """Of the command, where it exited."""
    signal: int | None
    """That ended the command, where one did."""
    at: float
    message: str = ""
    """One sentence, where there is more to say."""


class SuspendedNow(SupervisorMessage, frozen=True):
    """All its processes stand still."""

    key: AttemptKey


class ResumedNow(SupervisorMessage, frozen=True):
    """They go on."""

    key: AttemptKey


class Extended(SupervisorMessage, frozen=True):
    """Its other time-out was heard."""

    key: AttemptKey


class NotHeld(SupervisorMessage, frozen=True):
    """A command spoke of an attempt that is not here: never launched, or forgotten."""

    key: AttemptKey


class NotReplaced(SupervisorMessage, frozen=True):
    """The supervisor stays as it is, because the installed code does not start."""

    message: str


class Pong(SupervisorMessage, frozen=True):
    """The answer to `Ping`."""


class ProcessPhase(StrEnum):
    """What an attempt does."""

    WAITING = "waiting"
    """Prepared."""
    RUNNING = "running"
    SUSPENDED = "suspended"
    ENDED = "ended"


class HeldAttempt(SupervisorMessage, frozen=True, tag="Held"):
    """One attempt in the answer to `ListAttempts`."""

    key: AttemptKey
    phase: ProcessPhase
    at: float
    """Since when it is held."""
    pid: int = 0
    """Of its command, which leads its session; 0: it has none."""
    lease: bool = False
    fence: bool = False
    port: int = 0
    """Of one that waits."""
    output: str = ""
    end: ProcessEnded | NotLaunched | None = None


class Holding(SupervisorMessage, frozen=True):
    """Everything that is held, with the ends nobody has forgotten yet."""

    attempts: tuple[HeldAttempt, ...]
    pid: int
    """Of the supervisor."""
    version: str
    """Of gpuyard, when the supervisor began."""


SupervisorEvent = (
    Launched
    | Prepared
    | NotLaunched
    | ProcessEnded
    | SuspendedNow
    | ResumedNow
    | Extended
    | NotHeld
    | NotReplaced
    | Holding
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
    """The commands of a frame, without those that only a newer agent knows. A frame of rubbish is a `ValueError`."""
    try:
        return _COMMANDS.decode(body)
    except msgspec.ValidationError:
        return _what_is_known(_COMMANDS, body)


def decode_events(body: bytes) -> list[SupervisorEvent]:
    """The same for events, and a newer supervisor."""
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
    """One write's worth of messages."""
    body = _ENCODER.encode(list(messages))
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts what comes over the line into the bodies of frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are complete now. A length that can not be meant is a `ValueError`."""
        buffer = self._buffer
        buffer += data
        bodies = []
        begin = 0
        while len(buffer) - begin >= 4:
            (length,) = _LENGTH.unpack_from(buffer, begin)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"A frame of {length} bytes was announced; nobody here sends such.")
            if len(buffer) - begin - 4 < length:
                break
            bodies.append(bytes(buffer[begin + 4 : begin + 4 + length]))
            begin += 4 + length
        if begin:
            del buffer[:begin]
        return bodies
