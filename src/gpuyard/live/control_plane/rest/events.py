"""Stream journal events as they become durable, as server-sent events. A client can resume a stream that broke off.

The id of a message is the number of its event. A client that reconnects with `Last-Event-ID` gets the events it missed
from the journal, then new events as they come; every event is sent exactly once. If the journal no longer holds the next
event, or ends before the number that the client sends, a message `Gap` reports this and the stream continues after it. A
client that reads too slowly is disconnected and can resume in the same way. A caller limited to one tenant gets the
events about that tenant's tasks.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from itertools import islice
from typing import cast

from msgspec import Struct

from gpuyard.core.domain import events
from gpuyard.core.domain.errors import EventsRetired
from gpuyard.core.domain.values import TaskId, TenantId
from gpuyard.core.journal.records import Record
from gpuyard.input.strict import WrongRequest
from gpuyard.live.control_plane.access.principal import Action, Principal, may
from gpuyard.live.control_plane.rest.context import AppContext
from gpuyard.live.control_plane.rest.lookup import tenant_of_task
from gpuyard.live.control_plane.rest.query import Parameter, counted
from gpuyard.live.control_plane.rest.request import Request
from gpuyard.live.control_plane.rest.responses import StreamingResponse, encode
from gpuyard.live.wire.event_answers import Fields, event_answer
from gpuyard.live.wire.limits import instant_of
from gpuyard.live.wire.tasks import parse_task_id

KEEP_ALIVE_SECONDS = 15.0
CHUNK = 1000
"""Number of events read from the journal at a time."""
_ALIVE = b": still here\n\n"
_REMEMBERED = 100_000


def _read_task(value: str) -> TaskId:
    try:
        return parse_task_id(value)
    except WrongRequest:
        raise ValueError('it must be the id of a task, such as "task-7"') from None


PARAMETERS = (
    counted("after", "Start after the event with this number, as Last-Event-ID does.", 0, 2**53 - 1),
    Parameter("task", "Only events of this task.", _read_task),
)


class GapData(Struct, frozen=True):
    """The data of the message `Gap`: events are missing."""

    after: int
    """The last event that the client has."""
    next: int
    """The stream continues with this event."""
    message: str


async def get_events(context: AppContext, request: Request) -> StreamingResponse:
    """Stream events after the last event that the client has, or from now on."""
    after = _after(context, request)
    sight = _Sight(context, request.principal, request.query.get("task"))
    return StreamingResponse(
        _events(context, sight, after),
        {"content-type": "text/event-stream", "x-accel-buffering": "no"},
        endless=True,
    )


def _after(context: AppContext, request: Request) -> int:
    last = request.headers.get("last-event-id")
    if last:
        if not (last.isascii() and last.isdigit() and len(last) <= 16):
            message = "Last-Event-ID must be the id of an event that this server sent."
            raise WrongRequest("BadEventId", message, "Last-Event-ID")
        return int(last)
    after: int = request.query.get("after", context.scheduler.loop.committed)
    return after


class _Sight:
    """Selects the events that a caller may see."""

    def __init__(self, context: AppContext, principal: Principal, task: TaskId | None) -> None:
        self._context = context
        self._who = principal
        self._task = task
        self._everything = may(principal, Action.SEE)
        self._tenants: dict[TaskId, TenantId | None] = {}

    async def of(self, records: Sequence[Record]) -> list[Record]:
        """Return the records that the caller may see."""
        if self._everything and self._task is None:
            return list(records)
        return [record for record in records if await self._sees(record.event)]

    async def _sees(self, event: events.Event) -> bool:
        task: TaskId | None = getattr(event, "task", None)
        if task is None or (self._task is not None and task != self._task):
            return False
        if self._everything:
            return True
        tenant = event.spec.tenant if isinstance(event, events.TaskSubmitted) else await self._tenant_of(task)
        return tenant is not None and may(self._who, Action.SEE, tenant)

    async def _tenant_of(self, task: TaskId) -> TenantId | None:
        if task not in self._tenants:
            if len(self._tenants) >= _REMEMBERED:
                self._tenants.clear()
            self._tenants[task] = await tenant_of_task(self._context.scheduler, task)
        return self._tenants[task]


async def _events(context: AppContext, sight: _Sight, after: int) -> AsyncGenerator[bytes, None]:
    scheduler = context.scheduler
    yield b"retry: 2000\n\n"
    if after > scheduler.loop.committed:
        yield _gap(
            after, scheduler.loop.committed + 1, f"Event {after} does not exist; an old copy may have been restored."
        )
        after = scheduler.loop.committed
    while scheduler.loop.committed - after > CHUNK:
        async for chunk, last in _from_journal(context, sight, after, CHUNK):
            after = last
            yield chunk
    live = cast("AsyncGenerator[Sequence[Record], None]", scheduler.stream.listen(KEEP_ALIVE_SECONDS))
    coming = asyncio.ensure_future(anext(live))
    try:
        await asyncio.sleep(0)  # let the listener start; events committed earlier are in the journal
        async for chunk, last in _from_journal(context, sight, after, None):
            after = last
            yield chunk
        while True:
            try:
                records = await coming
            except StopAsyncIteration:
                return
            new = [record for record in records if record.seq > after]
            after = new[-1].seq if new else after
            yield _told(await sight.of(new)) or (b"" if records else _ALIVE)
            if any(isinstance(record.event, events.EpochEnded) for record in new):
                return  # this scheduler stops; the client resumes with the next one
            coming = asyncio.ensure_future(anext(live))
    finally:
        coming.cancel()
        await asyncio.wait((coming,))
        await live.aclose()


async def _from_journal(
    context: AppContext, sight: _Sight, after: int, most: int | None
) -> AsyncGenerator[tuple[bytes, int], None]:
    """Yield messages for the events after a number, with the number of the last event."""
    try:
        records = await _read(context, after, most)
    except EventsRetired as gone:
        last = gone.oldest - 1
        yield _gap(after, gone.oldest, f"Events {after + 1} to {last} have been removed."), last
        records = await _read(context, last, most)
    if records:
        yield _told(await sight.of(records)), records[-1].seq


async def _read(context: AppContext, after: int, most: int | None) -> list[Record]:
    return await context.scheduler.worker_pools.journal.run(
        lambda: list(islice(context.scheduler.stores.journal.read(after), most))
    )


def _gap(after: int, goes_on_with: int, why: str) -> bytes:
    data = GapData(after, goes_on_with, f"{why} The stream continues with event {goes_on_with}.")
    return b"id: %d\nevent: Gap\ndata: %s\n\n" % (goes_on_with - 1, encode(data))


def _data(record: Record) -> Fields:
    """Return the fields of an event as the API names them."""
    told = event_answer(record.event, record.at, record.by)
    return {"seq": record.seq, "at": instant_of(record.at), "by": record.by, **told}


def _told(records: Sequence[Record]) -> bytes:
    return b"".join(
        b"id: %d\nevent: %s\ndata: %s\n\n"
        % (
            record.seq,
            events.name_of(record.event).encode(),
            encode(_data(record)),
        )
        for record in records
    )
