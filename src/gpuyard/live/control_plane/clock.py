"""The engine's time: it starts where the journal ended and runs with the machine's boot clock.

A wall clock can jump: a desktop boots hours ahead until the network corrects it, or a user sets the date. Timers,
timeouts and leases must not freeze or fire because of that. So engine time follows the boot clock, which never jumps
and also runs while the machine sleeps. It starts at

    the same boot of the machine     the last noted time, plus the time on the boot clock since
    another boot or machine          the wall clock, but never before the last event

and then drifts towards the wall clock by one second in a hundred, so that displayed times become right.

Wall clocks of two schedulers may differ. A standby therefore keeps up with the time of the leader, which the events tell, and
continues it when it takes over.
"""

import asyncio
from pathlib import Path
from threading import Lock

import msgspec
import structlog

from gpuyard.live.wire.clock import SYSTEM_CLOCK, Clock
from gpuyard.system.files import replace_file

DRIFT = 0.01
"""How much faster or slower than real time it runs while it differs from the wall clock."""
WORTH_TELLING_SECONDS = 5.0
SAVE_SECONDS = 5.0
KEPT_UP_SECONDS = 1.0
"""A standby that differs from the leader by less than this is left alone: events arrive a little late."""

log = structlog.get_logger()


class ClockNote(msgspec.Struct):
    """The saved state of the clock, kept next to the journal."""

    machine_start: str
    boot: float
    engine: float


class EngineClock:
    """The engine's clock. Call it for the time."""

    def __init__(self, last_event_at: float, clock: Clock = SYSTEM_CLOCK, note: ClockNote | None = None) -> None:
        self._clock = clock
        self._lock = Lock()
        """Needed because a large batch is handled in another thread."""
        self._boot = clock.boot()
        self._time = max(last_event_at, clock.wall())
        if note is not None and note.machine_start == clock.machine_start() and self._boot >= note.boot:
            self._time = max(last_event_at, note.engine + self._boot - note.boot)
        self._told = False
        self.ahead_seconds()

    def __call__(self) -> float:
        """Return the engine's time in seconds since 1970."""
        with self._lock:
            boot = self._clock.boot()
            passed, self._boot = max(0.0, boot - self._boot), boot
            ahead, most = self._time + passed - self._clock.wall(), passed * DRIFT
            self._time += passed - max(-most, min(most, ahead))
            return self._time

    def keep_up(self, at: float) -> None:
        """Continue the time of the scheduler that leads; `at` is that of an event that it has just written."""
        if abs(self() - at) >= KEPT_UP_SECONDS:
            with self._lock:
                self._time = at

    def continue_from(self, at: float) -> None:
        """Continue after the last event, if that is ahead: otherwise no time would pass for the engine until then."""
        self()
        with self._lock:
            self._time = max(self._time, at)

    def ahead_seconds(self) -> float:
        """Return how far it is ahead of the wall clock (negative: behind). A large difference is logged once."""
        ahead = self() - self._clock.wall()
        if abs(ahead) < WORTH_TELLING_SECONDS:
            self._told = False
        elif not self._told:
            self._told = True
            log.warning(
                "clock_drifted",
                ahead_seconds=round(ahead, 1),
                message=(
                    "The time of the scheduler and the clock of this machine differ: the clock jumped, "
                    "or was wrong when an event was recorded. Timers are not affected; displayed times "
                    "approach the clock slowly."
                ),
            )
        return ahead

    def note(self) -> ClockNote:
        """Return the state to save for the next scheduler on this machine."""
        return ClockNote(self._clock.machine_start(), self._clock.boot(), self())


def read_note(path: Path) -> ClockNote | None:
    """Read the state that the last scheduler saved; None if there is none or it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClockNote)
    except (OSError, msgspec.MsgspecError):
        return None


def save_note(clock: EngineClock, path: Path | None) -> None:
    """Save the state for the next scheduler. A failure is ignored: the next start then uses the wall clock."""
    clock.ahead_seconds()  # logs a large difference
    if path is None:
        return
    try:
        replace_file(path, msgspec.json.encode(clock.note()), durable=False)
    except OSError as error:
        log.warning("clock_write_failed", message=str(error))


async def keep_note(clock: EngineClock, path: Path | None) -> None:
    """Save the state periodically until cancelled."""
    while True:
        save_note(clock, path)
        await asyncio.sleep(SAVE_SECONDS)
