"""The live stream: the state of the cluster once a second, for any number of viewers.

    tick ─► Frame ─┬─► sight "all"     encoded once ─► every administrator and operator
                   └─► sight "lab"     encoded once ─► every member of the tenant lab

A frame is made only while someone watches, and encoded once for all viewers of the same sight, at the first of them that
takes it. Viewers take the newest frame when they are ready for one: a slow viewer skips frames, and nothing is queued for
it. After a skipped frame it gets the holders again, and after a change of the GPUs a snapshot.
"""

import asyncio
from binascii import b2a_base64
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import cached_property

import msgspec
import structlog
from msgspec import UNSET, UnsetType

from gpuyard.core.domain.values import TaskId, TaskStatus, TenantId
from gpuyard.core.journal.records import Record
from gpuyard.live.control_plane.readings import BUSY, EXTERNAL, IDLE, OFFLINE, UNKNOWN_BYTE, Readings, states_of
from gpuyard.live.control_plane.time_slices import TimeSlicer
from gpuyard.live.control_plane.views import NodeView, Views
from gpuyard.live.wire.limits import instant_of
from gpuyard.live.wire.live_answers import AlertCounts, GpuCounts, LiveCard, LiveMessage, NodeCounts, TaskCounts
from gpuyard.live.wire.tasks import format_task_id
from gpuyard.version import __version__

