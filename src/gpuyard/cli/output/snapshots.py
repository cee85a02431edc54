"""Snapshots of code in the words of the command line."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuyard.live.sdk.snapshots import TakenSnapshot
    from gpuyard.live.wire.tasks import SnapshotRequest

SHOWN_DIGITS = 12


def describe(snapshot: "TakenSnapshot") -> None:
    """Print to standard error what a snapshot contains, and a warning for files that are probably no code."""
    files = "1 file" if snapshot.files == 1 else f"{snapshot.files:,} files"
    code = _state(snapshot.commit, dirty=snapshot.dirty)
    about = f"{files}, {snapshot.size / 1024:,.1f} KiB{f', {code}' if code else ''}"
    print(f"gpuyard: snapshot {snapshot.id[:SHOWN_DIGITS]} of {snapshot.folder}: {about}", file=sys.stderr)
    for path, size in snapshot.large[:3]:
        print(f"gpuyard: the snapshot contains {path} ({size / 2**20:,.0f} MiB); is that code?", file=sys.stderr)


def short_snapshot(snapshot: "SnapshotRequest") -> str:
    """Return the snapshot of a task in a few words."""
    code = _state(snapshot.commit, dirty=snapshot.dirty)
    return f"{snapshot.manifest[:SHOWN_DIGITS]}{f' ({code})' if code else ''}"


def _state(commit: str, *, dirty: bool) -> str:
    if not commit:
        return ""
    return f"commit {commit[:SHOWN_DIGITS]}{' with changes' if dirty else ''}"
