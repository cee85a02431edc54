"""Start the commands of attempts: order a starter, wait until it has become the command.

    queued ──► order to a starter (its pid is on disk first) ──► the starter's channel closes: the command runs
       │                              │
       └─ no starter in time          └─ it answers why not, or is too slow

A starter (`spawn.py`) is a process that waits for an order. The channel to it closes at the `execve` of the command.
"""

import select
import selectors
import socket
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

from gpuyard.live.agent.supervisor import launcher, proc, process_tag
from gpuyard.live.agent.supervisor.attempt_record import Attempt
from gpuyard.live.agent.supervisor.attempt_store import AttemptStore
from gpuyard.live.agent.supervisor.cgroup import Cgroups
from gpuyard.live.agent.supervisor.clock import now
from gpuyard.live.agent.supervisor.fenced_attempts import FencedAttempts
from gpuyard.live.agent.supervisor.messages import AttemptKey, Launch
from gpuyard.live.agent.supervisor.process_tree import ProcessTree
from gpuyard.live.agent.supervisor.spawn import SpawnError, Starter, Starters, order_of, too_slow, why
from gpuyard.live.agent.supervisor.timers import AttemptTimers


class Starting(NamedTuple):
    """An attempt whose starter has received its order and has not answered yet."""

    attempt: Attempt
    launch: Launch
    starter: Starter


class StartObserver(Protocol):
    """The owner of the attempts, which hears how their starts go."""

    def is_fenced_off(self, attempt: Attempt) -> bool:
        """Return whether a fenced attempt may not begin. If so, it has been ended."""
        ...

    def command_began(self, attempt: Attempt) -> None:
        """Handle that the command runs."""
        ...

    def not_launched(self, attempt: Attempt, sentence: str) -> None:
        """End an attempt whose command cannot be started."""
        ...

    def set_timer(self, attempt: Attempt) -> None:
        """Schedule the next look at an attempt."""
        ...

    def sweep(self) -> None:
        """Look again for attempts that have left nothing behind."""
        ...


