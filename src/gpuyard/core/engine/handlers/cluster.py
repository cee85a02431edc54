"""Commands about the whole cluster: scheduler epochs, limits of tenants and classes, settings."""

from math import isfinite

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.validation import check_settings, check_split, check_tenant
from gpuyard.core.engine.ledger import Ledger
from gpuyard.core.placement.scores import SCORES

MOST_SKIPPED = 1_000_000
"""Maximum of task numbers or epochs that nodes know and the journal has lost; a larger gap is an error."""


def create_cluster(ledger: Ledger, asked: command.CreateCluster) -> Refusal | None:
    """Give the cluster its name; possible only once."""
    if ledger.state.cluster_id:
        return no.ClusterAlreadyFounded(ledger.state.cluster_id)
    if not asked.cluster_id:
        return no.EmptyName("cluster_id")
    ledger.emit(events.ClusterCreated(asked.cluster_id))
    return None


def begin_epoch(ledger: Ledger, asked: command.BeginEpoch) -> Refusal | None:
    """Begin the epoch of a new scheduler."""
    if not isfinite(asked.offline_after_seconds):
        return no.NotFinite("offline_after_seconds")
    epoch = ledger.state.epoch
    if asked.above > epoch + MOST_SKIPPED:
        return no.TooFarAhead("epoch", asked.above, epoch, MOST_SKIPPED)
    ledger.emit(
        events.EpochBegan(
            max(epoch, asked.above) + 1,
            asked.version,
            origin=asked.origin,
            offline_after_seconds=asked.offline_after_seconds,
        )
    )
    return None


def skip_numbers(ledger: Ledger, asked: command.SkipTaskNumbers) -> Refusal | None:
    """Skip task numbers that a node already knows, so that they are not assigned again."""
    last = ledger.state.last_task
    if asked.last_task > last + MOST_SKIPPED:
        return no.TooFarAhead("task number", asked.last_task, last, MOST_SKIPPED)
    if asked.last_task > last:
        ledger.emit(events.TaskNumbersSkipped(asked.last_task))
    return None


def end_epoch(ledger: Ledger, asked: command.EndEpoch) -> Refusal | None:
    """End the epoch of a scheduler that stops; nodes do not count as lost within `absence_seconds`."""
    if not isfinite(asked.absence_seconds):
        return no.NotFinite("absence_seconds")
    if asked.absence_seconds < 0:
        return no.NegativeCount("absence_seconds", asked.absence_seconds)
    ledger.emit(events.EpochEnded(ledger.state.epoch, ledger.state.now + asked.absence_seconds))
    return None


def record_access_change(ledger: Ledger, asked: command.RecordAccessChange) -> Refusal | None:
    """Record that access was granted or revoked, for later audits."""
    ledger.emit(events.AccessChanged(asked.what, asked.subject))
    return None


def set_tenant(ledger: Ledger, asked: command.SetTenant) -> Refusal | None:
    """Set the limits of a tenant."""
    if refusal := check_tenant(asked.tenant):
        return refusal
    ledger.emit(events.TenantSet(asked.tenant))
    return None


def set_split(ledger: Ledger, asked: command.SetSplit) -> Refusal | None:
    """Set how the classes share the GPUs."""
    if refusal := check_split(asked.split):
        return refusal
    ledger.emit(events.SplitSet(asked.split))
    return None


def change_settings(ledger: Ledger, asked: command.ChangeSettings) -> Refusal | None:
    """Change the scheduler settings; reservations made under the old ones are dropped."""
    settings = asked.settings
    if settings.policy not in ledger.state.policies:
        return no.UnknownPolicy(settings.policy, tuple(ledger.state.policies))
    if settings.score not in SCORES:
        return no.UnknownScore(settings.score, tuple(SCORES))
    if refusal := check_settings(settings):
        return refusal
    for reservation in list(ledger.state.reservations.values()):
        ledger.emit(events.ReservationDropped(reservation.task.id, Cause(CauseKind.SETTINGS_CHANGED)))
    ledger.emit(events.SettingsChanged(settings))
    return None
