"""Holds attempts: the work of the supervisor, without its protocol and connections.

    Launch ──► pid on disk ──► order to starter ──► Launched ─────► command over ──► nothing left behind ──► Ended
       │                                       │  ▲                       ▲                  ▲
       └─ wait: Prepared ── Start ─────────────┘  └── Suspend, Resume     │                  │
                                    Stop, time-out, lease over: TERM, grace, KILL   TERM, grace, KILL of what is left

The common path is cheap: one order to a waiting process (`spawn.py`), one wait, one read of the list of children, and
three lines in the log. `process_tree.py` knows which attempt a process belongs to and what a command left behind;
`fence.py` enforces a lease even if the supervisor is killed. Nothing here touches a file system of the tasks, so one
that does not answer affects only the attempt that needs it.
"""

import os
import select
import selectors
import signal
import socket
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuyard.live.agent.supervisor import launcher, messages, paths, proc, process_tag
from gpuyard.live.agent.supervisor.attempt_record import Attempt, new_attempt
from gpuyard.live.agent.supervisor.attempt_store import AttemptStore
from gpuyard.live.agent.supervisor.cgroup import Cgroups
from gpuyard.live.agent.supervisor.clock import now
from gpuyard.live.agent.supervisor.exit_records import PATIENCE_SECONDS, ExitRecords, is_kept
from gpuyard.live.agent.supervisor.fence import FenceTable, FenceWatcher, fork_watcher
from gpuyard.live.agent.supervisor.messages import AttemptEnding, AttemptKey, Launch, ProcessEnded, ProcessPhase
from gpuyard.live.agent.supervisor.output import trim
from gpuyard.live.agent.supervisor.process_tree import ProcessTree
from gpuyard.live.agent.supervisor.spawn import (
    CanNotSpawn,
    Starter,
    Starters,
    end_old_launchers,
    no_starter,
    order_of,
    too_slow,
    why,
)
from gpuyard.live.agent.supervisor.timers import AttemptTimers
from gpuyard.version import __version__

OUTPUT_CHECK_SECONDS = 1.0
SUSPEND_ROUNDS = 50
LOOK_AGAIN_SECONDS = 0.3
LOOK_FOR_EXIT_SECONDS = 0.02
MOST_PIDFDS = os.sysconf("SC_OPEN_MAX") // 2
"""Limit on the descriptors used for adopted commands; the rest are for clients and outputs."""

LOST_CODE = "Its supervisor was killed while it ran, so its exit code is unknown."
LOST_TRACE = "Its supervisor was killed while it ran, and its process has ended."
LOST_BEGINNING = "Its supervisor was killed while it started."
LOST_GANG = "Its supervisor was killed while it waited for its gang."
LOST_MACHINE = "Its machine was restarted."


class Starting(NamedTuple):
    """An attempt whose starter has received its order and has not answered yet."""

    attempt: Attempt
    launch: Launch
    starter: Starter