class CommandStarts:
    """Attempts between their launch and the start of their command."""

    def __init__(
        self,
        mark: str,
        selector: selectors.BaseSelector,
        process_tree: ProcessTree,
        cgroups: Cgroups,
        store: AttemptStore,
        fences: FencedAttempts,
        timers: AttemptTimers,
        attempts: Mapping[AttemptKey, Attempt],
        observer: StartObserver,
    ) -> None:
        self._mark = mark
        self._process_tree = process_tree
        self._cgroups = cgroups
        self._store = store
        self._fences = fences
        self._timers = timers
        self._attempts = attempts
        self._observer = observer
        self._starters = Starters(mark, selector, process_tree.helpers, self._starters_made)
        process_tree.hear_launcher = self._starters.receive
        process_tree.began_as_starter = self._starters.began_unannounced
        self._queue: dict[AttemptKey, Launch] = {}
        """Launches that wait for a starter."""
        self._queued_until: dict[AttemptKey, float] = {}
        """When to give up launches in `_queue`, on the boot clock, unless a starter becomes ready."""
        self._starting: dict[AttemptKey, Starting] = {}
        self._channels: dict[int, AttemptKey] = {}
        """The attempts in `_starting` by the descriptor of their socket."""
        self._closed_channels = select.epoll()
        selector.register(self._closed_channels, selectors.EVENT_READ, self._hear_starters)
        self._given_up: dict[int, AttemptKey] = {}
        """Starters that failed or were killed and have not been reaped yet, by pid."""

    # --- launches -----------------------------------------------------------------------------------------------------

    def start(self, launches: Iterable[Launch]) -> None:
        """Start commands, at once if there are starters."""
        launches = [each for each in launches if not self._observer.is_fenced_off(self._attempts[each.key])]
        self.queue_up(launches)
        self.order_queued()
        self._limit_wait(launches)

    def queue_up(self, launches: Iterable[Launch]) -> None:
        """Let launches wait for starters, without a limit yet."""
        self._queue.update({launch.key: launch for launch in launches})

    def prepare(self) -> None:
        """Make starters, for the first launches and those that wait."""
        self._starters.prepare(len(self._queue))

    def take_up(self, starting: Iterable[tuple[Launch, int]]) -> None:
        """Continue after `Replace`: listen to starters again, by the descriptors of their sockets."""
        for launch, descriptor in starting:
            attempt = self._attempts[launch.key]
            starter = Starter(attempt.pid, attempt.born, socket.socket(fileno=descriptor))
            self._listen_to(Starting(attempt, launch, starter), 0)

    def limit_waits(self) -> None:
        """Limit how long the launches that wait now do so."""
        self._limit_wait(list(self._queue.values()))

    def _limit_wait(self, launches: Iterable[Launch]) -> None:
        """Limit how long those of these launches that found no starter wait for one."""
        for launch in launches:
            if launch.key in self._queue:
                self._queued_until[launch.key] = now() + launch.launch_seconds
                self._observer.set_timer(self._attempts[launch.key])

    def __contains__(self, key: AttemptKey) -> bool:
        return key in self._starting or key in self._queue

    def is_starting(self, key: AttemptKey) -> bool:
        """Whether the starter of an attempt has received its order and has not answered yet."""
        return key in self._starting

    def launch_of(self, key: AttemptKey) -> Launch:
        """Return the launch of an attempt that is queued or starting."""
        return self._starting[key].launch if key in self._starting else self._queue[key]

    def queued_until(self, key: AttemptKey) -> float | None:
        """When an attempt that waits for a starter is given up; None if it does not wait."""
        return self._queued_until.get(key)

    def drop(self, key: AttemptKey) -> None:
        """Forget a launch that waits: its attempt has ended."""
        self._queue.pop(key, None)
        self._queued_until.pop(key, None)

    @property
    def is_empty(self) -> bool:
        """Whether no attempt is between its launch and the start of its command."""
        return not self._starting and not self._queue

    def handover(self) -> tuple[list[Launch], list[tuple[Launch, int]]]:
        """Return the launches that are queued, and those that are starting with the descriptors of their sockets."""
        starting = [(it.launch, it.starter.channel.fileno()) for it in self._starting.values()]
        return list(self._queue.values()), starting

    # --- time ---------------------------------------------------------------------------------------------------------

    def due_at(self) -> float | None:
        """Return when `tick` has something to do; None if never without an event."""
        if self._queue and len(self._starters):
            return 0.0
        return self._starters.due_at(len(self._queue))

    def tick(self) -> None:
        """Do what is due."""
        self._starters.tick(len(self._queue))
        if self._queue and len(self._starters):
            self.order_queued()

    # --- starters -----------------------------------------------------------------------------------------------------

    def _starters_made(self) -> None:
        self.order_queued()
        if self._process_tree.has_unclear:
            self._observer.sweep()

    def order_queued(self) -> None:
        """Give orders to starters that are ready. The pid of each is on disk before it can become a command."""
        starting = []
        for launch in list(islice(self._queue.values(), len(self._starters))):
            attempt = self._attempts[launch.key]
            del self._queue[launch.key]
            self._queued_until.pop(launch.key, None)
            if self._observer.is_fenced_off(attempt):
                continue
            starter = self._starters.take()
            group = self._cgroups.open(launch.key) if launch.cgroup else None
            attempt.pid, attempt.born, attempt.cgroup = starter.pid, starter.born, group is not None
            attempt.begins_by = attempt.begins_by or now() + launch.launch_seconds
            self._store.note(attempt)
            starting.append((Starting(attempt, launch, starter), group))
        if starting:
            try:
                self._store.write()
            except OSError as error:
                sentence = (
                    "The task was not started because its node cannot record the start: "
                    f"{error.strerror}. Free disk space there."
                )
                for it, _ in starting:
                    self._starters.give_back(it.starter)
                    self._observer.not_launched(it.attempt, sentence)
            else:
                for it, group in starting:
                    self._order(it, group)
        self._starters.prepare(len(self._queue))

    def _order(self, it: Starting, group: Path | None) -> None:
        attempt, launch, starter = it
        env = launch.env | {
            "GPUYARD_TASK_ID": str(launch.key.task),
            "GPUYARD_ATTEMPT": str(launch.key.attempt),
            process_tag.NAME: process_tag.value(self._mark, launch.key),
        }
        try:
            order = order_of(launch, env, group)
        except SpawnError as error:
            self._starters.give_back(starter)
            self._observer.not_launched(attempt, str(error))
            return
        self._fences.add(attempt)
        self._process_tree.commands[attempt.pid] = attempt
        self._listen_to(it, 0 if starter.order(order) else select.EPOLLOUT)
        self._observer.set_timer(attempt)

    def _listen_to(self, it: Starting, mask: int) -> None:
        self._starting[it.attempt.key] = it
        self._channels[it.starter.channel.fileno()] = it.attempt.key
        self._closed_channels.register(it.starter.channel, mask)  # epoll reports a hang-up even with an empty mask

    def _hear_starters(self) -> None:
        for descriptor, _ in self._closed_channels.poll(0):
            if descriptor in self._channels:
                self.hear(self._channels[descriptor])

    def hear(self, key: AttemptKey) -> None:
        """Check whether a starter has become its command."""
        it = self._starting[key]
        attempt, launch, starter = it
        if not starter.send():
            return
        answer = starter.answer()
        if answer is None:
            self._closed_channels.modify(starter.channel, 0)
            return
        self._drop_starter(it)
        if answer == launcher.ABOUT_TO_BEGIN:
            self._observer.command_began(attempt)
            return
        self._forget_starter(attempt)
        if answer:
            self._observer.not_launched(attempt, why(answer, launch))
        elif attempt.begins_by is not None and attempt.begins_by > now():  # it was killed: try another starter
            attempt.pid, attempt.born = 0, proc.UNBORN
            self._queue[key] = launch
            self._queued_until[key] = attempt.begins_by
            self._observer.set_timer(attempt)
            self.order_queued()
        else:
            self._observer.not_launched(attempt, too_slow(launch))

    def _drop_starter(self, it: Starting) -> None:
        del self._starting[it.attempt.key]
        del self._channels[it.starter.channel.fileno()]
        self._timers.drop(it.attempt.key)
        self._closed_channels.unregister(it.starter.channel)
        it.starter.close()

    def has_begun(self, attempt: Attempt) -> bool:
        """Return whether the command runs. If it does not, kill its starter, so that it never will."""
        if attempt.key in self._starting:
            self.hear(attempt.key)
        it = self._starting.get(attempt.key)
        if it is None:
            return attempt.key not in self._queue
        it.starter.kill()
        self._drop_starter(it)
        self._forget_starter(attempt)
        return False

    def _forget_starter(self, attempt: Attempt) -> None:
        """Drop a starter that will not become a command. It ends soon, or when the file system it waits for answers."""
        self._process_tree.commands.pop(attempt.pid, None)
        self._fences.free_slot(attempt.key)
        self._given_up[attempt.pid] = attempt.key
        self._process_tree.helpers.add(attempt.pid)

    def child_ended(self, pid: int) -> None:
        """Handle the end of a child that ran no command."""
        if (key := self._given_up.pop(pid, None)) is not None:
            self._process_tree.helpers.discard(pid)
            self._cgroups.close(key)
        elif self._starters.lose(pid):
            self.order_queued()

    def close(self) -> None:
        """Remove the starters and their sockets."""
        self._starters.close()
        self._closed_channels.close()
