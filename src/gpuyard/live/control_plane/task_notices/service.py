"""Send the messages about tasks that the engine lists as pending, and report each as delivered or given up.

What is pending follows from the journal, so a restarted scheduler or a standby that takes over continues with it. A
message that was sent just before a crash is sent once more: each is delivered at least once. A receiver that refuses is
asked `len(RETRY_SECONDS) + 1` times by one scheduler; a message older than `OLDEST_SECONDS` is given up at its next failure.

A command is a message, too: the node of the last attempt runs it as the user of the task. If it has run, it is over,
whatever its exit code; it is repeated only if the node could not be asked.

Users take turns: who has the fewest messages on the way is next. Commands have lanes of their own, a few for each user and
for each node, so that slow ones delay neither the messages nor the commands of others.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

import structlog
from msgspec import json

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.errors import GpuyardError
from gpuyard.core.domain.events import AttemptStarted, TaskEnded
from gpuyard.core.domain.notice import Moment, PendingNotice, Sender
from gpuyard.core.domain.values import TaskId
from gpuyard.core.engine.state import State
from gpuyard.core.journal.records import Record
from gpuyard.live.control_plane.alerts.receivers.notification import SEND_SECONDS, NotDelivered, one_line
from gpuyard.live.control_plane.alerts.receivers.webhook import post
from gpuyard.live.control_plane.loop import EngineLoop
from gpuyard.live.control_plane.queries import TaskQueries
from gpuyard.live.control_plane.task_notices.message import body_of, sentence_of, variables_of
from gpuyard.live.control_plane.task_notices.policy import NoticePolicy, NotTriedAgain, TargetForbidden, addresses_of
from gpuyard.live.control_plane.views import Views
from gpuyard.live.wire.notices import COMMAND, MAIL
from gpuyard.live.wire.task_answers import TaskAnswer
from gpuyard.live.wire.tasks import format_task_id

RETRY_SECONDS = (2.0, 10.0, 60.0, 300.0)
"""Time before each further try."""
OLDEST_SECONDS = 6 * 3600.0
AT_ONCE = 8
"""Number of messages other than commands that are sent at the same time."""
COMMANDS_AT_ONCE, COMMANDS_OF_USER, COMMANDS_OF_NODE = 256, 4, 4
"""Number of commands at the same time: all, those of one user, those on one node."""
COMMAND_SECONDS = 60.0
"""How long a command may run."""
STORAGE_SECONDS = 5.0
"""Time before another try if the result could not be stored."""

log = structlog.get_logger()
_Key = tuple[TaskId, int, Moment]
RunBeside = Callable[[TaskAnswer, str, Mapping[str, str], float], Awaitable[str]]
"""Runs a command where a task ran, and returns why it failed."""
_decode = json.Decoder(TaskAnswer).decode


@dataclass(frozen=True, slots=True)
class _Tried:
    """Tries of one message by this scheduler."""

    tries: int
    again_at: float
    result: tuple[bool, str] | None = None
    """What is still to be stored: whether it was delivered, and why not."""


class TaskNotices:
    """The messages of a scheduler that leads."""

    def __init__(
        self,
        loop: EngineLoop,
        queries: TaskQueries,
        views: Views,
        policy: NoticePolicy,
        *,
        clock: Callable[[], float],
        run_beside: RunBeside,
        external_url: str = "",
    ) -> None:
        self._loop, self._queries, self._views, self._policy = loop, queries, views, policy
        self._clock = clock
        self._run_beside = run_beside
        self._external_url = external_url
        self._wake = asyncio.Event()
        self._tried: dict[_Key, _Tried] = {}
        self._sending: dict[_Key, asyncio.Task[None]] = {}
        self._busy: Counter[tuple[bool, Sender]] = Counter()
        """Messages that are being sent: whether they are commands, and whose."""
        self._node_lanes: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._dropped: dict[Sender, int] | None = None
        """Dropped messages that were told of; None: those of an earlier scheduler are not known."""

    def hear(self, records: Sequence[Record]) -> None:
        """Look for messages if a task with notices has started or ended."""
        for record in records:
            if isinstance(record.event, AttemptStarted | TaskEnded):
                view = self._views.tasks.get(record.event.task)
                if view is None or view.spec.notify:
                    self._wake.set()
                    return

    async def run(self) -> None:
        """Send until cancelled."""
        self._wake.set()  # what an earlier scheduler has left
        try:
            await self._keep_sending()
        finally:
            for sending in self._sending.values():
                sending.cancel()
            await asyncio.gather(*self._sending.values(), return_exceptions=True)

    async def _keep_sending(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            self._wake.clear()
            pending, dropped = await self._queries.look(_pending)
            self._tell_of_dropped(dropped)
            keys = {(one.task, one.number, one.moment) for one in pending}
            self._tried = {key: tried for key, tried in self._tried.items() if key in keys}
            due = [one for one in pending if self._is_due(one)]
            self._begin(due)

    def _tell_of_dropped(self, dropped: dict[Sender, int]) -> None:
        for sender, count in dropped.items() if self._dropped is not None else ():
            if more := count - (self._dropped or {}).get(sender, 0):
                log.warning("task_notices_dropped", tenant=sender[0], user=sender[1], count=more)
        self._dropped = dropped

    def _begin(self, due: Sequence[PendingNotice]) -> None:
        """Send as many messages as may be sent at the same time."""
        waiting: dict[bool, dict[Sender, deque[PendingNotice]]] = {False: {}, True: {}}
        for one in due:
            waiting[_is_command(one)].setdefault(one.sender, deque()).append(one)
        for is_command, most in ((False, AT_ONCE), (True, COMMANDS_AT_ONCE)):
            users = waiting[is_command]
            free = most - sum(count for (commands, _), count in self._busy.items() if commands == is_command)
            while free > 0 and users:
                sender = min(users, key=lambda one: self._busy[is_command, one])
                if is_command and self._busy[is_command, sender] >= COMMANDS_OF_USER:
                    break
                self._start(users[sender].popleft())
                free -= 1
                if not users[sender]:
                    del users[sender]

    def _start(self, one: PendingNotice) -> None:
        key, lane = (one.task, one.number, one.moment), (_is_command(one), one.sender)
        self._busy[lane] += 1
        self._sending[key] = sending = asyncio.create_task(self._handle(one))
        sending.add_done_callback(partial(self._sent, key, lane))

    def _sent(self, key: _Key, lane: tuple[bool, Sender], _: "asyncio.Task[None]") -> None:
        self._sending.pop(key, None)
        self._busy[lane] -= 1
        if not self._busy[lane]:
            del self._busy[lane]
        self._wake.set()

    def _pause(self) -> float | None:
        """Return the seconds until a message is tried again; None: none is."""
        instants = [tried.again_at for key, tried in self._tried.items() if key not in self._sending]
        return max(0.0, min(instants) - self._clock()) if instants else None

    def _is_due(self, pending: PendingNotice) -> bool:
        key = (pending.task, pending.number, pending.moment)
        if key in self._sending:
            return False
        tried = self._tried.get(key)
        return tried is None or tried.again_at <= self._clock()

    async def _handle(self, pending: PendingNotice) -> None:
        """Send a message, and store the result if it is final."""
        key = (pending.task, pending.number, pending.moment)
        tried = self._tried.get(key) or _Tried(0, 0.0)
        if tried.result is None:
            tried = await self._try(pending, tried.tries + 1)
        self._tried[key] = tried
        if tried.result is None:
            return
        delivered, message = tried.result
        order = command.SettleNotice(*key, delivered, tried.tries, message)
        try:
            await self._loop.tell(order)
        except GpuyardError:  # the disk is full, or this scheduler no longer leads
            self._tried[key] = _Tried(tried.tries, self._clock() + STORAGE_SECONDS, tried.result)
            return
        self._tried.pop(key, None)
        said = {"task_id": format_task_id(pending.task), "moment": pending.moment.value, "tries": tried.tries}
        if delivered:
            log.info("task_notice_delivered", **said)
        else:
            log.warning("task_notice_given_up", message=message, **said)

    async def _try(self, pending: PendingNotice, tries: int) -> _Tried:
        try:
            await self._send(pending)
        except NotTriedAgain as error:
            return _Tried(tries, 0.0, (False, str(error)))
        except NotDelivered as error:
            if tries > len(RETRY_SECONDS) or self._clock() - pending.since > OLDEST_SECONDS:
                return _Tried(tries, 0.0, (False, str(error)))
            return _Tried(tries, self._clock() + RETRY_SECONDS[tries - 1])
        except (
            Exception
        ) as error:  # a target that a library cannot take must not end the scheduler, each time it starts
            log.exception("task_notice_failed", task_id=format_task_id(pending.task))
            return _Tried(tries, 0.0, (False, f"It could not be sent: {type(error).__name__}."))
        return _Tried(tries, 0.0, (True, ""))

    async def _send(self, pending: PendingNotice) -> None:
        if wrong := self._policy.wrong(pending.target):  # the settings have changed since the task was submitted
            raise TargetForbidden(wrong)
        found = await self._queries.answer(pending.task)
        task = None if found is None else _decode(found[1])
        if _is_command(pending):
            await self._run(pending, task)
            return
        if pending.target.startswith(MAIL):
            assert self._policy.mail is not None
            sentence = sentence_of(pending, task)
            lines = [
                sentence,
                *(f"{name}: {value}" for name, value in body_of(pending, task, self._external_url).items()),
            ]
            text = "\n".join(one_line(line) for line in lines) + "\n"
            await self._policy.mail.deliver(self._policy.mail.envelope(sentence, text, addresses_of(pending.target)))
            return
        body = json.encode(body_of(pending, task, self._external_url))
        try:
            async with asyncio.timeout(SEND_SECONDS):
                address = await self._policy.address_of(pending.target)
        except TimeoutError:
            raise NotDelivered("Its name could not be looked up in time.") from None
        except OSError as error:
            raise NotDelivered(one_line(str(error))) from None
        await post(pending.target, body, connect_to=address)

    async def _run(self, pending: PendingNotice, task: TaskAnswer | None) -> None:
        if task is None or not task.attempts or not task.node_ids:
            raise NotTriedAgain("The task never ran on a node that could run the command.")
        env = variables_of(pending, task)
        node = task.node_ids[0]
        lanes = self._node_lanes.get(node)
        if lanes is None:
            lanes = self._node_lanes[node] = asyncio.Semaphore(COMMANDS_OF_NODE)
        try:
            async with lanes:  # the time of a command that waits does not run, as it would on the node
                failed = await self._run_beside(task, pending.target.removeprefix(COMMAND), env, COMMAND_SECONDS)
        except GpuyardError as error:  # the node is not connected
            raise NotDelivered(one_line(str(error))) from None
        if failed:
            raise NotTriedAgain(one_line(failed))


def _is_command(pending: PendingNotice) -> bool:
    return pending.target.startswith(COMMAND)


def _pending(state: State, now: float) -> tuple[list[PendingNotice], dict[Sender, int]]:  # noqa: ARG001
    return list(state.notices.values()), dict(state.dropped_notices)
