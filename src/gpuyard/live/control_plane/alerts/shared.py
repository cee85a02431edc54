"""What the next scheduler that leads has to know of alerts: silences, the present alerts, and which of them were sent.

Each scheduler has a file of its own (`store.py`). With several schedulers the one that leads also keeps this in a document
of the cluster, and the one that takes over begins with it: silences last, and an alert that fires is not sent again.
"""

import msgspec
import structlog

from gpuyard.core.domain.values import Value
from gpuyard.live.control_plane.alerts.rules.rule import Alert
from gpuyard.live.control_plane.alerts.silences import Silence
from gpuyard.live.control_plane.alerts.store import SentGroup
from gpuyard.live.control_plane.stores.documents import Document

ALERTS_DOCUMENT = "alerts.json"

log = structlog.get_logger()


class SharedAlerts(Value, frozen=True):
    """The content of the document."""

    silences: tuple[Silence, ...] = ()
    alerts: tuple[Alert, ...] = ()
    sent: tuple[tuple[str, str, SentGroup], ...] = ()
    """Receiver, group, and what it was last told."""


def read_shared(document: Document) -> SharedAlerts | None:
    """Return what the scheduler before has left; None: nothing, or it cannot be read."""
    content = document.read()
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=SharedAlerts)
    except msgspec.MsgspecError as error:  # of another version
        log.warning("alerts_reset", message=f"The document {ALERTS_DOCUMENT} cannot be read ({error}).")
        return None


def write_shared(document: Document, shared: SharedAlerts) -> None:
    """Write it, durably for all schedulers."""
    document.write(msgspec.json.encode(shared))
