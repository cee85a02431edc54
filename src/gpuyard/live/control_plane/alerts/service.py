"""Alerts of a running scheduler: evaluated periodically, listed, silenced, kept over restarts, passed to the notifier."""

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Callable, Sequence

import structlog
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.values import TenantId
from gpuyard.core.journal.records import Record
from gpuyard.live.control_plane.alerts.notifier import Notifier, Situation
from gpuyard.live.control_plane.alerts.observer import Observed, Observer
from gpuyard.live.control_plane.alerts.options import AlertOptions
from gpuyard.live.control_plane.alerts.rules.evaluate import NO_DATA_SECONDS, evaluating
from gpuyard.live.control_plane.alerts.rules.rule import Alert, AlertStatus, Labels, Notice, Sample
from gpuyard.live.control_plane.alerts.shared import SharedAlerts, read_shared, write_shared
from gpuyard.live.control_plane.alerts.silences import MOST_SILENCES, Silence, known_of
from gpuyard.live.control_plane.alerts.store import AlertStore, HistoryEntry, tenant_of
from gpuyard.live.control_plane.stores.database import StoreError
from gpuyard.live.control_plane.stores.documents import Document
from gpuyard.live.control_plane.time_slices import TimeSlicer
from gpuyard.live.control_plane.worker_threads import WorkerPool

_ORDER = (AlertStatus.FIRING, AlertStatus.NO_DATA, AlertStatus.PENDING, AlertStatus.RESOLVED)
EVALUATED = "evaluated_at"
"""Name of the figure that says when rules were last evaluated."""
WRITE_SECONDS = 30.0
"""Figures are written this often if nothing else is."""
SHARE_SECONDS = 2.0
"""How often changes are written for the next scheduler."""
MOST_LOGGED = 50
"""Maximum number of alerts that are logged one by one in an evaluation."""
log = structlog.get_logger()


class TooManySilences(Exception):
    """There is no room for another silence."""


