"""The time the engine is told: it starts where the journal ended and runs with the machine's own clock.

A wall clock can jump: a desktop boots hours ahead until the network puts it right, somebody sets the date. Timers,
time-outs and leases must neither freeze nor fire by that. So engine time follows the boot clock, which never jumps and
runs while the machine sleeps. It starts at

    the same start of the machine    what was noted last, plus what the boot clock has counted since
    another one, or another machine  the wall clock, but never before the last fact

and then drifts towards the wall clock by one second in a hundred, so that what people read is right in the end.
"""

from pathlib import Path
from threading import Lock

import msgspec
import structlog

from gpuyard.live.wire.clock import SYSTEM_CLOCK, Clock
from gpuyard.system.files import replace_file

DRIFT = 0.01
"""How much faster or slower than real time it runs while it is not what the wall clock says."""
WORTH_TELLING_SECONDS = 5.0

log = structlog.get_logger()


class ClockNote(msgspec.Struct):
    """What is kept of it beside the journal."""

    machine_start: str
    boot: float
    engine: float


class EngineClock:
    """Call it for the engine's time."""

    def __init__(self, last_fact_at: float, clock: Clock = SYSTEM_CLOCK, note: ClockNote | None = None) -> None:
        self._clock = clock
        self._lock = Lock()
        """A large batch is handled in a thread of its own."""
        self._boot = clock.boot()
        self._time = max(last_fact_at, clock.wall())
        if note is not None and note.machine_start == clock.machine_start() and self._boot >= note.boot:
            self._time = max(last_fact_at, note.engine + self._boot - note.boot)
        self._told = False
        self.ahead_seconds()

    def __call__(self) -> float:
        """Seconds since 1970, as the engine counts them."""
        with self._lock:
            boot = self._clock.boot()
            passed, self._boot = max(0.0, boot - self._boot), boot
            ahead, most = self._time + passed - self._clock.wall(), passed * DRIFT
            self._time += passed - max(-most, min(most, ahead))
            return self._time

    def ahead_seconds(self) -> float:
        """How far it is ahead of the wall clock; below zero: behind. Said in the log once when it is worth it."""
        ahead = self() - self._clock.wall()
        if abs(ahead) < WORTH_TELLING_SECONDS:
            self._told = False
        elif not self._told:
            self._told = True
            log.warning(
                "clock_differs",
                ahead_seconds=round(ahead, 1),
                message="The scheduler's time and this machine's clock differ: the clock jumped, or was wrong when "
                "something was recorded. Timers go on as if it had not; times shown approach the clock slowly.",
            )
        return ahead

    def note(self) -> ClockNote:
        """For the next scheduler on this machine."""
        return ClockNote(self._clock.machine_start(), self._clock.boot(), self())


def read_note(path: Path) -> ClockNote | None:
    """What the last scheduler noted; none: nothing that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClockNote)
    except (OSError, msgspec.MsgspecError):
        return None


def write_note(path: Path, note: ClockNote) -> None:
    """Keep it. Without it the wall clock is asked at the next start, so failing to is no error."""
    try:
        replace_file(path, msgspec.json.encode(note), durable=False)
    except OSError as error:
        log.warning("clock_not_noted", message=str(error))
