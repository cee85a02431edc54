"""Tell receivers what fires, each in a task of its own.

The notifier compares what a receiver was last told with what is true now, and sends the difference. So nothing waits in
a queue: while a receiver is away, newer states replace older ones, an alert that came and went is never told, and a
restart neither repeats nor forgets. Memory is bounded by the number of alerts.

    first notification of a group     at once
    a change within the group         at once, but not within `group_interval` of the last notification
    nothing changed                   again after `repeat_interval`, as long as it fires
    a receiver fails or hangs         again after 1, 2, 4 … 300 seconds, with what is true then
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import structlog
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter

from gpuyard.live.control_plane.alerts.receivers.notification import NotDelivered, Notification, Receiver, group_key
from gpuyard.live.control_plane.alerts.rules.rule import Alert, AlertStatus
from gpuyard.live.control_plane.alerts.store import AlertStore, SentGroup
from gpuyard.live.control_plane.stores.database import StoreError
from gpuyard.live.control_plane.time_slices import TimeSlicer
from gpuyard.live.control_plane.worker_threads import WorkerPool

FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 300.0
NOTHING_SENT = SentGroup(float("-inf"))

log = structlog.get_logger()

GroupLabels = tuple[tuple[str, str], ...]


def group_of(alert: Alert) -> GroupLabels:
    """Return the group of an alert: its rule and its node."""
    node = next((value for name, value in alert.labels if name == "node"), None)
    return (("alertname", alert.rule),) if node is None else (("alertname", alert.rule), ("node", node))


class Situation:
    """What is true now."""

    def __init__(self, muted: Collection[str] = ()) -> None:
        """`muted` are the ids of alerts that are silenced or inhibited."""
        self.muted = muted
        self.firing: dict[str, Alert] = {}
        """All alerts that fire, by id."""
        self.resolved: dict[str, Alert] = {}
        """Alerts that were resolved lately, by id."""
        self.to_tell: dict[GroupLabels, list[tuple[str, Alert]]] = {}
        """Alerts that fire and are not muted, with their ids, by group."""

    def add(self, id_: str, alert: Alert) -> None:
        """Add an alert."""
        if alert.status is AlertStatus.RESOLVED:
            self.resolved[id_] = alert
        elif alert.fires:
            self.firing[id_] = alert
            if id_ not in self.muted:
                self.to_tell.setdefault(group_of(alert), []).append((id_, alert))


class Notifier:
    """Sends notifications to all receivers."""

    def __init__(
        self,
        receivers: Sequence[Receiver],
        store: AlertStore,
        pool: WorkerPool,
        *,
        clock: Callable[[], float],
        group_seconds: float,
        repeat_seconds: float,
        registry: CollectorRegistry,
    ) -> None:
        self._receivers = receivers
        self._store = store
        self._pool = pool
        self._clock = clock
        self._group_seconds = group_seconds
        self._repeat_seconds = repeat_seconds
        self._situation = Situation()
        self._changed = {receiver.name: asyncio.Event() for receiver in receivers}
        self._sent: dict[tuple[str, str], SentGroup] = {
            key: sent for key, sent in store.sent().items() if key[0] in self._changed
        }
        counted = Counter(
            "gpuyard_alert_notifications", "Notifications of alerts.", ["receiver", "result"], registry=registry
        )
        self._counts = {
            (receiver.name, result): counted.labels(receiver.name, result)
            for receiver in receivers
            for result in ("delivered", "failed")
        }

    def update(self, situation: Situation) -> None:
        """Take note of what is true now."""
        self._situation = situation
        for changed in self._changed.values():
            changed.set()

    async def run(self) -> None:
        """Serve all receivers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for receiver in self._receivers:
                group.create_task(self._serve(receiver))

    async def _serve(self, receiver: Receiver) -> None:
        changed, backoff = self._changed[receiver.name], FIRST_BACKOFF_SECONDS
        while True:
            await changed.wait()
            changed.clear()
            try:
                await self._tell(receiver)
            except NotDelivered as error:
                self._counts[receiver.name, "failed"].inc()
                log.warning("notification_failed", receiver=receiver.name, message=str(error), retry_seconds=backoff)
                await asyncio.sleep(backoff)
                changed.set()
                backoff = min(2 * backoff, LONGEST_BACKOFF_SECONDS)
            else:
                backoff = FIRST_BACKOFF_SECONDS

    async def _tell(self, receiver: Receiver) -> None:
        """Send every notification that is due, each made from what is true when it is sent."""
        mine = {key: sent for key, sent in self._sent.items() if key[0] == receiver.name}
        groups, turns = dict.fromkeys(self._situation.to_tell), TimeSlicer()
        for sent in mine.values():
            groups.update(dict.fromkeys(map(group_of, sent.firing)))
            if turns.due():
                await turns.give()
        for group in groups:
            if turns.due():
                await turns.give()
            due = self._due(receiver, group)
            if due is None:
                continue
            notification, believed = due
            if notification.firing or receiver.send_resolved:
                try:
                    await receiver.send(notification)
                except NotDelivered:
                    raise
                except Exception as error:  # a receiver must not end the others
                    log.exception("notification_crashed", receiver=receiver.name)
                    raise NotDelivered("Internal error; see the log.") from error
                self._counts[receiver.name, "delivered"].inc()
            key = (receiver.name, group_key(group))
            self._sent[key] = SentGroup(self._clock(), believed)
            await self._write(key, self._sent[key])
        for key, sent in mine.items():  # those about which it believes nothing, when their interval is over
            if self._sent.get(key) is sent and not sent.firing and self._clock() - sent.at >= self._group_seconds:
                del self._sent[key]
                await self._write(key, None)

    def _due(self, receiver: Receiver, group: GroupLabels) -> tuple[Notification, tuple[Alert, ...]] | None:
        """Return what has to be sent now, and what the receiver will believe to fire then; None: nothing."""
        now, here = self._clock(), self._situation
        sent = self._sent.get((receiver.name, group_key(group)), NOTHING_SENT)
        known = {alert.id: alert for alert in sent.firing}
        firing = here.to_tell.get(group, [])
        resolved = tuple(
            here.resolved.get(id_) or replace(alert, status=AlertStatus.RESOLVED, resolved_at=now)
            for id_, alert in known.items()
            if id_ not in here.firing
        )
        news = bool(resolved) or any(id_ not in known or known[id_].fired_at != alert.fired_at for id_, alert in firing)
        wait = self._group_seconds if news else self._repeat_seconds
        if not (news or firing) or now - sent.at < wait:
            return None
        told = tuple(alert for _, alert in firing)
        muted = [alert for id_, alert in known.items() if id_ in here.firing and id_ in here.muted]
        return Notification(receiver.name, group, told, resolved), (*told, *muted)

    async def _write(self, key: tuple[str, str], sent: SentGroup | None) -> None:
        with suppress(StoreError):  # without it, a restart may repeat a notification
            await self._pool.run(self._store.keep_sent, *key, sent)
