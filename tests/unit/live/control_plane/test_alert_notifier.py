"""The notifier: who is told what, and when. Time passes by calls; receivers are real servers or objects that fail."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gpuyard.live.control_plane.alerts import notifier as notifier_module
from gpuyard.live.control_plane.alerts.notifier import Notifier, Situation
from gpuyard.live.control_plane.alerts.receivers.notification import SEND_SECONDS, NotDelivered, Notification
from gpuyard.live.control_plane.alerts.receivers.webhook import Webhook
from gpuyard.live.control_plane.alerts.rules.rule import Alert, AlertStatus, Severity
from gpuyard.live.control_plane.alerts.store import AlertStore
from gpuyard.live.control_plane.stores.database import StoreFull
from gpuyard.live.control_plane.worker_threads import WorkerPool
from tests.unit.live.control_plane.receiving import until, webhook_server


def alert(gpu: int, node: str = "n1", *, fired_at: float = 10.0, resolved_at: float | None = None) -> Alert:
    status = AlertStatus.FIRING if resolved_at is None else AlertStatus.RESOLVED
    labels = (("gpu", f"{node}/{gpu}"), ("node", node))
    return Alert(
        "gpu_hot", labels, status, Severity.WARNING, "It is hot.", 90.0, 0.0, 10.0, 10.0, fired_at, resolved_at
    )


def situation(*alerts: Alert, muted: tuple[Alert, ...] = ()) -> Situation:
    made = Situation({each.id for each in muted})
    for each in alerts:
        made.add(each.id, each)
    return made


class Recorder:
    """A receiver that notes what it is told, as (status, numbers of firing GPUs, numbers of resolved GPUs)."""

    def __init__(self, name: str = "ops", *, send_resolved: bool = True) -> None:
        self.name = name
        self.send_resolved = send_resolved
        self.told: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = []
        self.failing = False
        self.refuses = ""
        """A node whose notifications it refuses."""
        self.hangs = False
        self.tries = 0

    async def send(self, notification: Notification) -> None:
        self.tries += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.failing or dict(notification.group).get("node") == self.refuses:
            raise NotDelivered("It is away.")
        gpus = [
            tuple(dict(each.labels)["gpu"] for each in side) for side in (notification.firing, notification.resolved)
        ]
        self.told.append((notification.status, *gpus))  # type: ignore[arg-type]


class Yard:
    """A notifier under a clock that the test moves."""

    def __init__(
        self, *receivers: Recorder | Webhook, file: Path | None = None, clock: Callable[[], float] | None = None
    ) -> None:
        self.now = 1_000.0
        self.store = AlertStore.open(file)
        self.notifier = Notifier(
            receivers,
            self.store,
            WorkerPool("alerts", 1),
            clock=clock or (lambda: self.now),
            group_seconds=60.0,
            repeat_seconds=3600.0,
            registry=CollectorRegistry(),
        )
        self.receivers = receivers

    async def after(self, seconds: float, now_true: Situation) -> None:
        """Let time pass, and let every receiver that does not hang be told."""
        self.now += seconds
        self.notifier.update(now_true)
        for receiver in self.receivers:
            await self.notifier._tell(receiver)


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await story()

    asyncio.run(bounded())


def test_an_alert_counts_as_sent_when_a_receiver_was_told_and_not_before() -> None:
    async def story() -> None:
        ops, away = Recorder(), Recorder("away")
        away.failing = True
        yard = Yard(ops, away)
        first, second = alert(0), alert(1)
        assert yard.notifier.sent_to(first) == []
        await yard.after(0, situation(first, second, muted=(second,)))
        assert (yard.notifier.sent_to(first), yard.notifier.sent_to(second)) == (["ops"], [])
        away.failing = False
        await yard.after(60, situation(first, second))
        assert yard.notifier.sent_to(first) == yard.notifier.sent_to(second) == ["ops", "away"]
        await yard.after(60, situation())
        assert yard.notifier.sent_to(first) == []
        assert Yard().notifier.sent_to(first) == []

    play(story)


def test_a_group_is_told_at_once_changes_after_an_interval_and_repetitions_later() -> None:
    async def story() -> None:
        ops = Recorder()
        yard = Yard(ops)
        await yard.after(0, situation(alert(0), alert(1)))
        assert ops.told == [("firing", ("n1/0", "n1/1"), ())]
        await yard.after(30, situation(alert(0), alert(1), alert(2)))
        assert len(ops.told) == 1, "it was told 30 s ago"
        await yard.after(30, situation(alert(0), alert(1), alert(2)))
        assert ops.told[1:] == [("firing", ("n1/0", "n1/1", "n1/2"), ())]
        await yard.after(3599, situation(alert(0), alert(1), alert(2)))
        assert len(ops.told) == 2
        await yard.after(1, situation(alert(0), alert(1), alert(2)))
        assert len(ops.told) == 3

    play(story)


def test_alerts_of_different_nodes_are_different_groups() -> None:
    async def story() -> None:
        ops = Recorder()
        await Yard(ops).after(0, situation(alert(0), alert(0, "n2"), alert(1, "n2")))
        assert ops.told == [("firing", ("n1/0",), ()), ("firing", ("n2/0", "n2/1"), ())]

    play(story)


def test_resolved_alerts_are_told_once_also_when_they_are_no_longer_listed() -> None:
    async def story() -> None:
        ops, quiet = Recorder(), Recorder("quiet", send_resolved=False)
        yard = Yard(ops, quiet)
        await yard.after(0, situation(alert(0), alert(1)))
        await yard.after(60, situation(alert(0, resolved_at=1_050.0), alert(1)))
        await yard.after(60, situation())
        await yard.after(60, situation())
        await yard.after(4000, situation())
        assert ops.told[1:] == [("firing", ("n1/1",), ("n1/0",)), ("resolved", (), ("n1/1",))]
        assert quiet.told == [("firing", ("n1/0", "n1/1"), ())]
        assert yard.store.sent() == {}, "nothing is kept for ever"

    play(story)


def test_a_receiver_that_does_not_want_resolved_alerts_is_told_only_what_fires() -> None:
    async def story() -> None:
        quiet = Recorder("quiet", send_resolved=False)
        yard = Yard(quiet)
        await yard.after(0, situation(alert(0), alert(1)))
        await yard.after(1800, situation(alert(0, resolved_at=1_050.0), alert(1)))
        assert len(quiet.told) == 1, "an end is no news for it"
        await yard.after(1800, situation(alert(1)))
        assert quiet.told[1:] == [("firing", ("n1/1",), ())], "the end did not delay the repetition"
        await yard.after(60, situation(alert(0, fired_at=4_700.0), alert(1)))
        assert quiet.told[2:] == [("firing", ("n1/0", "n1/1"), ())], "it fires again"
        await yard.after(60, situation(alert(0, resolved_at=4_750.0), alert(1), alert(2)))
        assert quiet.told[3:] == [("firing", ("n1/1", "n1/2"), ())]

    play(story)


def test_an_alert_that_resolves_and_fires_again_is_news() -> None:
    async def story() -> None:
        ops = Recorder()
        yard = Yard(ops)
        await yard.after(0, situation(alert(0)))
        await yard.after(100, situation(alert(0, fired_at=1_090.0)))
        assert len(ops.told) == 2

    play(story)


def test_silenced_alerts_are_not_told_and_a_silence_does_not_resolve_them() -> None:
    async def story() -> None:
        ops = Recorder()
        yard = Yard(ops)
        await yard.after(0, situation(alert(0), alert(1), muted=(alert(1),)))
        assert ops.told == [("firing", ("n1/0",), ())]
        await yard.after(100, situation(alert(0), alert(1), muted=(alert(0), alert(1))))
        await yard.after(9000, situation(alert(0), alert(1), muted=(alert(0), alert(1))))
        assert len(ops.told) == 1
        await yard.after(100, situation(alert(0), alert(1), muted=(alert(0),)))
        assert ops.told[1:] == [("firing", ("n1/1",), ())]
        await yard.after(100, situation(alert(1)))
        assert ops.told[2:] == [("firing", ("n1/1",), ("n1/0",))]

    play(story)


def test_a_restart_neither_repeats_nor_forgets(tmp_path: Path) -> None:
    async def story() -> None:
        ops = Recorder()
        yard = Yard(ops, file=tmp_path / "alerts.sqlite")
        await yard.after(0, situation(alert(0)))
        yard.store.close()
        again = Recorder()
        later = Yard(again, file=tmp_path / "alerts.sqlite")
        await later.after(100, situation(alert(0)))
        assert again.told == []
        await later.after(0, situation())
        assert again.told == [("resolved", (), ("n1/0",))]

    play(story)


def test_a_receiver_that_was_away_is_told_the_newest_only() -> None:
    async def story() -> None:
        ops = Recorder()
        yard = Yard(ops)
        ops.failing = True
        for count in range(1, 6):
            await yard.after(100, situation(*(alert(gpu) for gpu in range(count))))
        assert ops.tries == 5
        ops.failing = False
        await yard.after(100, situation(alert(7)))
        assert ops.told == [("firing", ("n1/7",), ())]

    play(story)


def test_a_message_that_is_refused_does_not_hold_up_the_other_groups_of_its_receiver() -> None:
    async def story() -> None:
        ops = Recorder()
        ops.refuses = "n1"
        yard = Yard(ops)
        for _ in range(12):
            await yard.after(300, situation(alert(0)))
        await yard.after(1, situation(alert(0), alert(0, "n2"), alert(0, "n3")))
        assert ops.told == [("firing", ("n2/0",), ()), ("firing", ("n3/0",), ())], "at once, although n1 is refused"
        ops.refuses = ""
        await yard.after(298, situation(alert(0), alert(0, "n2"), alert(0, "n3")))
        assert len(ops.told) == 2, "n1 waits for its own time"
        await yard.after(1, situation(alert(0), alert(0, "n2"), alert(0, "n3")))
        assert ops.told[2:] == [("firing", ("n1/0",), ())]

    play(story)


def test_a_receiver_that_hangs_is_told_new_alerts_before_those_that_failed() -> None:
    class Slow(Recorder):
        async def send(self, notification: Notification) -> None:
            self.told.append((dict(notification.group)["node"], (), ()))
            yard.now += SEND_SECONDS
            yard.notifier.update(situation(*(alert(0, f"n{node}") for node in range(5)), alert(0, "new")))
            raise NotDelivered("It did not answer.")

    slow = Slow()
    yard = Yard(slow)

    async def story() -> None:
        await yard.after(0, situation(alert(0, "n0")))
        await yard.after(0, situation(alert(0, "new"), alert(0, "n0")))
        assert [node for node, _, _ in slow.told] == ["n0", "new"], "one try in each round, the new group first"

    play(story)


def test_what_was_told_while_the_disk_was_full_is_written_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreFull

    async def story() -> None:
        ops = Recorder()
        yard = Yard(ops, file=tmp_path / "alerts.sqlite")
        with monkeypatch.context() as broken:
            broken.setattr(yard.store, "keep_sent", full)
            await yard.after(0, situation(alert(0), alert(0, "n2")))
            assert len(ops.told) == 2
            assert yard.store.sent() == {}
        await yard.after(5, situation(alert(0), alert(0, "n2")))
        assert len(yard.store.sent()) == 2
        yard.store.close()
        again = Recorder()
        later = Yard(again, file=tmp_path / "alerts.sqlite")
        await later.after(100, situation(alert(0), alert(0, "n2")))
        assert again.told == []

    play(story)


def test_an_alert_that_came_and_went_while_the_receiver_was_away_is_never_told() -> None:
    async def story() -> None:
        ops = Recorder()
        yard = Yard(ops)
        ops.failing = True
        await yard.after(0, situation(alert(0)))
        assert ops.tries == 1
        ops.failing = False
        await yard.after(100, situation(alert(0, resolved_at=1_050.0)))
        assert ops.told == []

    play(story)


def test_a_receiver_that_hangs_does_not_delay_another_one() -> None:
    async def story() -> None:
        stuck, ops = Recorder("stuck"), Recorder()
        stuck.hangs = True
        yard = Yard(stuck, ops)
        running = asyncio.create_task(yard.notifier.run())
        yard.notifier.update(situation(alert(0)))
        await until(lambda: len(ops.told) == 1, "the other one is told")
        assert stuck.tries == 1
        running.cancel()

    play(story)


def test_a_failing_receiver_is_tried_again_after_growing_times(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(notifier_module, "FIRST_BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(notifier_module, "LONGEST_BACKOFF_SECONDS", 0.05)
    monkeypatch.setattr(notifier_module.log, "warning", lambda *_, **told: waits.append(told["retry_seconds"]))

    async def story() -> None:
        with webhook_server() as server:
            server.status = 500
            yard = Yard(Webhook("ops", server.url), clock=time.time)
            running = asyncio.create_task(yard.notifier.run())
            yard.notifier.update(situation(alert(0)))
            await until(lambda: len(waits) >= 5, "it fails")
            server.status = 200
            await until(lambda: len(server.bodies) == 1, "it is told in the end")
            running.cancel()

    play(story)
    assert waits[:5] == [0.01, 0.02, 0.04, 0.05, 0.05]


def test_a_bug_in_one_receiver_does_not_end_the_others() -> None:
    class Broken(Recorder):
        async def send(self, notification: Notification) -> None:
            raise RuntimeError(notification.status)

    async def story() -> None:
        ops = Recorder()
        yard = Yard(Broken("broken"), ops)
        running = asyncio.create_task(yard.notifier.run())
        yard.notifier.update(situation(alert(0)))
        await until(lambda: len(ops.told) == 1, "the other one is told")
        yard.now += 100
        yard.notifier.update(situation(alert(1)))
        await until(lambda: len(ops.told) == 2, "and again")
        running.cancel()

    play(story)
