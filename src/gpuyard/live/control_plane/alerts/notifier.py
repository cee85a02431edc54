"""Tell receivers what fires, each in a task of its own.

The notifier compares what a receiver was last told with what is true now, and sends the difference. So nothing waits in
a queue: while a receiver is away, newer states replace older ones, an alert that came and went is never told, and a
restart neither repeats nor forgets. Memory is bounded by the number of alerts.

    first notification of a group     at once
    a change within the group         at once, but not within `group_interval` of the last notification
    nothing changed                   again after `repeat_interval`, as long as it fires
    sending a group fails             again after 1, 2, 4 … 300 seconds, with what is true then

A group that a receiver refuses does not delay its other groups: each group has waiting times of its own.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter

from gpuyard.live.control_plane.alerts.receivers.notification import (
    SEND_SECONDS,
    NotDelivered,
    Notification,
    Receiver,
    group_key,
)
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


@dataclass(frozen=True, slots=True)
class Retry:
    """When a group that could not be sent is tried again."""

    at: float
    seconds: float
    """The time that it waits for."""


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
        self._told: dict[tuple[str, str], tuple[SentGroup, frozenset[GroupLabels]]] = {}
        """For entries of `_sent`: the labels of their alerts."""
        self._unwritten: dict[tuple[str, str], SentGroup | None] = {}
        """Entries of `_sent` that are not in the file yet; None: to be deleted there."""
        self._retries: dict[tuple[str, str], Retry] = {}
        counted = Counter(
            "gpuyard_alert_notifications", "Notifications of alerts.", ["receiver", "result"], registry=registry
        )
        self._counts = {
            (receiver.name, result): counted.labels(receiver.name, result)
            for receiver in receivers
            for result in ("delivered", "failed")
        }

    def adopt(self, sent: Iterable[tuple[str, str, SentGroup]]) -> None:
        """Continue with what another scheduler has sent."""
        before = self._sent
        self._sent = {(receiver, group): told for receiver, group, told in sent if receiver in self._changed}
        self._unwritten = {**dict.fromkeys(before), **self._sent}

    def sent(self) -> tuple[tuple[str, str, SentGroup], ...]:
        """Return what each receiver was last told: receiver, group, and the alerts."""
        return tuple((*key, told) for key, told in self._sent.items())

    def update(self, situation: Situation) -> None:
        """Take note of what is true now."""
        self._situation = situation
        for changed in self._changed.values():
            changed.set()

    def sent_to(self, alert: Alert) -> list[str]:
        """Return the receivers that were told that an alert fires."""
        group = group_key(group_of(alert))
        return [one.name for one in self._receivers if alert.labels in self._labels_told((one.name, group))]

    def _labels_told(self, key: tuple[str, str]) -> frozenset[GroupLabels]:
        """Return the labels of the alerts that a receiver was told about a group; a long list asks for each alert."""
        sent, known = self._sent.get(key), self._told.get(key)
        if sent is None:
            self._told.pop(key, None)
            return frozenset()
        if known is None or known[0] is not sent:
            known = self._told[key] = (sent, frozenset(alert.labels for alert in sent.firing))
        return known[1]

    async def run(self) -> None:
        """Serve all receivers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for receiver in self._receivers:
                group.create_task(self._serve(receiver))

    async def _serve(self, receiver: Receiver) -> None:
        changed = self._changed[receiver.name]
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._next_retry(receiver)):
                    await changed.wait()
            changed.clear()
            await self._tell(receiver)

    def _next_retry(self, receiver: Receiver) -> float | None:
        """Return the seconds until a group is tried again; None: no group waits for that."""
        instants = [retry.at for key, retry in self._retries.items() if key[0] == receiver.name]
        return max(0.0, min(instants) - self._clock()) if instants else None

    async def _tell(self, receiver: Receiver) -> None:
        """Send every notification that is due, each made from what is true when it is sent."""
        await self._write(receiver)
        mine = {key: sent for key, sent in self._sent.items() if key[0] == receiver.name}
        groups, turns = dict.fromkeys(self._situation.to_tell), TimeSlicer()
        for sent in mine.values():
            groups.update(dict.fromkeys(map(group_of, sent.firing)))
            if turns.due():
                await turns.give()
        by_key = {(receiver.name, group_key(group)): group for group in groups}
        self._retries = {key: retry for key, retry in self._retries.items() if key in by_key or key[0] != receiver.name}
        began, failed = self._clock(), list[tuple[str, NotDelivered]]()
        for key, group in sorted(by_key.items(), key=lambda each: each[0] in self._retries):
            if turns.due():
                await turns.give()
            if key in self._retries and self._clock() < self._retries[key].at:
                continue
            try:
                await self._tell_group(receiver, key, group)
            except NotDelivered as error:
                failed.append((key[1], error))
                self._retries[key] = self._later(key)
                if self._clock() - began >= SEND_SECONDS:  # it hangs: there may be news that are more urgent
                    self._changed[receiver.name].set()
                    break
            else:
                self._retries.pop(key, None)
        self._log(receiver, failed)
        for key, sent in mine.items():  # those about which it believes nothing, when their interval is over
            if self._sent.get(key) is sent and not sent.firing and self._clock() - sent.at >= self._group_seconds:
                del self._sent[key]
                self._unwritten[key] = None
        await self._write(receiver)

    async def _tell_group(self, receiver: Receiver, key: tuple[str, str], group: GroupLabels) -> None:
        due = self._due(receiver, group)
        if due is None:
            return
        notification, sent = due
        if notification is not None:
            try:
                await receiver.send(notification)
            except NotDelivered:
                self._counts[receiver.name, "failed"].inc()
                raise
            except Exception as error:  # a receiver must not end the others
                self._counts[receiver.name, "failed"].inc()
                log.exception("notification_crashed", receiver=receiver.name)
                raise NotDelivered("Internal error; see the log.") from error
            self._counts[receiver.name, "delivered"].inc()
            sent = SentGroup(self._clock(), sent.firing)
        self._sent[key] = self._unwritten[key] = sent
        await self._write(receiver)

    def _due(self, receiver: Receiver, group: GroupLabels) -> tuple[Notification | None, SentGroup] | None:
        """Return what has to be sent now and what the receiver was told then; None: nothing changes.

        A receiver that does not want to know of resolved alerts forgets them without a notification.
        """
        now, here = self._clock(), self._situation
        sent = self._sent.get((receiver.name, group_key(group)), NOTHING_SENT)
        known = {alert.id: alert for alert in sent.firing}
        firing = here.to_tell.get(group, [])
        ended = [id_ for id_ in known if id_ not in here.firing]
        resolved = tuple(
            here.resolved.get(id_) or replace(known[id_], status=AlertStatus.RESOLVED, resolved_at=now)
            for id_ in (ended if receiver.send_resolved else ())
        )
        news = bool(resolved) or any(id_ not in known or known[id_].fired_at != alert.fired_at for id_, alert in firing)
        wait = self._group_seconds if news else self._repeat_seconds
        if (news or firing) and now - sent.at >= wait:
            told = tuple(alert for _, alert in firing)
            muted = [alert for id_, alert in known.items() if id_ in here.firing and id_ in here.muted]
            return Notification(receiver.name, group, told, resolved), SentGroup(now, (*told, *muted))
        if ended and not receiver.send_resolved:
            return None, SentGroup(sent.at, tuple(alert for id_, alert in known.items() if id_ not in ended))
        return None

    def _later(self, key: tuple[str, str]) -> Retry:
        before = self._retries.get(key)
        seconds = FIRST_BACKOFF_SECONDS if before is None else min(2 * before.seconds, LONGEST_BACKOFF_SECONDS)
        return Retry(self._clock() + seconds, seconds)

    def _log(self, receiver: Receiver, failed: Sequence[tuple[str, NotDelivered]]) -> None:
        """Log groups that could not be sent: one line for all, because a receiver that is away refuses all of them."""
        if failed:
            group, error = failed[0]
            soonest = min(self._retries[receiver.name, each].seconds for each, _ in failed)
            log.warning(
                "notification_failed",
                receiver=receiver.name,
                message=str(error),
                group=group,
                failed=len(failed),
                retry_seconds=soonest,
            )

    async def _write(self, receiver: Receiver) -> None:
        """Write what the receiver was told. What cannot be written is tried again with the next situation."""
        for key in [key for key in self._unwritten if key[0] == receiver.name]:
            sent = self._unwritten[key]
            try:
                await self._pool.run(self._store.keep_sent, *key, sent)
            except StoreError:  # until it succeeds, a restart may repeat a notification
                return
            del self._unwritten[key]