TICK_SECONDS = 1.0
MOST_CHANGED = 200
"""Number of changed tasks that one sample lists."""
CARD_BYTES = 6
_PERCENT = bytes(UNKNOWN_BYTE if half == UNKNOWN_BYTE else (half + 1) // 2 for half in range(256))
"""Half percents to percents."""

log = structlog.get_logger()
_encode = msgspec.json.Encoder().encode
Sight = TenantId | None
"""The tenant whose tasks a viewer sees; None: all."""


def gpu_counts(states: bytes) -> GpuCounts:
    """Count GPUs by state."""
    return GpuCounts(len(states), states.count(IDLE), states.count(BUSY), states.count(EXTERNAL), states.count(OFFLINE))


def node_counts(nodes: Sequence[NodeView]) -> NodeCounts:
    """Count nodes by status."""
    by_status = Counter(node.status for node in nodes)
    away, offline = by_status["away"], by_status["offline"]
    return NodeCounts(len(nodes), len(nodes) - away - offline, away, offline)


def task_counts(views: Views, sight: Sight) -> TaskCounts:
    """Count the open tasks that a viewer may see."""
    return TaskCounts(
        views.open_tasks((TaskStatus.PENDING,), sight),
        views.open_tasks((TaskStatus.RUNNING,), sight),
        views.open_tasks((TaskStatus.SUSPENDED,), sight),
    )


class _Cards:
    """The cards of one generation, made for snapshots only."""

    def __init__(self, readings: Readings) -> None:
        self._cards = readings.cards

    @cached_property
    def answers(self) -> list[LiveCard]:
        """Return the cards as a snapshot lists them."""
        return [
            LiveCard(f"{card.node}/{card.place}", card.node, card.place, card.model, card.memory_mib)
            for card in self._cards
        ]


class _Now:
    """What all sights of one instant have in common."""

    def __init__(self, readings: Readings, views: Views) -> None:
        self.nodes = readings.refresh()
        self.generation = readings.generation
        packed = [readings.packed(node) for node in self.nodes]
        states = b"".join(map(states_of, self.nodes))
        columns = (
            states,
            b"".join(each.columns.utilization for each in packed).translate(_PERCENT),
            b"".join(each.live[0] for each in packed),
            b"".join(each.columns.temperature for each in packed),
        )
        power = b"".join(each.live[1] for each in packed)
        sample = bytearray(CARD_BYTES * len(states))
        for place, column in enumerate((*columns, power[0::2], power[1::2])):
            sample[place::CARD_BYTES] = column
        self.samples = b2a_base64(sample, newline=False).decode("ascii")
        self.gpus = gpu_counts(states)
        self.node_counts = node_counts(self.nodes)
        self._cards = len(states)
        self._held: dict[Sight, dict[int, TaskId]] = {None: {}}
        """The first task on each card that has one, by sight."""
        for card, held in enumerate(held for node in self.nodes for held in node.on_gpu):
            for task in held:
                self._held[None].setdefault(card, task)
                tenant = _tenant(views, task)
                if tenant is not None:
                    self._held.setdefault(tenant, {}).setdefault(card, task)

    def holders(self, sight: Sight) -> list[str | None]:
        """Return the task on each card that a sight shows; of several, the first."""
        found: list[str | None] = [None] * self._cards
        for card, task in self._held.get(sight, {}).items():
            found[card] = format_task_id(task)
        return found


def _tenant(views: Views, task: TaskId) -> TenantId | None:
    view = views.tasks.get(task)
    return None if view is None else view.spec.tenant


class Frame:
    """The state of the cluster at one tick, as one sight shows it. Messages are encoded when the first viewer asks."""

    def __init__(
        self,
        number: int,
        shown: LiveMessage,
        cards: _Cards,
        holders: list[str | None],
        before: "Frame | None",
        changed: dict[TaskId, None],
    ) -> None:
        self.number = number
        self.generation = shown.generation
        self.holders = holders
        self._shown = shown
        self._cards = cards
        self._same_holders = before is not None and before.generation == self.generation and before.holders == holders
        self._changed = changed

    @cached_property
    def snapshot(self) -> bytes:
        """The message for a new viewer, and for all when the cards have changed."""
        return self._message("snapshot", cards=self._cards.answers, holders=self.holders)

    @cached_property
    def sample(self) -> bytes:
        """The message for a viewer that has the frame before."""
        return self._message(
            "sample",
            holders=UNSET if self._same_holders else self.holders,
            changed=[format_task_id(task) for task in self._changed][:MOST_CHANGED],
            more=len(self._changed) > MOST_CHANGED,
        )

    @cached_property
    def sample_after_gap(self) -> bytes:
        """The message for a viewer that has skipped frames."""
        return self._message("sample", holders=self.holders, changed=[], more=True)

    def _message(
        self,
        event: str,
        *,
        cards: list[LiveCard] | UnsetType = UNSET,
        holders: list[str | None] | UnsetType = UNSET,
        changed: list[str] | UnsetType = UNSET,
        more: bool = False,
    ) -> bytes:
        message = msgspec.structs.replace(
            self._shown, cards=cards, holders=holders, changed_tasks=changed, changed_more=True if more else UNSET
        )
        return b"id: %d\nevent: %s\ndata: %s\n\n" % (self.number, event.encode(), _encode(message))


class LiveFeed:
    """Makes frames while someone watches."""

    def __init__(
        self, views: Views, readings: Readings, now: Callable[[], float], alerts: Callable[[Sight], AlertCounts]
    ) -> None:
        self._views = views
        self._readings = readings
        self._now = now
        self._alerts = alerts
        self.build = __version__
        """Shown to viewers: a page that was loaded from another build may load itself again."""
        self._viewers: Counter[Sight] = Counter()
        self._frames: dict[Sight, Frame] = {}
        """The newest frame of each sight that has viewers."""
        self._changed: dict[Sight, dict[TaskId, None]] = {}
        """Tasks that have changed since the last tick, by sight; at most one more than a sample lists."""
        self._number = 0
        self._cards = (0, _Cards(readings))
        """The cards with their generation."""
        self._ticked: dict[Sight, asyncio.Event] = {}
        """Set when the next frame of a sight is made, and then removed."""
        self._ticking: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def viewers(self) -> int:
        """Return the number of viewers."""
        return self._viewers.total()

    @property
    def ticking(self) -> bool:
        """Whether frames are being made."""
        return self._ticking is not None

    @property
    def ticks(self) -> int:
        """Return the number of ticks so far. There are none while nobody watches."""
        return self._number

    def close(self) -> None:
        """End all streams: the scheduler stops."""
        self._closed = True
        for sight in list(self._ticked):
            self._wake(sight)

    def hear(self, records: Sequence[Record]) -> None:
        """Note the tasks of committed events that the views have applied."""
        if not self._viewers:
            return
        for record in records:
            task: TaskId | None = getattr(record.event, "task", None)
            if task is None:
                continue
            tenant = _tenant(self._views, task)
            for sight in (None,) if tenant is None else (None, tenant):
                if sight in self._viewers:
                    changed = self._changed.setdefault(sight, {})
                    if len(changed) <= MOST_CHANGED:
                        changed[task] = None

    async def watch(self, sight: Sight) -> AsyncGenerator[bytes, None]:
        """Yield messages for one viewer: a snapshot, then the newest frame whenever the viewer is ready for one."""
        self._viewers[sight] += 1
        seen: Frame | None = None
        try:
            if self._ticking is None:
                self._ticking = asyncio.create_task(self._keep_ticking())
            if sight not in self._frames:
                self._frames[sight] = self._frame(sight, _Now(self._readings, self._views))
            while not self._closed:
                frame = self._frames[sight]
                if frame is seen:
                    await self._ticked.setdefault(sight, asyncio.Event()).wait()
                    continue
                if seen is None or seen.generation != frame.generation:
                    message = frame.snapshot
                else:
                    message = frame.sample if frame.number == seen.number + 1 else frame.sample_after_gap
                seen = frame
                yield message
        finally:
            self._leave(sight)

    def _leave(self, sight: Sight) -> None:
        self._viewers[sight] -= 1
        if not self._viewers[sight]:
            del self._viewers[sight]
            self._frames.pop(sight, None)
            self._ticked.pop(sight, None)
            self._changed.pop(sight, None)
        if not self._viewers and self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None

    async def _keep_ticking(self) -> None:
        """Tick once a second until cancelled."""
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            due = max(due + TICK_SECONDS, clock())  # after a stall, ticks are left out
            await asyncio.sleep(due - clock())
            try:
                await self.tick()
            except Exception:  # viewers wait for the next tick
                log.exception("live_sample_failed")

    async def tick(self) -> None:
        """Make a frame of every sight that has viewers, and wake its viewers; with many sights, in slices."""
        now, turns = _Now(self._readings, self._views), TimeSlicer()
        self._number += 1
        for sight in list(self._viewers):
            if sight in self._viewers:  # its viewers may have left meanwhile
                self._frames[sight] = self._frame(sight, now)
                self._wake(sight)
            if turns.due():
                await turns.give()

    def _wake(self, sight: Sight) -> None:
        ticked = self._ticked.pop(sight, None)
        if ticked is not None:
            ticked.set()

    def _frame(self, sight: Sight, now: _Now) -> Frame:
        if self._cards[0] != now.generation:
            self._cards = (now.generation, _Cards(self._readings))
        shown = LiveMessage(
            at=instant_of(self._now()),
            build=self.build,
            gpus=now.gpus,
            tasks=task_counts(self._views, sight),
            nodes=now.node_counts,
            alerts=self._alerts(sight),
            generation=now.generation,
            samples=now.samples,
        )
        return Frame(
            self._number,
            shown,
            self._cards[1],
            now.holders(sight),
            self._frames.get(sight),
            self._changed.pop(sight, {}),
        )
