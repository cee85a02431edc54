"""Whose is a process? All that belongs to an attempt, at the price of one short read where nothing was left behind.

Processes that a command leaves behind become our children (we are a subreaper), so as long as we have no children but
commands, nobody left anything behind and the process table need not be read. Where there are others, they belong to the
attempt whose session they are in or whose mark they carry. One that has left its session and cleared its mark belongs
to nobody we could name: it is ended with the first attempt it could belong to, because a GPU must never be used by two.
In a control group (`Launch.cgroup`) there is no such doubt.

An attempt that was adopted from a killed supervisor is no child of ours: what it leaves behind is looked for in the
whole process table.

Our own helpers are known by their pids. Only a starter that its launcher has made and not announced yet is a child we do
not know. What looks like one is not judged at once, since a name or a command line proves nothing: until the launcher has
told of it, or it is gone, no attempt that could have left it behind is over.
"""

from collections.abc import Callable, Iterable

from gpuyard.live.agent.supervisor import proc, process_tag
from gpuyard.live.agent.supervisor.attempt_record import Attempt
from gpuyard.live.agent.supervisor.cgroup import Cgroups
from gpuyard.live.agent.supervisor.messages import AttemptKey


class ProcessTree:
    """Who belongs to whom."""

    def __init__(self, folder_mark: str, cgroups: Cgroups) -> None:
        self._mark = folder_mark
        self._cgroups = cgroups
        self._leftovers: dict[int, AttemptKey | None] = {}
        """Children that others left to us, and whose they are; none: they hide it."""
        self._unclear: list[int] = []
        """Of each child that looks like a starter that was not announced yet: when it began, in ticks."""
        self._table: dict[int, proc.Process] | None = None
        self._marked: dict[AttemptKey, list[int]] | None = None
        self.commands: dict[int, Attempt] = {}
        """By pid: commands that were not waited for yet, ours and adopted ones."""
        self.sweeping: dict[AttemptKey, Attempt] = {}
        """Their command is over, something of them may not be."""
        self.helpers: set[int] = set()
        """Children of ours that belong to no attempt: the watcher, launchers, and starters without an attempt."""
        self.hear_launcher: Callable[[], None] = lambda: None
        """Learn of starters that were made."""
        self.began_as_starter: Callable[[int], int | None] = lambda _: None
        """When a child of which nothing is known began, if it looks like a starter."""

    # --- what is known

    def table(self) -> dict[int, proc.Process]:
        """The process table, read at most once between two calls of `invalidate`."""
        if self._table is None:
            self._table = proc.all_processes()
        return self._table

    def invalidate(self) -> None:
        """What was read is old."""
        self._table = self._marked = None

    def _carry_mark_of(self, attempt: Attempt) -> list[int]:
        """Who carries the mark of an attempt; all marks are read at once, as the table is."""
        if self._marked is None:
            self._marked = process_tag.owners(self._mark, self.table())
        return self._marked.get(attempt.key, [])

    def waited_for(self, pid: int) -> Attempt | None:
        """A child is gone; the attempt whose command it was."""
        self._leftovers.pop(pid, None)
        return self.commands.pop(pid, None)

    def look_for_leftovers(self) -> None:
        """Find out whose the children are that are no commands."""
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

    # --- questions

    def left_nothing(self, attempt: Attempt) -> bool:
        """Whether it is certain, without the process table, that nothing is left of an attempt whose command is over."""
        return attempt.ours and not self._left_something(attempt) and not self.may_have_left_unclear(attempt)

    def is_unclear(self, attempt: Attempt) -> bool:
        """Whether all that it could have left behind looks like a starter: look again, that is clear soon."""
        return self.may_have_left_unclear(attempt) and not self._left_something(attempt)

    @property
    def has_unclear(self) -> bool:
        """Whether there was a child that looks like a starter and was not announced."""
        return bool(self._unclear)

    def _left_something(self, attempt: Attempt) -> bool:
        return bool(self._roots(attempt) or (attempt.cgroup and self._cgroups.members(attempt.key)))

    def may_have_left_unclear(self, attempt: Attempt) -> bool:
        """Whether it could have left something behind that looks like a starter."""
        return attempt.ours and any(began >= attempt.born[0] for began in self._unclear)

    def family(self, attempt: Attempt) -> set[int]:
        """Every process of an attempt that runs."""
        if not attempt.pid and attempt.ours:
            return set()
        self.look_for_leftovers()
        table = self.table()
        if not attempt.pid:  # adopted, without a note of its start
            return {pid for pid in proc.descendants(table, self._carry_mark_of(attempt)) if not table[pid].is_over}
        if not attempt.ours:
            roots = self._carry_mark_of(attempt)
        elif attempt.command_ended:
            roots = self._roots(attempt)
        else:  # what hides its owner is left alone until something it may belong to is over
            roots = [pid for pid, key in self._leftovers.items() if key == attempt.key]
        if attempt.cgroup:
            roots = [*roots, *self._cgroups.members(attempt.key)]
        return proc.family(table, attempt.pid, attempt.born, roots)

    def signal(self, pids: Iterable[int], number: int) -> None:
        """Send a signal to members of a family just asked for."""
        proc.signal_all(set(pids), self.table(), number)

    def find_commands(self) -> dict[AttemptKey, proc.Process]:
        """Of each attempt that runs, noted or not, whoever leads a session and carries its mark: the oldest one."""
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
        """Children of ours that this attempt left behind, or could have."""
        roots = []
        for pid, key in self._leftovers.items():
            if key == attempt.key:
                roots.append(pid)
            elif key is None:
                found = proc.process(pid)
                if found is not None and found.began >= attempt.born[0] and not found.is_over:
                    roots.append(pid)
        return roots
