"""The fixed values of a running scheduler: keys, intervals, folders. The server takes them from its settings."""

from dataclasses import dataclass, field
from pathlib import Path

from gpuyard.live.control_plane.alerts.options import AlertOptions
from gpuyard.live.control_plane.nodes.channels import ChannelLimits
from gpuyard.live.control_plane.task_notices.policy import NoticePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """Values that do not change while the scheduler runs."""

    join_token: str
    """Agents must know it to join."""
    request_key: bytes = b""
    """Key of the digests of request bodies, see `IdempotentRequests`."""
    yard_key: bytes = b""
    """Key of the proofs of epochs."""
    origin: int | None = None
    """Identifies this start of the scheduler. None: drawn at random."""
    take_over: bool = False
    """Begin a later epoch than any node has obeyed, by order of an operator."""
    unsafe_labels: frozenset[tuple[str, str]] = frozenset()
    """Labels of nodes whose tasks would be admins here."""

    heartbeat_seconds: float = 5.0
    offline_after_seconds: float = 15.0
    """A node that is silent for this long is lost."""
    check_seconds: float = 1.0
    """Interval of the check for silent nodes."""
    sweep_seconds: float = 5.0
    """Maximum time between two scheduling passes."""

    snapshot_seconds: float = 30.0
    many_events: int = 10_000
    """If the start had to apply more events than this, the first snapshot is saved at once. A scheduler that never runs for
    as long as `snapshot_seconds` would otherwise need longer for each start."""
    snapshot_folder: Path | None = None
    """Where the newest snapshot is copied to, for people to read."""
    database: str = ""
    """The address of the database that holds the journal; empty: a folder holds it."""
    database_snapshots: Path | None = None
    """Where snapshots for the database are made."""
    small_cluster: int = 1_000
    """Up to this many tasks, views and nodes, the loop makes the snapshot itself: about ten milliseconds."""
    retired_folder: Path | None = None
    """Where old events are packed. None: they are deleted."""
    audit_folder: Path | None = None
    audit_seconds: float = 365 * 86_400.0
    """How long audit records are kept."""
    keep_seconds: float = 30 * 86_400.0
    """How long ended tasks are kept."""
    checkpoint_seconds: float = 7 * 86_400.0
    """How long the checkpoint folder of an ended task is kept."""
    clock_file: Path | None = None
    """Where the engine's time is saved for the next scheduler on this machine."""
    channels: ChannelLimits = field(default_factory=ChannelLimits)
    """Terminals, shells and connections to ports at once."""
    alerts: AlertOptions = field(default_factory=AlertOptions)
    notices: NoticePolicy = field(default_factory=NoticePolicy)
    """Whom tasks may notify."""
    external_url: str = ""
    """The address of this scheduler for links in messages."""
    history_seconds: float = 1.0
    """Time between two samples of the history."""
    trace_endpoint: str = ""
    """Where traces of tasks are sent; empty: there are none."""
