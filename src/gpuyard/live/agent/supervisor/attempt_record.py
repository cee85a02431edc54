"""The supervisor's record of one attempt, in memory and on disk."""

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

    It has no command and no environment, because those may contain secrets and this is written to disk. For an attempt
    that waits for its gang, the launch is kept separately, in memory only.
    """

    key: AttemptKey
    at: float
    """When it was launched, or when its command began."""
    phase: ProcessPhase = ProcessPhase.RUNNING
    pid: int = 0
    born: ProcessStart = UNBORN
    """When the process `pid` began."""
    ours: bool = True
    """Its process is a child of this supervisor. An adopted one is a child of its keeper, which records how it ends."""
    begins_by: float | None = None
    """Until when its starter must have become the command, on the boot clock.

    None: it has, or there is no order yet.
    """
    may_not_have_begun: bool = False
    """Its supervisor was killed before it recorded the start of the command, so its process may have been a starter."""
    cgroup: bool = False
    """It has its own control group."""
    lease: bool = False
    fence: bool = False
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()
    port: int = 0
    output: str = ""
    output_limit_bytes: int = 0
    grace_seconds: float = messages.DEFAULT_GRACE_SECONDS
    times_out_at: float | None = None
    """On the boot clock; None: never, or it is suspended."""
    seconds_left: float | None = None
    """Seconds left of its time-out while the clock does not run: before it begins and while it is suspended."""

    # From here on: its end.
    stopping: AttemptEnding | None = None
    """Why it is being ended; None if it is not."""
    kill_at: float | None = None
    """When its remaining processes get KILL, on the boot clock."""
    command_ended: bool = False
    """The command is over; processes it left behind may not be."""
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    end: ProcessEnded | NotLaunched | None = None

    def held(self) -> HeldAttempt:
        """Return the attempt as clients see it."""
        return HeldAttempt(
            self.key, self.phase, self.at, self.pid, self.lease, self.fence, self.port, self.output, self.end,
            self.grace_seconds,
        )  # fmt: skip


def new_attempt(launch: Launch, at: float) -> Attempt:
    """Return the record of an attempt that is about to begin."""
    return Attempt(
        key=launch.key, at=at, phase=ProcessPhase.WAITING if launch.wait else ProcessPhase.RUNNING, lease=launch.lease,
        fence=launch.fence, uid=launch.uid, gid=launch.gid, groups=launch.groups, output=launch.output, output_limit_bytes=launch.output_limit_bytes,
        grace_seconds=max(0.0, launch.grace_seconds), seconds_left=launch.timeout_seconds or None,
    )  # fmt: skip
