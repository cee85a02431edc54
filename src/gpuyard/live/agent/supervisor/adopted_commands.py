"""Commands that an earlier supervisor started. They are no children of this one, so it cannot wait for them.

A descriptor (pidfd) signals the end of each, and the keeper, which is their parent now, records how it ended
(`exit_records.py`). If there are more commands than descriptors, the rest are polled.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from gpuyard.live.agent.supervisor import proc
from gpuyard.live.agent.supervisor.attempt_record import Attempt
from gpuyard.live.agent.supervisor.clock import now
from gpuyard.live.agent.supervisor.exit_records import RECORD_WAIT_SECONDS, ExitRecords, is_kept
from gpuyard.live.agent.supervisor.messages import AttemptKey
from gpuyard.live.agent.supervisor.process_tree import ProcessTree

MOST_PIDFDS = os.sysconf("SC_OPEN_MAX") // 2
"""Limit on the descriptors used for adopted commands; the rest are for clients and outputs."""
LOST_BEGINNING = "Its supervisor was killed while it started."


class AdoptedCommands:
    """Watches adopted commands, and finds out how they ended."""

    def __init__(self, folder: Path, process_tree: ProcessTree, exits: ExitRecords) -> None:
        self._folder = folder
        self._process_tree = process_tree
        self._exits = exits
        self.pidfds: dict[int, Attempt] = {}
        """Descriptors that signal the end of adopted commands, for the server's selector."""
        self._unreported: dict[AttemptKey, float] = {}
        """Commands that are over without an exit record yet, and until when to wait for it."""
        self._unwatched: list[Attempt] = []
        """Commands for which no descriptor was left; they are polled."""

    @property
    def has_unreported(self) -> bool:
        """Whether an exit record is awaited."""
        return bool(self._unreported)

    def is_unreported(self, key: AttemptKey) -> bool:
        """Whether the command of an attempt is over and its exit record is awaited."""
        return key in self._unreported

    def watch(self, attempt: Attempt) -> None:
        """Watch a command that runs."""
        if len(self.pidfds) >= MOST_PIDFDS:
            self._unwatched.append(attempt)
            return
        try:
            self.pidfds[os.pidfd_open(attempt.pid)] = attempt
        except ProcessLookupError:
            self.ended(attempt)

    def ended(self, attempt: Attempt) -> None:
        """Handle the end of a command. Its keeper has recorded how it ended, or is about to."""
        if self._process_tree.commands.get(attempt.pid) is attempt:  # another process may have its pid now
            del self._process_tree.commands[attempt.pid]
        found = self._exits.find(attempt.pid, attempt.born)
        if found is None and is_kept(attempt.pid, attempt.born, self._folder):
            # If the supervisor itself ends the command, the reason is known, so a short wait is enough.
            wait_seconds = RECORD_WAIT_SECONDS if attempt.stopping is None else 1.0
            give_up_at = self._unreported.setdefault(attempt.key, now() + wait_seconds)
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

    def descriptor_ready(self, descriptor: int) -> None:
        """Handle the end of the command that a descriptor stands for."""
        self.ended(self.pidfds.pop(descriptor))
        os.close(descriptor)
        self._process_tree.invalidate()  # a table read before its end would list it as its own leftover

    def look_for_records(self, attempts: Mapping[AttemptKey, Attempt]) -> bool:
        """Look again for exit records that were awaited; return whether any were."""
        awaited = list(self._unreported)
        for key in awaited:
            self.ended(attempts[key])
        return bool(awaited)

    def poll_unwatched(self) -> bool:
        """Check the commands without a descriptor; return whether one has ended."""
        over = [attempt for attempt in self._unwatched if not proc.is_alive(attempt.pid, attempt.born)]
        for attempt in over:
            self._unwatched.remove(attempt)
            self.ended(attempt)
        return bool(over)

    def forget(self, key: AttemptKey) -> None:
        """Do not wait for the exit record of an attempt any more."""
        self._unreported.pop(key, None)
