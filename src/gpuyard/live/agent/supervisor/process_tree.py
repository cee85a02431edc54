"""Finds all processes of an attempt, with one short read if nothing was left behind.

Processes that a command leaves behind become children of the supervisor (it is a subreaper). So while all its children
are commands, nothing was left behind and the process table need not be read. Other children belong to the attempt whose
session they are in or whose mark they carry. A process that has left its session and cleared its mark cannot be
attributed: it is ended with the first attempt it could belong to, because two tasks must never use the same GPU. In a
control group (`Launch.cgroup`) there is no such doubt.

An attempt that was adopted from a killed supervisor is not a child of this one: its leftovers are searched for in the
whole process table.

The supervisor's helpers are known by their pids. The only unknown child is a starter that its launcher has made and not
announced yet. A child that looks like one is not judged at once, since a name or a command line proves nothing: until
the launcher has announced it, or it is gone, no attempt that could have left it behind is over.
"""

from collections.abc import Callable, Iterable

from gpuyard.live.agent.supervisor import proc, process_tag
from gpuyard.live.agent.supervisor.attempt_record import Attempt
from gpuyard.live.agent.supervisor.cgroup import Cgroups
from gpuyard.live.agent.supervisor.messages import AttemptKey


class ProcessTree:
    """Which process belongs to which attempt."""

    def __init__(self, folder_mark: str, cgroups: Cgroups) -> None:
        self._mark = folder_mark
        self._cgroups = cgroups
        self._leftovers: dict[int, AttemptKey | None] = {}
        """Children left behind by commands, and their attempt; None if it cannot be determined."""
        self._unclear: list[int] = []
        """For each child that looks like a starter not announced yet: when it began, in ticks."""
        self._table: dict[int, proc.Process] | None = None
        self._marked: dict[AttemptKey, list[int]] | None = None
        self.commands: dict[int, Attempt] = {}
        """Commands that have not been waited for yet, own and adopted, by pid."""
        self.sweeping: dict[AttemptKey, Attempt] = {}
        """Attempts whose command is over and of which other processes may be left."""
        self.helpers: set[int] = set()
        """Children that belong to no attempt: the watcher, launchers, and starters without an attempt."""
        self.hear_launcher: Callable[[], None] = lambda: None
        """Receives the announcements of new starters."""
        self.began_as_starter: Callable[[int], int | None] = lambda _: None
        """Returns when an unknown child began, if it looks like a starter."""

    # --- state

    def table(self) -> dict[int, proc.Process]:
        """Return the process table, read at most once between two calls of `invalidate`."""
        if self._table is None:
            self._table = proc.all_processes()
        return self._table

    def invalidate(self) -> None:
        """Discard the process table and the marks that were read."""
        self._table = self._marked = None

    def _carry_mark_of(self, attempt: Attempt) -> list[int]:
        """Return the processes that carry the mark of an attempt. All marks are read at once, like the table."""
        if self._marked is None:
            self._marked = process_tag.owners(self._mark, self.table())
        return self._marked.get(attempt.key, [])

    def waited_for(self, pid: int) -> Attempt | None:
        """Remove a child that was waited for. Return the attempt whose command it was; None if it was not a command."""
        self._leftovers.pop(pid, None)
        return self.commands.pop(pid, None)

    def look_for_leftovers(self) -> None:
        """Determine the attempts of the children that are not commands."""
        known = self.commands.keys() | self._leftovers.keys() | self.helpers
        strangers = [pid for pid in proc.children() if pid not in known]
        self._unclear.clear()
        if strangers:
            self.hear_launcher()
        for pid in strangers:
            if pid in self.helpers:
                continue
            if (began := self.began_as_starter(pid)) is not None:
                self._unclear.append(began)
            else:
                self._leftovers[pid] = self._owner(pid)

    # --- queries

    def left_nothing(self, attempt: Attempt) -> bool:
        """Return whether certainly nothing is left of an attempt whose command is over.

        Does not read the process table.
        """
        return attempt.ours and not self._left_something(attempt) and not self.may_have_left_unclear(attempt)

    def is_unclear(self, attempt: Attempt) -> bool:
        """Return whether everything it could have left behind looks like a starter.

        Ask again: that is resolved soon.
        """
        return self.may_have_left_unclear(attempt) and not self._left_something(attempt)

    @property
    def has_unclear(self) -> bool:
        """Whether there was a child that looks like a starter and was not announced."""
        return bool(self._unclear)

    def _left_something(self, attempt: Attempt) -> bool:
        return bool(self._roots(attempt) or (attempt.cgroup and self._cgroups.members(attempt.key)))

    def may_have_left_unclear(self, attempt: Attempt) -> bool:
        """Return whether it could have left a process behind that looks like a starter."""
        return attempt.ours and any(began >= attempt.born[0] for began in self._unclear)

    def family(self, attempt: Attempt) -> set[int]:
        """Return all live processes of an attempt."""
        if not attempt.pid and attempt.ours:
            return set()
        self.look_for_leftovers()
        table = self.table()
        if not attempt.pid:  # adopted, without a record of its start
            return {pid for pid in proc.descendants(table, self._carry_mark_of(attempt)) if not table[pid].is_over}
        if not attempt.ours:
            roots = self._carry_mark_of(attempt)
        elif attempt.command_ended:
            roots = self._roots(attempt)
        else:  # a leftover of unknown owner is left alone until an attempt it may belong to is over
            roots = [pid for pid, key in self._leftovers.items() if key == attempt.key]
        if attempt.cgroup:
            roots = [*roots, *self._cgroups.members(attempt.key)]
        return proc.family(table, attempt.pid, attempt.born, roots)

    def signal(self, pids: Iterable[int], number: int) -> None:
        """Send a signal to processes that `family` has just returned."""
        proc.signal_all(set(pids), self.table(), number)

    def find_commands(self) -> dict[AttemptKey, proc.Process]:
        """Return the command of each running attempt: the oldest session leader that carries its mark."""
        leaders = [found for found in self.table().values() if found.pid == found.session and not found.is_over]
        leaders.sort(key=lambda found: (found.began, found.pid))
        marked = process_tag.owners(self._mark, (leader.pid for leader in leaders))
        return {key: self.table()[pids[0]] for key, pids in marked.items()}

    def _owner(self, pid: int) -> AttemptKey | None:
        open_ones = {attempt.key for attempt in self.commands.values()} | self.sweeping.keys()
        key = process_tag.owner(self._mark, pid) or self._cgroups.owner(pid)
        if key is not None:
            return key if key in open_ones else None
        found = proc.process(pid)
        if found is not None:
            over = {attempt.pid: attempt for attempt in self.sweeping.values()}
            attempt = self.commands.get(found.session) or over.get(found.session)
            return attempt.key if attempt else None
        return None

    def _roots(self, attempt: Attempt) -> list[int]:
        """Return the children that this attempt left behind, or could have."""
        roots = []
        for pid, key in self._leftovers.items():
            if key == attempt.key:
                roots.append(pid)
            elif key is None:
                found = proc.process(pid)
                if found is not None and found.began >= attempt.born[0] and not found.is_over:
                    roots.append(pid)
        return roots
