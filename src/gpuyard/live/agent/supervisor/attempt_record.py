"""What the supervisor remembers of one attempt, in memory and on disk."""

import msgspec

from gpuyard.live.agent.supervisor import messages
from gpuyard.live.agent.supervisor.messages import (
    AttemptEnding,
    AttemptKey,
    HeldAttempt,
    Launch,
    NotLaunched,
    ProcessEnded,
    ProcessPhase,
)
from gpuyard.live.agent.supervisor.proc import UNBORN, ProcessStart


class Attempt(msgspec.Struct, omit_defaults=True):
    """One attempt, from its launch until it is forgotten.

    It carries no command and no environment: those may hold secrets, and this is written to disk. What waits for its
    gang keeps its launch beside it, in memory.
    """

    key: AttemptKey
    at: float
    """Since when it is held."""
    phase: ProcessPhase = ProcessPhase.RUNNING
    pid: int = 0
    born: ProcessStart = UNBORN
    """When the process `pid` began."""
    ours: bool = True
    """Its process is our child. One that was adopted is its keeper's, who says how it ends."""
    begins_by: float | None = None
    """Its starter has its order and must have become the command by then, on the boot clock; none: it has, or has none."""
    may_not_have_begun: bool = False
    """Its supervisor was killed before it wrote down that the command began, so its process may have been a starter."""
    cgroup: bool = False
    """It has a control group of its own."""
    lease: bool = False
    fence: bool = False
    uid: int | None = None
    port: int = 0
    output: str = ""
    output_limit_bytes: int = 0
    grace_seconds: float = messages.DEFAULT_GRACE_SECONDS
    times_out_at: float | None = None
    """On the boot clock; none: never, or it is suspended."""
    seconds_left: float | None = None
    """Of its time-out, while it is suspended."""

    # From here on: its end.
    stopping: AttemptEnding | None = None
    """It is being ended, and this is why."""
    kill_at: float | None = None
    """When what is left of it gets KILL, on the boot clock."""
    command_ended: bool = False
    """The command is over; what it left behind may not be."""
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    end: ProcessEnded | NotLaunched | None = None

    def held(self) -> HeldAttempt:
        """How it looks from outside."""
        return HeldAttempt(
            self.key, self.phase, self.at, self.pid, self.lease, self.fence, self.port, self.output, self.end
        )  # fmt: skip


def new_attempt(launch: Launch, at: float) -> Attempt:
    """An attempt that is about to begin."""
    return Attempt(
        key=launch.key, at=at, phase=ProcessPhase.WAITING if launch.wait else ProcessPhase.RUNNING, lease=launch.lease,
        fence=launch.fence, uid=launch.uid, output=launch.output, output_limit_bytes=launch.output_limit_bytes,
        grace_seconds=max(0.0, launch.grace_seconds), seconds_left=launch.timeout_seconds or None,
    )  # fmt: skip
