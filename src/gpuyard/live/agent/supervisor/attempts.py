"""Holds attempts: the work of the supervisor, without its protocol and connections.

    Launch ──► pid on disk ──► order to starter ──► Launched ─────► command over ──► nothing left behind ──► Ended
       │                                       │  ▲                       ▲                  ▲
       └─ wait: Prepared ── Start ─────────────┘  └── Suspend, Resume     │                  │
                                    Stop, time-out, lease over: TERM, grace, KILL   TERM, grace, KILL of what is left

    command_starts.py      from the launch to the running command
    process_tree.py        which attempt a process belongs to, and what a command left behind
    fenced_attempts.py     the lease, which `fence.py` enforces even if the supervisor is killed
    adopted_commands.py    commands that an earlier supervisor started
    attempt_store.py       all of it on disk

The common path is cheap: one order to a waiting process, one wait, one read of the list of children, and three lines in
the log. Nothing here touches a file system of the tasks, so one that does not answer affects only the attempt that
needs it.
"""

import os
import selectors
import signal
import socket
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from gpuyard.live.agent.supervisor import messages, paths, proc
from gpuyard.live.agent.supervisor.adopted_commands import LOST_BEGINNING, AdoptedCommands
from gpuyard.live.agent.supervisor.attempt_record import Attempt, new_attempt
from gpuyard.live.agent.supervisor.attempt_store import AttemptStore
from gpuyard.live.agent.supervisor.cgroup import Cgroups
from gpuyard.live.agent.supervisor.clock import now
from gpuyard.live.agent.supervisor.command_starts import CommandStarts
from gpuyard.live.agent.supervisor.exit_records import ExitRecords
from gpuyard.live.agent.supervisor.fenced_attempts import FencedAttempts
from gpuyard.live.agent.supervisor.messages import AttemptEnding, AttemptKey, Launch, ProcessEnded, ProcessPhase
from gpuyard.live.agent.supervisor.output import trim
from gpuyard.live.agent.supervisor.output_times import OutputTimes
from gpuyard.live.agent.supervisor.process_tree import ProcessTree
from gpuyard.live.agent.supervisor.shells import OpenShells, ShellNotStarted
from gpuyard.live.agent.supervisor.spawn import (
    end_old_launchers,
    no_starter,
    too_slow,
)
from gpuyard.live.agent.supervisor.timers import AttemptTimers
from gpuyard.version import __version__

OUTPUT_CHECK_SECONDS = 1.0
SUSPEND_ROUNDS = 50
LOOK_AGAIN_SECONDS = 0.3
LOOK_FOR_EXIT_SECONDS = 0.02

LOST_CODE = "Its supervisor was killed while it ran, so its exit code is unknown."
LOST_TRACE = "Its supervisor was killed while it ran, and its process has ended."
LOST_GANG = "Its supervisor was killed while it waited for its gang."
LOST_MACHINE = "Its machine was restarted."


