"""What the settings say about alerts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuyard.live.control_plane.alerts.receivers.notification import Receiver
from gpuyard.live.control_plane.alerts.rules.built_in import BUILT_IN
from gpuyard.live.control_plane.alerts.rules.rule import Rule


@dataclass(frozen=True)
class AlertOptions:
    """Rules, receivers and times. The default: the built-in rules, and nobody who is told."""

    enabled: bool = True
    rules: Mapping[str, Rule] = field(default_factory=lambda: BUILT_IN)
    receivers: tuple[Receiver, ...] = ()
    interval_seconds: float = 5.0
    group_seconds: float = 60.0
    repeat_seconds: float = 4 * 3600.0
    history: int = 10_000
    """Maximum number of entries of the history."""
    file: Path | None = None
    """Where alerts are kept over a restart; None: they are not."""
    disk: Path | None = None
    """A folder of the scheduler whose disk is watched."""
