"""Answers about the whole cluster that several callers share for a short time, by what they may see."""

import asyncio
from dataclasses import dataclass, field

from gpuyard.live.control_plane.live_feed import Sight


@dataclass(slots=True)
class Overviews:
    """Answers that are still new enough, by sight."""

    answers: dict[Sight, tuple[float, "asyncio.Task[bytes]"]] = field(default_factory=dict)
    waits: dict[Sight, tuple[float, "asyncio.Task[float | None]"]] = field(default_factory=dict)
    known_waits: dict[Sight, float | None] = field(default_factory=dict)
    """The last expected wait of each sight."""