class Alerts:
    """The alerts of a scheduler."""

    def __init__(
        self,
        observer: Observer,
        options: AlertOptions,
        *,
        clock: Callable[[], float],
        registry: CollectorRegistry,
        document: Document | None = None,
    ) -> None:
        """`document`: where the next scheduler that leads finds what it has to know; None: there is only this one."""
        self.options = options
        self._observer = observer
        self._clock = clock
        self._document = document
        self._store = AlertStore.open(options.file)
        if self._store.note:
            log.warning("alerts_reset", message=self._store.note)
        self._pool = WorkerPool("alerts", 1)
        self._alerts: dict[str, dict[Labels, Alert]] = {name: {} for name in options.rules}
        self._by_id: dict[str, Alert] = {}
        self._counted: dict[str, Counter[AlertStatus]] = {}
        """Number of alerts by tenant and status; tenant empty: alerts about the cluster."""
        self._muted: dict[str, str] = {}
        """Ids of alerts that are not sent: the id of the silence, or empty if another alert inhibits them."""
        self._evaluating = asyncio.Lock()
        self._muting = asyncio.Lock()
        self._silences = {silence.id: silence for silence in self._store.silences()}
        self._ended_silences: set[str] = set()
        """Those whose rows are not deleted yet."""
        self._unwritten: dict[str, Alert | None] = {}
        """Alerts by id whose rows have to be written, or deleted: None."""
        self._unwritten_history: deque[tuple[float, Notice]] = deque(maxlen=options.history)
        self._written_at = float("-inf")
        self._silencing = 0
        """Number of silences that are being written."""
        self._restore()
        self._notifier = Notifier(
            options.receivers,
            self._store,
            self._pool,
            clock=clock,
            group_seconds=options.group_seconds,
            repeat_seconds=options.repeat_seconds,
            registry=registry,
        )

    def _restore(self) -> None:
        """Take the alerts of the last scheduler. The time of its absence is not time without data."""
        now, figures = self._clock(), self._store.figures()
        absent = now - figures.get(EVALUATED, float("-inf")) > NO_DATA_SECONDS
        for alert in self._store.alerts():
            rule = self.options.rules.get(alert.rule)
            lapsed = absent and alert.fired_at is None  # its condition may have ceased to hold meanwhile
            if lapsed or rule is None or not rule.enabled or not self.options.enabled:
                self._unwritten[alert.id] = None
            else:
                self._alerts[alert.rule][alert.labels] = _seen(alert, now)
        self._observer.resume(figures, long_ago=absent)
        for alerts in self._alerts.values():
            for alert in alerts.values():
                _index(alert, self._by_id, self._counted)

    def _adopt(self, shared: SharedAlerts) -> None:
        """Continue with the alerts of the scheduler that has led before, instead of those in the own file."""
        now = self._clock()
        self._silences = {silence.id: silence for silence in shared.silences}
        self._unwritten = dict.fromkeys(self._by_id)
        self._alerts, self._by_id, self._counted = {name: {} for name in self.options.rules}, {}, {}
        for alert in shared.alerts:
            rule = self.options.rules.get(alert.rule)
            if rule is not None and rule.enabled:
                kept = self._alerts[alert.rule][alert.labels] = _seen(alert, now)
                self._unwritten[kept.id] = kept
                _index(kept, self._by_id, self._counted)
        self._notifier.adopt(shared.sent)

    def _shared(self) -> SharedAlerts:
        return SharedAlerts(tuple(self._silences.values()), tuple(self._by_id.values()), self._notifier.sent())

    # --- running -----------------------------------------------------------------------------------------------------

    def hear(self, records: Sequence[Record]) -> None:
        """Take note of committed events."""
        self._observer.hear(records)

    async def run(self) -> None:
        """Evaluate and notify until cancelled."""
        if not self.options.enabled:
            await self._keep({}, (), self._clock())  # deletes those of before
            return
        if self._document is not None and (shared := await asyncio.to_thread(read_shared, self._document)) is not None:
            self._adopt(shared)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._notifier.run())
            group.create_task(self._evaluate_periodically())
            if self._document is not None:
                group.create_task(self._share_periodically(self._document))

    def close(self) -> None:
        """Close the file. The opener of the scheduler calls it when the scheduler has ended."""
        self._pool.close()
        self._store.close()

    async def _evaluate_periodically(self) -> None:
        while True:
            try:
                await self.evaluate_now()
            except Exception:  # alerts must not end the scheduler
                log.exception("alert_evaluation_failed")
            await asyncio.sleep(self.options.interval_seconds)

    async def _share_periodically(self, document: Document) -> None:
        """Write what has changed for the next scheduler: alerts that fire or end, and what was sent."""
        written = None
        while True:
            await asyncio.sleep(SHARE_SECONDS)
            present = frozenset((alert.id, alert.status, alert.fired_at) for alert in self._by_id.values())
            state = (present, frozenset(self._silences), self._notifier.sent())
            if state != written:
                try:
                    await asyncio.to_thread(write_shared, document, self._shared())
                    written = state
                except GpuyardError as error:
                    log.warning("alerts_write_failed", message=str(error))

    async def evaluate_now(self) -> None:
        """Evaluate all rules once, in slices: other work of the event loop runs in between."""
        async with self._evaluating:
            now, before = self._clock(), self._by_id
            notices = await self._evaluate(await self._observer.look(now), now)
            self._drop_ended_silences(now)
            await self._mute()
            await self._log(notices, now)
            await self._keep(before, notices, now)
            await self._pass_on()

    async def _pass_on(self) -> None:
        """Give the notifier what is true now."""
        situation, turns = Situation(self._muted.keys()), TimeSlicer()
        for id_, alert in self._by_id.items():
            situation.add(id_, alert)
            if turns.due():
                await turns.give()
        self._notifier.update(situation)

    async def _log(self, notices: Sequence[Notice], now: float) -> None:
        """Log alerts that fire or resolve: the first ones each, because a line for each of 1,600 GPUs takes long."""
        turns = TimeSlicer()
        told = [each for each in notices if each.alert.fired_at == now or each.status is AlertStatus.RESOLVED]
        for notice in told[:MOST_LOGGED]:
            _log(notice, muted=notice.alert.id in self._muted)
            if turns.due():
                await turns.give()
        if len(told) > MOST_LOGGED:
            log.warning("alerts_changed", count=len(told), message="See `gpuyard alerts` for all of them.")

    async def _evaluate(self, observed: Observed, now: float) -> list[Notice]:
        """Evaluate all rules. Readers see the alerts of before until all rules are done."""
        alerts: dict[str, dict[Labels, Alert]] = {name: {} for name in self.options.rules}
        by_id: dict[str, Alert] = {}
        counted: dict[str, Counter[AlertStatus]] = {}
        notices: list[Notice] = []
        turns = TimeSlicer()
        for name, rule in self.options.rules.items():
            if not rule.enabled:
                continue
            for _ in evaluating(rule, self._samples(name, observed), self._alerts[name], now, alerts[name], notices):
                if turns.due():
                    await turns.give()
            for alert in alerts[name].values():
                _index(alert, by_id, counted)
                if turns.due():
                    await turns.give()
        self._alerts, self._by_id, self._counted = alerts, by_id, counted
        return notices

    def _samples(self, rule: str, observed: Observed) -> list[Sample]:
        if rule in observed.unknown:
            return [Sample(labels, None) for labels in self._alerts[rule]]
        return observed.by_rule.get(rule, [])

    async def _mute(self) -> None:
        """Find alerts that are silenced, and those that follow from another alert of their node."""
        async with self._muting:  # the last one to begin sees all silences
            self._muted = await self._find_muted()

    async def _find_muted(self) -> dict[str, str]:
        rules, silences = self.options.rules, list(self._silences.values())
        holding = {
            (name, dict(alert.labels).get("node"))
            for name in {rule.inhibited_by for rule in rules.values() if rule.inhibited_by}
            for alert in self._alerts.get(name, {}).values()
            if alert.status in {AlertStatus.PENDING, AlertStatus.FIRING}
        }
        muted: dict[str, str] = {}
        if not silences and not holding:
            return muted
        turns = TimeSlicer()
        for id_, alert in self._by_id.items():
            known = known_of(alert)
            silence = next((each.id for each in silences if each.matches(known)), None)
            if silence is not None:
                muted[id_] = silence
            elif (rules[alert.rule].inhibited_by, known.get("node")) in holding:
                muted[id_] = ""
            if turns.due():
                await turns.give()
        return muted

    async def _keep(self, before: dict[str, Alert], notices: Sequence[Notice], now: float) -> None:
        """Write changes of status, and figures now and then; a value alone is not worth a write.

        What cannot be written, because the disk is full, is written by a later evaluation.
        """
        self._unwritten.update({id_: None for id_ in before if id_ not in self._by_id})
        self._unwritten.update({notice.alert.id: notice.alert for notice in notices})
        self._unwritten_history.extend((now, each) for each in notices if each.status is not AlertStatus.PENDING)
        due = not 0.0 <= now - self._written_at < WRITE_SECONDS
        if not (due or self._unwritten or self._unwritten_history or self._ended_silences):
            return
        figures = {EVALUATED: now, **self._observer.figures()}
        try:
            await self._pool.run(
                self._store.save, self._unwritten, list(self._unwritten_history), figures, self.options.history
            )
            self._unwritten = {}
            self._unwritten_history.clear()
            self._written_at = now
            await self._pool.run(self._store.drop_silences, self._ended_silences)
            self._ended_silences = set()
        except StoreError as error:
            log.warning("alerts_write_failed", message=str(error))

    # --- looking -----------------------------------------------------------------------------------------------------

    def counts(self, sight: TenantId | None = None) -> tuple[int, int]:
        """Return how many alerts fire and how many are pending, of those that one tenant sees (None: of all)."""
        tenants = [tenant for tenant in self._counted if sight is None or tenant in {"", sight}]
        firing, pending = (
            sum(self._counted[tenant][status] for tenant in tenants)
            for status in (AlertStatus.FIRING, AlertStatus.PENDING)
        )
        return firing, pending

    def by_rule(self) -> dict[str, int]:
        """Return the number of firing alerts of every rule."""
        return {
            name: sum(alert.status is AlertStatus.FIRING for alert in alerts.values())
            for name, alerts in self._alerts.items()
        }

    def present(self, sight: TenantId | None = None) -> list[Alert]:
        """Return the alerts that one tenant sees (None: all): the most urgent first, then the newest."""
        seen = [alert for alert in self._by_id.values() if sight is None or tenant_of(alert) in {"", sight}]
        return sorted(seen, key=lambda each: (_ORDER.index(each.status), -each.since, each.id))

    def silenced_by(self, alert: Alert) -> str | None:
        """Return the id of the silence of an alert; empty: another alert inhibits it; None: it is sent."""
        return self._muted.get(alert.id)

    def sent_to(self, alert: Alert) -> list[str]:
        """Return the receivers that were told that an alert fires."""
        return self._notifier.sent_to(alert)

    async def history(self, before: int | None, limit: int, hidden_except: str | None) -> list[HistoryEntry]:
        """Return changes of status, newest first."""
        return await self._pool.run(self._store.history, before, limit, hidden_except)

    # --- silences ----------------------------------------------------------------------------------------------------

    def silences(self) -> list[Silence]:
        """Return the silences that have not ended, the one that ends first at the beginning."""
        self._drop_ended_silences(self._clock())
        return sorted(self._silences.values(), key=lambda each: (each.until, each.id))

    async def silence(self, matchers: tuple[tuple[str, str], ...], until: float, *, by: str, comment: str) -> Silence:
        """Silence matching alerts until then. It is on disk, for all schedulers, when this returns."""
        if len(self._silences) + self._silencing >= MOST_SILENCES:
            raise TooManySilences
        made = Silence(secrets.token_hex(6), matchers, by, self._clock(), until, comment)
        self._silencing += 1
        try:
            if self._document is not None:
                shared = self._shared()
                silences = (*shared.silences, made)
                await asyncio.to_thread(write_shared, self._document, replace(shared, silences=silences))
            await self._pool.run(self._store.keep_silence, made)
        finally:
            self._silencing -= 1
        self._silences[made.id] = made
        await self._mute()
        return made

    async def end_silence(self, id_: str) -> bool:
        """End a silence; return whether there was one."""
        if id_ not in self._silences:
            return False
        await self._pool.run(self._store.drop_silences, [id_])
        self._silences.pop(id_, None)
        if self._document is not None:
            await asyncio.to_thread(write_shared, self._document, self._shared())
        await self._mute()
        return True

    def _drop_ended_silences(self, now: float) -> None:
        """Forget silences that have ended; the next evaluation deletes their rows."""
        ended = [silence.id for silence in self._silences.values() if silence.until <= now]
        for id_ in ended:
            del self._silences[id_]
        self._ended_silences.update(ended)


def _index(alert: Alert, by_id: dict[str, Alert], counted: dict[str, Counter[AlertStatus]]) -> None:
    by_id[alert.id] = alert
    counted.setdefault(tenant_of(alert), Counter())[alert.status] += 1


def _seen(alert: Alert, now: float) -> Alert:
    return alert if alert.status is AlertStatus.RESOLVED else replace(alert, seen_at=now, held_at=now)


def _log(notice: Notice, *, muted: bool) -> None:
    alert = notice.alert
    told = {"rule": alert.rule, "alert": alert.id, "message": alert.summary, "muted": muted, **dict(alert.labels)}
    if notice.status is AlertStatus.FIRING:
        log.warning("alert_fired", **told)
    else:
        log.info("alert_resolved", **told)