class AttemptManager:
    """All attempts of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._memory = AttemptStore(folder / paths.LOG)
        self._mark = paths.mark_of(folder)
        self._cgroups = Cgroups(self._mark)
        self.selector = selectors.DefaultSelector()
        """The selector of the server's loop."""
        self._process_tree = ProcessTree(self._mark, self._cgroups)
        self._fences = FencedAttempts(folder / paths.TABLE, self._mark, self._process_tree.helpers)
        self._exits = ExitRecords(folder)
        self.adopted = AdoptedCommands(folder, self._process_tree, self._exits)
        self._suspend_later: set[AttemptKey] = set()
        """Attempts to suspend as soon as their command runs."""
        self._attempts: dict[AttemptKey, Attempt] = {}
        self._open: set[AttemptKey] = set()
        """Attempts that have not ended."""
        self._waiting: dict[AttemptKey, Launch] = {}
        self._timers = AttemptTimers()
        self._starts = CommandStarts(
            self._mark,
            self.selector,
            self._process_tree,
            self._cgroups,
            self._memory,
            self._fences,
            self._timers,
            self._attempts,
            self,
        )
        self._shells = OpenShells(self._mark)
        self._events: list[messages.SupervisorEvent] = []
        self._checked_output_at = 0.0
        self._output_times = OutputTimes()

    # --- beginning ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Take over the attempts of a supervisor that is gone: adopt what runs, report what does not."""
        ended_starters = end_old_launchers(self._mark)
        self._exits.begin()
        struck = self._fences.take_over()
        held, same_boot = self._memory.read()
        self._attempts.update(held)
        for key, found in self._process_tree.find_commands().items():
            if key not in self._attempts:  # the log was lost or damaged, but the command still runs
                born, fence = (found.began, found.began), key in self._fences
                self._attempts[key] = Attempt(key, time.time(), pid=found.pid, born=born, fence=fence)
        open_ones = [attempt for attempt in self._attempts.values() if attempt.end is None]
        self._open = {attempt.key for attempt in open_ones}
        for attempt in open_ones:
            attempt.ours = False
        for attempt in open_ones:
            if attempt.end is None:
                self._take_over(attempt, attempt.key in struck, same_boot, attempt.pid in ended_starters)
        self._fences.keep_only(self._open)
        self._memory.begin(self._attempts)
        self._process_tree.invalidate()  # some have ended since
        self._shells.find(self._attempts.values(), self._process_tree.table())
        self.sweep()
        self._starts.prepare()
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
        struck = self._fences.take_over()
        self.take_up(attempts, waiting, queued)
        for key in self._open:
            if key in struck:
                self._attempts[key].stopping = AttemptEnding.FENCED
            self._fences.add(self._attempts[key])
        self._fences.keep_only(self._open)
        if watcher_pid:
            os.kill(watcher_pid, signal.SIGKILL)
            os.waitpid(watcher_pid, 0)
            self._process_tree.helpers.discard(watcher_pid)
        self._starts.take_up(starting)
        self._shells.find(self._attempts.values(), self._process_tree.table())
        self._process_tree.invalidate()
        self.reap()
        self._starts.prepare()
        self._starts.limit_waits()

    def take_up(self, attempts: Iterable[Attempt], waiting: Iterable[Launch], queued: Iterable[Launch]) -> None:
        """Load the attempts and write them to the log. No process is touched, so this can be tried with a copy."""
        self._waiting = {launch.key: launch for launch in waiting}
        self._starts.queue_up(queued)
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
                    self.adopted.watch(attempt)
            self.set_timer(attempt)
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
            self._fences.add(attempt)
            self.set_timer(attempt)
            return
        if attempt.command_ended:
            self._process_tree.sweeping[attempt.key] = attempt
            self._fences.add(attempt)
            self.set_timer(attempt)
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
            self.adopted.watch(attempt)
        elif attempt.pid:
            attempt.message = LOST_TRACE
            self.adopted.ended(attempt)
        else:  # end whatever it left: it is unknown how far it got
            attempt.message = LOST_BEGINNING
            attempt.command_ended = True
            self._process_tree.sweeping[attempt.key] = attempt
        self._fences.add(attempt)
        self.set_timer(attempt)

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
                case messages.OpenShell():
                    self._open_shell(command)
                case messages.Extend():
                    self._extend(command)
                case messages.Renew():
                    self._fences.renew(command.made_at, command.seconds)
                case messages.Shorten():
                    self._fences.shorten(command.made_at, command.seconds)
                case messages.ForgetAttempts():
                    self._forget(command.keys)
        if launches:
            self._launch(launches)

    def attempt_list(self) -> messages.AttemptList:
        """List all attempts held."""
        attempts = tuple(attempt.held() for attempt in self._attempts.values())
        return messages.AttemptList(attempts, os.getpid(), __version__)

    def handover(self) -> tuple[list[Attempt], list[Launch], list[Launch], list[tuple[Launch, int]]]:
        """Return the arguments of `continue_from`: all attempts, and those that wait, are queued and are starting."""
        queued, starting = self._starts.handover()
        return list(self._attempts.values()), list(self._waiting.values()), queued, starting

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
        elif attempt.key not in self._starts:
            self._events.append(messages.Launched(attempt.key, attempt.pid, attempt.at))

    def _launch(self, launches: list[Launch]) -> None:
        """Begin new attempts."""
        runs: list[Launch] = []
        for launch in launches:
            attempt = self._attempts[launch.key]
            if self.is_fenced_off(attempt):
                continue
            if launch.wait:
                self._fences.add(attempt)
                attempt.port = _free_port()
                self._waiting[launch.key] = launch
                self._memory.note(attempt)
                self._events.append(messages.Prepared(launch.key, attempt.port))
            elif launch.lease:
                self._fences.add(attempt)
                self._start_clock(attempt)
                self._memory.note(attempt)
                self._events.append(messages.Launched(launch.key, 0, attempt.at))
            elif not launch.argv and not launch.shell:
                self.not_launched(
                    attempt, "The task has no command to run. Specify one, or submit the task as a lease."
                )
            else:
                runs.append(launch)
        self._starts.start(runs)

    def command_began(self, attempt: Attempt) -> None:
        """Handle that the command of an attempt runs."""
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

    def _too_late(self, attempt: Attempt) -> None:
        """End an attempt as fenced: the scheduler may have given it to another node already, so it is not a failure."""
        sentence = "The task was not started: the lease of its node has expired, so no fenced task may start there."
        self._never_began(
            attempt, messages.ProcessEnded(attempt.key, AttemptEnding.FENCED, None, None, time.time(), sentence)
        )

    def not_launched(self, attempt: Attempt, sentence: str) -> None:
        """End an attempt whose command cannot be started."""
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
        self._fences.remove(attempt.key)
        self._waiting.pop(attempt.key, None)
        self._starts.drop(attempt.key)
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
        self._starts.start([_with_env(launch, env)])

    def _stop(self, command: messages.StopAttempt) -> None:
        attempt = self._attempts.get(command.key)
        if attempt is None:
            self._events.append(messages.NotHeld(command.key))
        elif attempt.end is not None:
            self._events.append(attempt.end)
        else:
            grace_seconds = attempt.grace_seconds if command.grace_seconds is None else command.grace_seconds
            self._end(attempt, AttemptEnding.STOPPED, grace_seconds)

    def _open_shell(self, command: messages.OpenShell) -> None:
        attempt, sentence, code = self._attempts.get(command.key), "", "NotRunning"
        if attempt is None or attempt.phase is not ProcessPhase.RUNNING or attempt.command_ended or attempt.lease:
            sentence = "The task does not run on its node at the moment."
        elif command.key in self._starts or attempt.stopping is not None:
            sentence = "The task is being started or stopped; try again in a moment."
        else:
            try:
                group = self._cgroups.open(command.key) if attempt.cgroup else None
                self._shells.open(command, attempt, group)
            except ShellNotStarted as refusal:
                sentence, code = str(refusal), refusal.code
        self._events.append(messages.ShellOpened(command.key, command.session, sentence, code if sentence else ""))

    def _suspend(self, key: AttemptKey) -> None:
        attempt = self._attempts.get(key)
        if attempt is None:
            self._events.append(messages.NotHeld(key))
        elif attempt.end is not None:
            self._events.append(attempt.end)
        elif attempt.phase is ProcessPhase.SUSPENDED:
            self._events.append(messages.SuspendedNow(key))
        elif key in self._starts:
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
        if (instant := self._fences.due_at) is not None:
            instants.append(instant)
        if self.adopted.has_unreported:
            instants.append(now() + LOOK_FOR_EXIT_SECONDS)
        if (instant := self._starts.due_at()) is not None:
            instants.append(instant)
        return max(0.0, min(instants) - now()) if instants else None

    def tick(self) -> None:
        """Do everything that is due."""
        if self.adopted.look_for_records(self._attempts):
            self.sweep()
        self._starts.tick()
        at = now()
        for key in self._timers.due(at):
            self._do_what_is_due(self._attempts[key], at)
        for attempt in self._fences.lapsed(at):
            self._end(attempt, AttemptEnding.FENCED, 0.0)
        if at >= self._checked_output_at + OUTPUT_CHECK_SECONDS:
            self._checked_output_at = at
            for attempt in self._process_tree.commands.values():
                if attempt.output:
                    length = trim(attempt.output, attempt.output_limit_bytes)
                    self._output_times.note(attempt.output, length, time.time())
            if self.adopted.poll_unwatched():
                self.sweep()

    def _extend(self, command: messages.Extend) -> None:
        self._events.append(messages.Extended(command.key))
        attempt = self._attempts.get(command.key)
        if attempt is None or attempt.end is not None or attempt.stopping is not None:
            return
        attempt.times_out_at = attempt.seconds_left = None
        if command.seconds_left:
            attempt.seconds_left = max(0.0, command.made_at + command.seconds_left - now())
        if attempt.phase is ProcessPhase.RUNNING and command.key not in self._starts:
            self._start_clock(attempt)
        self._memory.note(attempt)

    def _start_clock(self, attempt: Attempt) -> None:
        if attempt.seconds_left is not None:
            attempt.times_out_at = now() + attempt.seconds_left
            attempt.seconds_left = None
            self.set_timer(attempt)

    def set_timer(self, attempt: Attempt) -> None:
        """Schedule the next look at an attempt for the earliest of its deadlines."""
        every = (
            attempt.times_out_at, attempt.kill_at, attempt.begins_by, self._starts.queued_until(attempt.key),
        )  # fmt: skip
        instants = [instant for instant in every if instant is not None]
        if attempt.command_ended and not attempt.ours:
            instants.append(now() + LOOK_AGAIN_SECONDS)  # no signal reports the end of an adopted command's leftovers
        if instants:
            self._timers.set(attempt.key, min(instants))

    def _do_what_is_due(self, attempt: Attempt, at: float) -> None:
        queued_until = self._starts.queued_until(attempt.key)
        if queued_until is not None and queued_until <= at:
            self._no_starter(attempt, self._starts.launch_of(attempt.key))
            return
        if self._starts.is_starting(attempt.key) and attempt.begins_by is not None and attempt.begins_by <= at:
            launch = self._starts.launch_of(attempt.key)
            if not self._starts.has_begun(attempt) and attempt.end is None:
                self.not_launched(attempt, too_slow(launch))
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
            self.sweep()
        elif attempt.end is None:
            self.set_timer(attempt)

    # --- ends ---------------------------------------------------------------------------------------------------------

    def _end(self, attempt: Attempt, reason: AttemptEnding, grace_seconds: float) -> None:
        """Begin to end an attempt. The first reason is kept; a later call can still shorten the grace."""
        if not self._starts.has_begun(attempt) or (not attempt.pid and not attempt.command_ended):
            if attempt.end is None:
                self._finish(attempt, reason)
            return
        if attempt.end is not None:  # its starter had failed
            return
        kill_at = now() + max(0.0, grace_seconds)
        is_over = attempt.command_ended or self.adopted.is_unreported(attempt.key)
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
        self.set_timer(attempt)

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
            if pid == self._fences.watcher_pid:
                self._fences.watcher_ended()
            known = self._process_tree.commands.get(pid)
            if known is not None and self._starts.is_starting(known.key):
                self._starts.hear(known.key)
                known = self._process_tree.commands.get(pid)
            if known is not None:  # if the supervisor is killed now, the next one knows how it ended
                self._exits.note(pid, known.born, found.si_code == os.CLD_EXITED, found.si_status)
            _, status = os.waitpid(pid, 0)
            attempt = self._process_tree.waited_for(pid)
            self._shells.ended(pid)
            if attempt is None:
                self._starts.child_ended(pid)
            if attempt is not None:
                over = True
                attempt.command_ended = True
                if os.WIFSIGNALED(status):
                    attempt.signal = os.WTERMSIG(status)
                else:
                    attempt.exit_code = os.WEXITSTATUS(status)
                self._process_tree.sweeping[attempt.key] = attempt
        if over or self._process_tree.sweeping:
            self.sweep()

    def adopted_ended(self, descriptor: int) -> None:
        """Handle the end of an adopted command."""
        self.adopted.descriptor_ready(descriptor)
        self.sweep()

    def _clear_exits(self) -> None:
        """Delete the keepers' exit records once no open attempt is adopted."""
        if all(self._attempts[key].ours for key in self._open):
            self._exits.clear()

    def sweep(self) -> None:
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
                if others := left - proc.descendants(self._process_tree.table(), self._shells.pids):
                    attempt.message = attempt.message or f"Its command left {len(others)} running, which were ended."
                attempt.kill_at = now() + attempt.grace_seconds
                self._process_tree.signal(left, signal.SIGTERM)
                self._process_tree.signal(left, signal.SIGCONT)
                self._memory.note(attempt)
            if attempt.end is None:
                self.set_timer(attempt)

    def _own_ending(self, attempt: Attempt) -> AttemptEnding:
        if attempt.stopping is not None:
            return attempt.stopping
        if attempt.exit_code is None and attempt.signal is None:
            return AttemptEnding.LOST
        return AttemptEnding.SUCCEEDED if attempt.exit_code == 0 else AttemptEnding.FAILED

    def _finish(self, attempt: Attempt, ending: AttemptEnding) -> None:
        # The watcher may have killed it. A success still counts, because the command had ended by itself before.
        if self._fences.remove(attempt.key) and ending is not AttemptEnding.SUCCEEDED:
            ending = AttemptEnding.FENCED
        self._process_tree.sweeping.pop(attempt.key, None)
        self._waiting.pop(attempt.key, None)
        self._starts.drop(attempt.key)
        self._suspend_later.discard(attempt.key)
        self.adopted.forget(attempt.key)
        self._timers.drop(attempt.key)
        self._open.discard(attempt.key)
        if attempt.cgroup:
            self._cgroups.close(attempt.key)
        if not attempt.ours:
            self._clear_exits()
        if attempt.output:
            trim(attempt.output, attempt.output_limit_bytes)
            self._output_times.forget(attempt.output)
        attempt.phase = ProcessPhase.ENDED
        attempt.times_out_at = attempt.kill_at = attempt.seconds_left = attempt.begins_by = None
        attempt.end = ProcessEnded(attempt.key, ending, attempt.exit_code, attempt.signal, time.time(), attempt.message)
        self._memory.note(attempt)
        self._events.append(attempt.end)

    # --- the fence ----------------------------------------------------------------------------------------------------

    def is_fenced_off(self, attempt: Attempt) -> bool:
        """Return whether a fenced attempt may not begin, for lack of a lease or of a slot. If so, it has been ended."""
        if not attempt.fence:
            return False
        if self._fences.lease_end <= now():
            self._too_late(attempt)
        elif self._fences.is_full:
            self.not_launched(attempt, "Its node cannot fence more attempts at the same time.")
        else:
            return False
        return True

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
        self._starts.close()
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
        return self._starts.is_empty

    @property
    def watcher_pid(self) -> int:
        """The pid of the watcher; 0 if there is none."""
        return self._fences.watcher_pid


def _with_env(launch: Launch, env: dict[str, str]) -> Launch:
    return msgspec.structs.replace(launch, env=env)


def _free_port() -> int:
    """Return a TCP port that is free at the moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