class AttemptHolder:
    """All attempts of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._memory = AttemptStore(folder / paths.LOG)
        self._table = FenceTable(folder / paths.TABLE)
        self._mark = paths.mark_of(folder)
        self._cgroups = Cgroups(self._mark)
        self.selector = selectors.DefaultSelector()
        """The selector of the server's loop."""
        self._process_tree = ProcessTree(self._mark, self._cgroups)
        self._starters = Starters(self._mark, self.selector, self._process_tree.helpers, self._starters_made)
        self._process_tree.hear_launcher = self._starters.receive
        self._process_tree.began_as_starter = self._starters.began_unannounced
        self._queue: dict[AttemptKey, Launch] = {}
        """Launches that wait for a starter."""
        self._queued_until: dict[AttemptKey, float] = {}
        """When to give up launches in `_queue`, on the boot clock, unless a starter becomes ready."""
        self._starting: dict[AttemptKey, Starting] = {}
        self._lines: dict[int, AttemptKey] = {}
        """The attempts in `_starting` by the descriptor of their socket."""
        self._closed_lines = select.epoll()
        self.selector.register(self._closed_lines, selectors.EVENT_READ, self._hear_starters)
        self._given_up: dict[int, AttemptKey] = {}
        """Starters that failed or were killed and have not been reaped yet, by pid."""
        self._suspend_later: set[AttemptKey] = set()
        """Attempts to suspend as soon as their command runs."""
        self._attempts: dict[AttemptKey, Attempt] = {}
        self._open: set[AttemptKey] = set()
        """Attempts that have not ended."""
        self._waiting: dict[AttemptKey, Launch] = {}
        self._slots: dict[AttemptKey, int] = {}
        self._watcher: FenceWatcher | None = None
        self._fenced: dict[AttemptKey, Attempt] = {}
        """Attempts that end when the lease runs out."""
        self._timers = AttemptTimers()
        self._events: list[messages.SupervisorEvent] = []
        self._checked_output_at = 0.0
        self.pidfds: dict[int, Attempt] = {}
        """Descriptors that signal the end of adopted commands, for the server's selector."""
        self._exits = ExitRecords(folder)
        self._shortened_at = 0.0
        """When the lease was last shortened, on the boot clock."""
        self._unreported: dict[AttemptKey, float] = {}
        """Adopted commands that are over without an exit record yet, and until when to wait for it."""
        self._unwatched: list[Attempt] = []
        """Adopted commands for which no descriptor was left; they are polled."""

    # --- beginning ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Take over the attempts of a supervisor that is gone: adopt what runs, report what does not."""
        ended_starters = end_old_launchers(self._mark)
        self._exits.begin()
        struck = self._find_slots()
        self._attempts, same_boot = self._memory.read()
        for key, found in self._process_tree.find_commands().items():
            if key not in self._attempts:  # the log was lost or damaged, but the command still runs
                born, fence = (found.began, found.began), key in self._slots
                self._attempts[key] = Attempt(key, time.time(), pid=found.pid, born=born, fence=fence)
        open_ones = [attempt for attempt in self._attempts.values() if attempt.end is None]
        self._open = {attempt.key for attempt in open_ones}
        for attempt in open_ones:
            attempt.ours = False
        for attempt in open_ones:
            if attempt.end is None:
                self._take_over(attempt, attempt.key in struck, same_boot, attempt.pid in ended_starters)
        self._free_slots_of_nobody()
        self._memory.begin(self._attempts)
        self._process_tree.invalidate()  # some have ended since
        self._sweep()
        self._starters.prepare(0)
        self._exits.noted(0)
        self._clear_exits()

    def continue_from(
        self,
        attempts: Iterable[Attempt],
        waiting: Iterable[Launch],
        watcher_pid: int,
        queued: Iterable[Launch] = (),
        starting: Iterable[tuple[Launch, int]] = (),
        helpers: Iterable[int] = (),
    ) -> None:
        """Continue after `Replace`. This is the same process, so the children are still its own."""
        self._process_tree.helpers.update(helpers)
        self._exits.begin()
        struck = self._find_slots()
        self.take_up(attempts, waiting, queued)
        for key in self._open:
            if key in struck:
                self._attempts[key].stopping = AttemptEnding.FENCED
            self._fence(self._attempts[key])
        self._free_slots_of_nobody()
        if watcher_pid:
            os.kill(watcher_pid, signal.SIGKILL)
            os.waitpid(watcher_pid, 0)
            self._process_tree.helpers.discard(watcher_pid)
        for launch, descriptor in starting:
            attempt = self._attempts[launch.key]
            starter = Starter(attempt.pid, attempt.born, socket.socket(fileno=descriptor))
            self._listen_to(Starting(attempt, launch, starter), 0)
        self.reap()
        self._starters.prepare(len(self._queue))
        self._limit_wait(self._queue.values())

    def take_up(self, attempts: Iterable[Attempt], waiting: Iterable[Launch], queued: Iterable[Launch]) -> None:
        """Load the attempts and write them to the log. No process is touched, so this can be tried with a copy."""
        self._waiting = {launch.key: launch for launch in waiting}
        self._queue = {launch.key: launch for launch in queued}
        for attempt in attempts:
            self._attempts[attempt.key] = attempt
            if attempt.end is not None:
                continue
            self._open.add(attempt.key)
            if attempt.command_ended:
                self._process_tree.sweeping[attempt.key] = attempt
            elif attempt.pid:
                self._process_tree.commands[attempt.pid] = attempt
                if not attempt.ours:
                    self._watch_adopted(attempt)
            self._set_timer(attempt)
        self._memory.begin(self._attempts)

    def _take_over(self, attempt: Attempt, struck: bool, same_boot: bool, never_began: bool) -> None:
        attempt.may_not_have_begun = attempt.begins_by is not None
        attempt.begins_by = None
        if not same_boot:
            attempt.message = LOST_MACHINE
            self._finish(attempt, AttemptEnding.LOST)
            return
        if never_began and attempt.may_not_have_begun:  # `begin` killed its starter
            attempt.message = LOST_BEGINNING
            self._finish(attempt, AttemptEnding.LOST)
            return
        if attempt.lease:
            self._fence(attempt)
            self._set_timer(attempt)
            return
        if attempt.command_ended:
            self._process_tree.sweeping[attempt.key] = attempt
            self._fence(attempt)
            self._set_timer(attempt)
            return
        if attempt.phase is ProcessPhase.WAITING:
            attempt.message = LOST_GANG
            self._finish(attempt, AttemptEnding.LOST)
            return
        if struck:
            attempt.stopping = AttemptEnding.FENCED
        if attempt.pid and proc.is_alive(attempt.pid, attempt.born):
            attempt.message = LOST_CODE
            attempt.may_not_have_begun = False  # all starters were killed
            self._process_tree.commands[attempt.pid] = attempt
            self._start_clock(attempt)
            self._watch_adopted(attempt)
        elif attempt.pid:
            attempt.message = LOST_TRACE
            self._lose_adopted(attempt)
        else:  # end whatever it left: it is unknown how far it got
            attempt.message = LOST_BEGINNING
            attempt.command_ended = True
            self._process_tree.sweeping[attempt.key] = attempt
        self._fence(attempt)
        self._set_timer(attempt)

    def _watch_adopted(self, attempt: Attempt) -> None:
        if len(self.pidfds) >= MOST_PIDFDS:
            self._unwatched.append(attempt)
            return
        try:
            self.pidfds[os.pidfd_open(attempt.pid)] = attempt
        except ProcessLookupError:
            self._lose_adopted(attempt)

    def _lose_adopted(self, attempt: Attempt) -> None:
        """Handle the end of an adopted command. Its keeper has recorded how it ended, or is about to."""
        if self._process_tree.commands.get(attempt.pid) is attempt:  # another process may have its pid now
            del self._process_tree.commands[attempt.pid]
        found = self._exits.find(attempt.pid, attempt.born)
        if found is None and is_kept(attempt.pid, attempt.born, self._folder):
            # If the supervisor itself ends the command, the reason is known, so a short wait is enough.
            patience_seconds = PATIENCE_SECONDS if attempt.stopping is None else 1.0
            give_up_at = self._unreported.setdefault(attempt.key, now() + patience_seconds)
            if now() < give_up_at:
                return
        if found is None:  # reaped since the last look, or by a process that keeps no record
            found = self._exits.find(attempt.pid, attempt.born)
        self._unreported.pop(attempt.key, None)
        if found is not None and found.never_began and attempt.may_not_have_begun:
            attempt.message = LOST_BEGINNING
        elif found is not None:
            attempt.exit_code, attempt.signal, attempt.message = found.exit_code, found.signal, ""
        attempt.command_ended = True
        self._process_tree.sweeping[attempt.key] = attempt

    def _look_at_unreported(self) -> None:
        if not self._unreported:
            return
        for key in list(self._unreported):
            self._lose_adopted(self._attempts[key])
        self._sweep()

    # --- commands -----------------------------------------------------------------------------------------------------

    def handle(self, commands: Iterable[messages.SupervisorCommand]) -> None:
        """Carry out commands in the given order."""
        launches: list[Launch] = []
        for command in commands:
            if isinstance(command, Launch) and command.key not in self._attempts:
                self._attempts[command.key] = new_attempt(command, time.time())
                self._open.add(command.key)
                launches.append(command)
                continue
            if launches:
                self._launch(launches)
                launches = []
            match command:
                case Launch():
                    self._tell(self._attempts[command.key])
                case messages.Start():
                    self._start(command)
                case messages.StopAttempt():
                    self._stop(command)
                case messages.Suspend():
                    self._suspend(command.key)
                case messages.Resume():
                    self._resume(command.key)
                case messages.Extend():
                    self._extend(command)
                case messages.Renew():
                    made_at = min(command.made_at, now())
                    if made_at >= self._shortened_at:
                        self._table.lease_end = max(self._table.lease_end, made_at + command.seconds)
                case messages.Shorten():
                    self._shorten(command)
                case messages.ForgetAttempts():
                    self._forget(command.keys)
        if launches:
            self._launch(launches)

    def _shorten(self, command: messages.Shorten) -> None:
        self._shortened_at = min(command.made_at, now())
        self._table.lease_end = min(self._table.lease_end, self._shortened_at + command.seconds)
        if self._watcher is not None:
            self._watcher.ring()  # it sleeps until the end of the old lease

    def holding(self) -> messages.Holding:
        """List all attempts held."""
        attempts = tuple(attempt.held() for attempt in self._attempts.values())
        return messages.Holding(attempts, os.getpid(), __version__)

    def handover(self) -> tuple[list[Attempt], list[Launch], list[Launch], list[tuple[Launch, int]]]:
        """Return the arguments of `continue_from`: all attempts, and those that wait, are queued and are starting."""
        starting = [(it.launch, it.starter.line.fileno()) for it in self._starting.values()]
        return list(self._attempts.values()), list(self._waiting.values()), list(self._queue.values()), starting

    @property
    def helpers(self) -> list[int]:
        """Child processes that belong to no attempt. The next code waits for them."""
        return list(self._process_tree.helpers)

    def _tell(self, attempt: Attempt) -> None:
        """Repeat the event for the current state of an attempt."""
        if attempt.end is not None:
            self._events.append(attempt.end)
        elif attempt.phase is ProcessPhase.WAITING:
            self._events.append(messages.Prepared(attempt.key, attempt.port))
        elif not self._is_to_begin(attempt.key):
            self._events.append(messages.Launched(attempt.key, attempt.pid, attempt.at))

    def _launch(self, launches: list[Launch]) -> None:
        """Begin new attempts."""
        runs: list[Launch] = []
        for launch in launches:
            attempt = self._attempts[launch.key]
            if self._is_fenced_off(attempt):
                continue
            if launch.wait:
                self._fence(attempt)
                attempt.port = _free_port()
                self._waiting[launch.key] = launch
                self._memory.note(attempt)
                self._events.append(messages.Prepared(launch.key, attempt.port))
            elif launch.lease:
                self._fence(attempt)
                self._start_clock(attempt)
                self._memory.note(attempt)
                self._events.append(messages.Launched(launch.key, 0, attempt.at))
            elif not launch.argv and not launch.shell:
                self._not_launched(
                    attempt, "The task has no command to run. Specify one, or submit the task as a lease."
                )
            else:
                runs.append(launch)
        self._run(runs)

    def _run(self, launches: list[Launch]) -> None:
        for launch in launches:
            if not self._is_fenced_off(self._attempts[launch.key]):
                self._queue[launch.key] = launch
        self._order_queued()
        self._limit_wait(launches)

    def _limit_wait(self, launches: Iterable[Launch]) -> None:
        """Limit how long those of these launches that found no starter wait for one."""
        for launch in launches:
            if launch.key in self._queue:
                self._queued_until[launch.key] = now() + launch.launch_seconds
                self._set_timer(self._attempts[launch.key])

    def _is_to_begin(self, key: AttemptKey) -> bool:
        """Return whether an attempt was launched and its command does not run yet."""
        return key in self._starting or key in self._queue

    def _starters_made(self) -> None:
        self._order_queued()
        if self._process_tree.has_unclear:
            self._sweep()

    def _order_queued(self) -> None:
        """Give orders to starters that are ready. The pid of each is on disk before it can become a command."""
        starting = []
        for launch in list(islice(self._queue.values(), len(self._starters))):
            attempt = self._attempts[launch.key]
            del self._queue[launch.key]
            self._queued_until.pop(launch.key, None)
            if self._is_fenced_off(attempt):
                continue
            starter = self._starters.take()
            group = self._cgroups.open(launch.key) if launch.cgroup else None
            attempt.pid, attempt.born, attempt.cgroup = starter.pid, starter.born, group is not None
            attempt.begins_by = attempt.begins_by or now() + launch.launch_seconds
            self._memory.note(attempt)
            starting.append((Starting(attempt, launch, starter), group))
        if starting:
            try:
                self._memory.write()
            except OSError as error:
                sentence = (
                    "The task was not started because its node cannot record the start: "
                    f"{error.strerror}. Free disk space there."
                )
                for it, _ in starting:
                    self._starters.give_back(it.starter)
                    self._not_launched(it.attempt, sentence)
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
        except CanNotSpawn as error:
            self._starters.give_back(starter)
            self._not_launched(attempt, str(error))
            return
        self._fence(attempt)
        self._process_tree.commands[attempt.pid] = attempt
        self._listen_to(it, 0 if starter.order(order) else select.EPOLLOUT)
        self._set_timer(attempt)

    def _listen_to(self, it: Starting, mask: int) -> None:
        self._starting[it.attempt.key] = it
        self._lines[it.starter.line.fileno()] = it.attempt.key
        self._closed_lines.register(it.starter.line, mask)  # epoll reports a hang-up even with an empty mask

    def _hear_starters(self) -> None:
        for descriptor, _ in self._closed_lines.poll(0):
            if descriptor in self._lines:
                self._hear_starter(self._lines[descriptor])

    def _hear_starter(self, key: AttemptKey) -> None:
        """Check whether a starter has become its command."""
        it = self._starting[key]
        attempt, launch, starter = it
        if not starter.send():
            return
        answer = starter.answer()
        if answer is None:
            self._closed_lines.modify(starter.line, 0)
            return
        self._drop_starter(it)
        if answer == launcher.ABOUT_TO_BEGIN:
            self._began(attempt)
            return
        self._forget_starter(attempt)
        if answer:
            self._not_launched(attempt, why(answer, launch))
        elif attempt.begins_by is not None and attempt.begins_by > now():  # it was killed: try another starter
            attempt.pid, attempt.born = 0, proc.UNBORN
            self._queue[key] = launch
            self._queued_until[key] = attempt.begins_by
            self._set_timer(attempt)
            self._order_queued()
        else:
            self._not_launched(attempt, too_slow(launch))

    def _drop_starter(self, it: Starting) -> None:
        del self._starting[it.attempt.key]
        del self._lines[it.starter.line.fileno()]
        self._timers.drop(it.attempt.key)
        self._closed_lines.unregister(it.starter.line)
        it.starter.close()

    def _began(self, attempt: Attempt) -> None:
        attempt.phase = ProcessPhase.RUNNING
        attempt.at = time.time()
        attempt.begins_by = None
        self._start_clock(attempt)
        self._memory.note(attempt)
        self._process_tree.invalidate()
        self._events.append(messages.Launched(attempt.key, attempt.pid, attempt.at))
        if attempt.key in self._suspend_later:
            self._suspend_later.discard(attempt.key)
            self._suspend(attempt.key)

    def _has_begun(self, attempt: Attempt) -> bool:
        """Return whether the command runs. If it does not, kill its starter, so that it never will."""
        if attempt.key in self._starting:
            self._hear_starter(attempt.key)
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
        if (slot := self._slots.pop(attempt.key, None)) is not None:
            self._table.take(slot)
        self._given_up[attempt.pid] = attempt.key
        self._process_tree.helpers.add(attempt.pid)

    def _too_late(self, attempt: Attempt) -> None:
        """End an attempt as fenced: the scheduler may have given it to another node already, so it is not a failure."""
        sentence = "The task was not started: the lease of its node has expired, so no fenced task may start there."
        self._never_began(
            attempt, messages.ProcessEnded(attempt.key, AttemptEnding.FENCED, None, None, time.time(), sentence)
        )

    def _not_launched(self, attempt: Attempt, sentence: str) -> None:
        self._never_began(attempt, messages.NotLaunched(attempt.key, sentence, time.time()))

    def _no_starter(self, attempt: Attempt, launch: Launch) -> None:
        """End an attempt as lost: the node is at fault, not the task, so it costs no retry."""
        self._never_began(
            attempt, messages.ProcessEnded(attempt.key, AttemptEnding.LOST, None, None, time.time(), no_starter(launch))
        )

    def _never_began(self, attempt: Attempt, end: messages.ProcessEnded | messages.NotLaunched) -> None:
        attempt.phase = ProcessPhase.ENDED
        attempt.begins_by = None
        attempt.end = end
        if (slot := self._slots.pop(attempt.key, None)) is not None:
            self._table.take(slot)
        for of_open_ones in (self._waiting, self._queue, self._queued_until, self._fenced):
            of_open_ones.pop(attempt.key, None)
        self._timers.drop(attempt.key)
        self._open.discard(attempt.key)
        self._suspend_later.discard(attempt.key)
        if attempt.cgroup:
            self._cgroups.close(attempt.key)
        self._memory.note(attempt)
        self._events.append(attempt.end)

    def _start(self, command: messages.Start) -> None:
        attempt = self._attempts.get(command.key)
        if attempt is None:
            self._events.append(messages.NotHeld(command.key))
            return
        launch = self._waiting.pop(command.key, None)
        if launch is None:
            self._tell(attempt)
            return
        attempt.phase = ProcessPhase.RUNNING
        self._memory.note(attempt)
        env = launch.env | command.env
        self._run([_with_env(launch, env)])

    def _stop(self, command: messages.StopAttempt) -> None:
        attempt = self._attempts.get(command.key)
        if attempt is None:
            self._events.append(messages.NotHeld(command.key))
        elif attempt.end is not None:
            self._events.append(attempt.end)
        else:
            self._end(attempt, AttemptEnding.STOPPED, command.grace_seconds)

    def _suspend(self, key: AttemptKey) -> None:
        attempt = self._attempts.get(key)
        if attempt is None:
            self._events.append(messages.NotHeld(key))
        elif attempt.end is not None:
            self._events.append(attempt.end)
        elif attempt.phase is ProcessPhase.SUSPENDED:
            self._events.append(messages.SuspendedNow(key))
        elif self._is_to_begin(key):
            self._suspend_later.add(key)
        elif attempt.phase is ProcessPhase.RUNNING and attempt.stopping is None and not attempt.command_ended:
            stopped: set[int] = set()
            for _ in range(SUSPEND_ROUNDS):  # a process may have forked before it stopped
                self._process_tree.invalidate()
                new = self._process_tree.family(attempt) - stopped
                if not new:
                    break
                self._process_tree.signal(new, signal.SIGSTOP)
                stopped |= new
            attempt.phase = ProcessPhase.SUSPENDED
            if attempt.times_out_at is not None:
                attempt.seconds_left = max(0.0, attempt.times_out_at - now())
                attempt.times_out_at = None
            self._memory.note(attempt)
            self._events.append(messages.SuspendedNow(key))

    def _resume(self, key: AttemptKey) -> None:
        attempt = self._attempts.get(key)
        if attempt is None:
            self._events.append(messages.NotHeld(key))
        elif attempt.end is not None:
            self._events.append(attempt.end)
        elif attempt.phase is not ProcessPhase.WAITING:
            self._suspend_later.discard(key)
            if attempt.phase is ProcessPhase.SUSPENDED:
                attempt.phase = ProcessPhase.RUNNING
                self._start_clock(attempt)
                self._process_tree.signal(self._process_tree.family(attempt), signal.SIGCONT)
                self._memory.note(attempt)
            self._events.append(messages.ResumedNow(key))

    def _forget(self, keys: tuple[AttemptKey, ...]) -> None:
        gone = []
        for key in keys:
            attempt = self._attempts.get(key)
            if attempt is not None and attempt.end is not None:
                del self._attempts[key]
                gone.append(key)
        if gone:
            self._memory.forget(tuple(gone))

    # --- time ---------------------------------------------------------------------------------------------------------

    def seconds_to_next(self) -> float | None:
        """Return the seconds until `tick` has something to do without any event; None if never."""
        instants = [instant] if (instant := self._timers.next()) is not None else []
        if self._process_tree.commands or self._memory.has_pending:
            instants.append(self._checked_output_at + OUTPUT_CHECK_SECONDS)
        if self._fenced:
            instants.append(self._table.lease_end)
        if self._unreported:
            instants.append(now() + LOOK_FOR_EXIT_SECONDS)
        if self._queue and len(self._starters):
            return 0.0
        if (instant := self._starters.due_at(len(self._queue))) is not None:
            instants.append(instant)
        return max(0.0, min(instants) - now()) if instants else None

    def tick(self) -> None:
        """Do everything that is due."""
        self._look_at_unreported()
        self._starters.tick(len(self._queue))
        if self._queue and len(self._starters):
            self._order_queued()
        at = now()
        for key in self._timers.due(at):
            self._do_what_is_due(self._attempts[key], at)
        if self._fenced and self._table.lease_end <= at:
            fenced, self._fenced = self._fenced, {}
            for attempt in fenced.values():
                self._end(attempt, AttemptEnding.FENCED, 0.0)
        if at >= self._checked_output_at + OUTPUT_CHECK_SECONDS:
            self._checked_output_at = at
            for attempt in self._process_tree.commands.values():
                _trim(attempt)
            self._look_at_unwatched()

    def _look_at_unwatched(self) -> None:
        over = [attempt for attempt in self._unwatched if not proc.is_alive(attempt.pid, attempt.born)]
        for attempt in over:
            self._unwatched.remove(attempt)
            self._lose_adopted(attempt)
        if over:
            self._sweep()

    def _extend(self, command: messages.Extend) -> None:
        self._events.append(messages.Extended(command.key))
        attempt = self._attempts.get(command.key)
        if attempt is None or attempt.end is not None or attempt.stopping is not None:
            return
        attempt.times_out_at = attempt.seconds_left = None
        if command.seconds_left:
            attempt.seconds_left = max(0.0, command.made_at + command.seconds_left - now())
        if attempt.phase is ProcessPhase.RUNNING and not self._is_to_begin(command.key):
            self._start_clock(attempt)
        self._memory.note(attempt)

    def _start_clock(self, attempt: Attempt) -> None:
        if attempt.seconds_left is not None:
            attempt.times_out_at = now() + attempt.seconds_left
            attempt.seconds_left = None
            self._set_timer(attempt)

    def _set_timer(self, attempt: Attempt) -> None:
        """Schedule the next look at an attempt for the earliest of its deadlines."""
        every = (
            attempt.times_out_at, attempt.kill_at, attempt.begins_by, self._queued_until.get(attempt.key),
        )  # fmt: skip
        instants = [instant for instant in every if instant is not None]
        if attempt.command_ended and not attempt.ours:
            instants.append(now() + LOOK_AGAIN_SECONDS)  # no signal reports the end of an adopted command's leftovers
        if instants:
            self._timers.set(attempt.key, min(instants))

    def _do_what_is_due(self, attempt: Attempt, at: float) -> None:
        if self._queued_until.get(attempt.key, at + 1) <= at:
            self._no_starter(attempt, self._queue[attempt.key])
            return
        if attempt.key in self._starting and attempt.begins_by is not None and attempt.begins_by <= at:
            launch = self._starting[attempt.key].launch
            if not self._has_begun(attempt) and attempt.end is None:
                self._not_launched(attempt, too_slow(launch))
            if attempt.end is not None:
                return
        if attempt.times_out_at is not None and attempt.times_out_at <= at:
            attempt.times_out_at = None
            self._end(attempt, AttemptEnding.TIMED_OUT, attempt.grace_seconds)
        if attempt.kill_at is not None and attempt.kill_at <= at and attempt.end is None:
            self._process_tree.invalidate()
            self._process_tree.signal(self._process_tree.family(attempt), signal.SIGKILL)
            if attempt.cgroup:
                self._cgroups.kill(attempt.key)
            # Repeat after a while: a process may have been forking, or could not be killed at that moment.
            attempt.kill_at = at + LOOK_AGAIN_SECONDS
        if attempt.command_ended:
            self._sweep()
        elif attempt.end is None:
            self._set_timer(attempt)

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _end(self, attempt: Attempt, reason: AttemptEnding, grace_seconds: float) -> None:
        """Begin to end an attempt. The first reason is kept; a later call can still shorten the grace."""
        if not self._has_begun(attempt) or (not attempt.pid and not attempt.command_ended):
            if attempt.end is None:
                self._finish(attempt, reason)
            return
        if attempt.end is not None:  # its starter had failed
            return
        kill_at = now() + max(0.0, grace_seconds)
        is_over = attempt.command_ended or attempt.key in self._unreported
        is_first = attempt.stopping is None and not is_over
        if is_first:
            attempt.stopping = reason
            attempt.times_out_at = None
            self._memory.note(attempt)
        if attempt.kill_at is None or kill_at < attempt.kill_at:
            attempt.kill_at = kill_at
        if grace_seconds <= 0:
            self._do_what_is_due(attempt, now())
            return
        if is_first:
            family = self._process_tree.family(attempt)
            self._process_tree.signal(family, signal.SIGTERM)
            if attempt.phase is ProcessPhase.SUSPENDED:
                self._process_tree.signal(family, signal.SIGCONT)
        self._set_timer(attempt)

    def reap(self) -> None:
        """Wait for all children that have ended, and finish the attempts that left nothing behind."""
        over = False
        while True:
            try:
                # WNOWAIT leaves the child a zombie, so its exit status can be recorded before it is reaped.
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if found is None:
                break
            pid = found.si_pid
            if pid == self.watcher_pid:
                self._lose_watcher()
            known = self._process_tree.commands.get(pid)
            if known is not None and known.key in self._starting:
                self._hear_starter(known.key)
                known = self._process_tree.commands.get(pid)
            if known is not None:  # if the supervisor is killed now, the next one knows how it ended
                self._exits.note(pid, known.born, found.si_code == os.CLD_EXITED, found.si_status)
            _, status = os.waitpid(pid, 0)
            attempt = self._process_tree.waited_for(pid)
            if attempt is None:
                self._lose_helper(pid)
            if attempt is not None:
                over = True
                attempt.command_ended = True
                if os.WIFSIGNALED(status):
                    attempt.signal = os.WTERMSIG(status)
                else:
                    attempt.exit_code = os.WEXITSTATUS(status)
                self._process_tree.sweeping[attempt.key] = attempt
        if over or self._process_tree.sweeping:
            self._sweep()

    def _lose_helper(self, pid: int) -> None:
        """Handle the end of a child that ran no command."""
        if (key := self._given_up.pop(pid, None)) is not None:
            self._process_tree.helpers.discard(pid)
            self._cgroups.close(key)
        elif self._starters.lose(pid):
            self._order_queued()

    def adopted_ended(self, descriptor: int) -> None:
        """Handle the end of an adopted command."""
        self._lose_adopted(self.pidfds.pop(descriptor))
        os.close(descriptor)
        self._process_tree.invalidate()  # a table read before its end would list it as its own leftover
        self._sweep()

    def _clear_exits(self) -> None:
        """Delete the keepers' exit records once no open attempt is adopted."""
        if all(self._attempts[key].ours for key in self._open):
            self._exits.clear()

    def _sweep(self) -> None:
        """Finish attempts whose command is over and left nothing behind; end the leftovers of the others."""
        if not self._process_tree.sweeping:
            return
        self._process_tree.look_for_leftovers()
        if any(attempt.kill_at is not None for attempt in self._process_tree.sweeping.values()):
            self._process_tree.invalidate()
        for attempt in list(self._process_tree.sweeping.values()):
            if self._process_tree.left_nothing(attempt):
                self._finish(attempt, self._own_ending(attempt))
                continue
            if self._process_tree.is_unclear(attempt):
                self._timers.set(attempt.key, now() + LOOK_FOR_EXIT_SECONDS)
                continue
            left = self._process_tree.family(attempt)
            if not left and self._process_tree.may_have_left_unclear(attempt):
                self._timers.set(attempt.key, now() + LOOK_FOR_EXIT_SECONDS)
                continue
            if not left:
                self._finish(attempt, self._own_ending(attempt))
            elif attempt.kill_at is None:
                attempt.message = attempt.message or f"Its command left {len(left)} running, which were ended."
                attempt.kill_at = now() + attempt.grace_seconds
                self._process_tree.signal(left, signal.SIGTERM)
                self._process_tree.signal(left, signal.SIGCONT)
                self._memory.note(attempt)
            if attempt.end is None:
                self._set_timer(attempt)

    def _own_ending(self, attempt: Attempt) -> AttemptEnding:
        if attempt.stopping is not None:
            return attempt.stopping
        if attempt.exit_code is None and attempt.signal is None:
            return AttemptEnding.LOST
        return AttemptEnding.SUCCEEDED if attempt.exit_code == 0 else AttemptEnding.FAILED

    def _finish(self, attempt: Attempt, ending: AttemptEnding) -> None:
        slot = self._slots.pop(attempt.key, None)
        # The watcher may have killed it. A success still counts, because the command had ended by itself before.
        if slot is not None and self._table.take(slot) and ending is not AttemptEnding.SUCCEEDED:
            ending = AttemptEnding.FENCED
        for of_open_ones in (self._process_tree.sweeping, self._waiting, self._queue, self._queued_until, self._fenced):
            of_open_ones.pop(attempt.key, None)
        self._suspend_later.discard(attempt.key)
        self._unreported.pop(attempt.key, None)
        self._timers.drop(attempt.key)
        self._open.discard(attempt.key)
        if attempt.cgroup:
            self._cgroups.close(attempt.key)
        if not attempt.ours:
            self._clear_exits()
        _trim(attempt)
        attempt.phase = ProcessPhase.ENDED
        attempt.times_out_at = attempt.kill_at = attempt.seconds_left = attempt.begins_by = None
        attempt.end = ProcessEnded(attempt.key, ending, attempt.exit_code, attempt.signal, time.time(), attempt.message)
        self._memory.note(attempt)
        self._events.append(attempt.end)

    # --- the fence ----------------------------------------------------------------------------------------------------

    def _find_slots(self) -> set[AttemptKey]:
        """Take over the fence slots of the previous supervisor, so that no fenced attempt is without one.

        Return the attempts that the watcher has killed.
        """
        fenced = list(self._table.fenced())
        self._slots = {entry.key: entry.slot for entry in fenced}
        return {entry.key for entry in fenced if entry.struck}

    def _free_slots_of_nobody(self) -> None:
        for key in self._slots.keys() - self._open:
            self._table.take(self._slots.pop(key))

    def _is_fenced_off(self, attempt: Attempt) -> bool:
        """Return whether a fenced attempt may not begin, for lack of a lease or of a slot. If so, it has been ended."""
        if not attempt.fence:
            return False
        if self._table.lease_end <= now():
            self._too_late(attempt)
        elif self._table.is_full:
            self._not_launched(attempt, "Its node cannot fence more attempts at the same time.")
        else:
            return False
        return True

    def _fence(self, attempt: Attempt) -> None:
        if attempt.fence:
            self._fenced[attempt.key] = attempt
        if not attempt.fence or not attempt.pid:
            return
        was_empty = self._table.is_empty
        if attempt.key not in self._slots:
            self._slots[attempt.key] = self._table.put(attempt.key, attempt.pid, attempt.born)
        if self._watcher is None:
            self._table.generation += 1  # tells a watcher of an earlier supervisor to end
            self._fork_watcher()
        elif was_empty:
            self._watcher.ring()

    def _fork_watcher(self) -> None:
        self._watcher = fork_watcher(self._table, self._mark)
        self._process_tree.helpers.add(self._watcher.pid)

    def _lose_watcher(self) -> None:
        """Handle the end of the watcher. Fenced attempts need a new one."""
        assert self._watcher is not None
        os.close(self._watcher.bell)
        self._process_tree.helpers.discard(self._watcher.pid)
        self._watcher = None
        if not self._table.is_empty:
            self._fork_watcher()

    # --- the end of a turn --------------------------------------------------------------------------------------------

    def end_turn(self) -> list[messages.SupervisorEvent]:
        """Write pending changes to disk and return the events to send.

        If the disk is full, events are still sent; the changes are written when there is space again.
        """
        self._process_tree.invalidate()
        try:
            self._memory.write()
            self._exits.noted()
            self._memory.compact(self._attempts)
        except OSError:
            self._checked_output_at = now()  # retried within a second
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Remove the starters, sockets and control groups of this supervisor."""
        self._starters.close()
        self._closed_lines.close()
        self._cgroups.leave()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is held, not even an end."""
        return not self._attempts

    @property
    def runs_nothing(self) -> bool:
        """Whether all attempts have ended."""
        return not self._open

    @property
    def begins_nothing(self) -> bool:
        """Whether no attempt is between its launch and the start of its command."""
        return not self._starting and not self._queue

    @property
    def watcher_pid(self) -> int:
        """The pid of the watcher; 0 if there is none."""
        return self._watcher.pid if self._watcher else 0


def _trim(attempt: Attempt) -> None:
    if attempt.output and attempt.output_limit_bytes > 0:
        trim(attempt.output, attempt.output_limit_bytes)


def _with_env(launch: Launch, env: dict[str, str]) -> Launch:
    return msgspec.structs.replace(launch, env=env)


def _free_port() -> int:
    """Return a TCP port that is free at the moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
