"""`gpuyard logs`: print the output of tasks. `-f` continues across restarts of the scheduler (`task_output`)."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client, past_instant_of
from gpuyard.cli.input.task_selection import TasksArgument, tasks_named
from gpuyard.cli.output.task_output import Output, follow, gave_up, gone, is_gone, outage_printer, to_standard_output

if TYPE_CHECKING:
    from gpuyard.cli.output.many_outputs import LineWriter, Rewrite
    from gpuyard.live.sdk import Client, Task, TaskRef

FIRST_LOOK_BYTES = 64 * 1024
NODE_SECONDS = 30.0
"""How long to wait for a node that is not connected."""
LOOK_SECONDS = 0.3


def logs(
    tasks: TasksArgument = None,
    following: Annotated[bool, typer.Option("-f", "--follow", help="Follow the output until the task ends.")] = False,
    tail: Annotated[int | None, typer.Option("-n", "--tail", metavar="N", min=0, help="Only the last N lines.")] = None,
    grep: Annotated[
        str | None,
        typer.Option("-g", "--grep", metavar="TEXT", help="Only lines with this text; the nodes search for it."),
    ] = None,
    case: Annotated[bool, typer.Option("--case", help="With --grep: upper and lower case differ.")] = False,
    beside: Annotated[
        int | None,
        typer.Option("-C", "--context", metavar="N", min=0, max=10, help="With --grep: N lines before and after each."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only what was written since, such as 10m, 14:30 or 'fri 18:00'."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Only what was written before that time.")
    ] = None,
    timestamps: Annotated[
        bool, typer.Option("-t", "--timestamps", help="Begin every line with the time at which it was written.")
    ] = False,
    attempt: Annotated[
        int | None, typer.Option("--attempt", metavar="N", min=1, help="Attempt of the task (default: the last).")
    ] = None,
    node: Annotated[
        str | None, typer.Option("--node", metavar="NODE", help="Node, if the task ran on several.")
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Print the output of tasks: of one byte for byte, of several line by line behind their names.

    With --json one object per line. For a waiting task, print the reason.
    """
    _refuse_contradictions(grep, following=following, case=case, context=beside)
    times = _times(since, until, timestamps=timestamps, following=following, tail=tail, grep=grep)
    cluster = client(server, token)
    ids = tasks_named(cluster, tasks)
    if len(ids) > 1 or grep is not None:
        if len(ids) > 1 and (attempt is not None or node is not None):
            raise typer.BadParameter("it is of one task; name one", param_hint="'--attempt'" if attempt else "'--node'")
        wanted = _Wanted(
            cluster, ids, grep, tail, attempt, node, times, case=case, context=beside or 0, as_json=as_json
        )
        wanted.follow(server) if following else wanted.print()
        return
    [task_id] = ids
    task = cluster.task(task_id) if following else None
    if task is not None and not as_json:
        _tell_of_no_start(task)
    which: dict[str, Any] = {"attempt": attempt, "node": node}
    named = task_id if task is None else task
    last_bytes = None if tail is None else _bytes_of_last_lines(cluster, named, tail, which)
    lines = _rewriter(timestamps=timestamps, as_json=as_json)
    write = lines.write if lines is not None else to_standard_output
    if task is not None and not task.ended and (attempt is None or attempt <= task.attempts):
        output = Output(cluster.without_waiting(), write, tail=last_bytes, strict=True, **which, **times)
        _follow(cluster, task, output, server, as_json=as_json)
    else:
        wrote = False
        for part in _patiently(lambda: cluster.logs(named, tail=last_bytes, **which, **times)):
            write(part)
            wrote = True
        if not wrote and not following and not as_json and not times:
            _tell_of_no_start(cluster.task(task_id))
    if lines is not None:
        lines.end()


def _refuse_contradictions(grep: str | None, *, following: bool, case: bool, context: int | None) -> None:
    if grep is None and (case or context is not None):
        raise typer.BadParameter("it needs --grep", param_hint="'--case'" if case else "'--context'")
    if grep is not None and (not grep or "\n" in grep):
        raise typer.BadParameter("the text must be within one line, and not empty", param_hint="'--grep'")
    if following and context is not None:
        raise typer.BadParameter("it cannot be combined with -f", param_hint="'--context'")


def _times(
    since: str | None, until: str | None, *, timestamps: bool, following: bool, tail: int | None, grep: str | None
) -> dict[str, Any]:
    """Return the period of the output, and whether lines begin with their times; empty if neither was asked for."""
    for option, given, other, there in (
        ("--until", until is not None, "-f", following),
        ("--until", until is not None, "--tail", tail is not None),
        ("--until", until is not None, "--grep", grep is not None),
        ("--timestamps", timestamps, "--grep", grep is not None),
    ):
        if given and there:
            raise typer.BadParameter(f"it cannot be combined with {other}", param_hint=f"'{option}'")
    times: dict[str, Any] = {}
    if since is not None:
        times["since"] = past_instant_of(since, "--since")
    if until is not None:
        times["until"] = past_instant_of(until, "--until")
    if len(times) == 2 and times["until"] <= times["since"]:
        raise typer.BadParameter(f"{until!r} is not after the begin", param_hint="'--until'")
    return times | ({"timestamps": True} if timestamps else {})


def _rewriter(*, timestamps: bool, as_json: bool) -> "LineWriter | None":
    """Return a writer that changes the lines of one task; None: they stay as they are."""
    from gpuyard.cli.output.many_outputs import LineWriter, with_local_time

    if as_json:
        return LineWriter(to_standard_output, lambda line: _encoded_line(line, None, timestamps=timestamps))
    return LineWriter(to_standard_output, with_local_time) if timestamps else None


class _Wanted:
    """The output of several tasks, or the lines of one that contain a text."""

    def __init__(
        self,
        cluster: "Client",
        ids: list[str],
        grep: str | None,
        tail: int | None,
        attempt: int | None,
        node: str | None,
        times: dict[str, Any],
        *,
        case: bool,
        context: int,
        as_json: bool,
    ) -> None:
        from gpuyard.cli.output.many_outputs import FOLLOWED_AT_ONCE, label_width, labels_of
        from gpuyard.cli.output.screen import screen_of

        if len(ids) > FOLLOWED_AT_ONCE:
            message = f"at most {FOLLOWED_AT_ONCE} tasks at once; {len(ids)} are named"
            raise typer.BadParameter(message, param_hint="'TASK'")
        self._cluster = cluster
        self._tasks = [cluster.task(one) for one in ids]
        self._grep, self._tail, self._case, self._context, self._as_json = grep, tail, case, context, as_json
        self._which: dict[str, Any] = {"attempt": attempt, "node": node}
        self._times = times
        self._screen = screen_of()
        self._labels = labels_of(self._tasks)
        self._width = label_width(self._labels.values())

    def _steps(self, task: "Task", number: int) -> "list[Rewrite]":
        """Return what happens to each line of a task."""
        from gpuyard.cli.output.many_outputs import matching, prefixing, with_local_time

        steps: list[Rewrite] = []
        timestamps = "timestamps" in self._times
        if timestamps and not self._as_json:
            steps.append(with_local_time)
        if self._grep is not None:
            screen = self._screen._replace(colors=False) if self._as_json else self._screen
            steps.append(matching(self._grep, screen, case=self._case))
        if self._as_json:
            several = len(self._tasks) > 1
            steps.append(lambda line: _encoded_line(line, task.id if several else None, timestamps=timestamps))
        elif len(self._tasks) > 1:
            steps.append(prefixing(self._labels[task.id], self._width, number, self._screen))
        return steps

    def follow(self, server: str | None) -> None:
        """Follow all of them."""
        from gpuyard.cli.output.many_outputs import follow_all

        tails: dict[str, int | None] = {}
        for task in self._tasks:
            if not self._as_json:
                _tell_of_no_start(task)
            if self._tail is not None:
                begun = task.started_at is not None
                tails[task.id] = _bytes_of_last_lines(self._cluster, task, self._tail, {}) if begun else None
        follow_all(self._cluster, self._tasks, self._steps, tails, server, times=self._times, as_json=self._as_json)

    def print(self) -> None:
        """Print what there is."""
        from gpuyard.cli.output.many_outputs import writers_for

        writers = writers_for(self._tasks, to_standard_output, self._steps)
        for task in self._tasks:
            if task.started_at is None:
                _tell_of_no_start(task)
            elif self._grep is not None:
                self._print_matches(task, writers[task.id].write)
            else:
                last = (
                    None if self._tail is None else _bytes_of_last_lines(self._cluster, task, self._tail, self._which)
                )
                reading = partial(self._cluster.logs, task, tail=last, **self._which, **self._times)
                for part in _patiently(reading):
                    writers[task.id].write(part)
            writers[task.id].end()

    def _print_matches(self, task: "Task", write: Callable[[bytes], None]) -> None:
        """Print the lines that the node has found; lines of context go through the same prefix, but not the filter."""
        from collections import deque

        assert self._grep is not None
        found: deque[tuple[list[str], str, list[str]]] = deque(maxlen=self._tail)
        offset: int | None = 0
        while offset is not None:
            answer = self._cluster.search_logs(
                task, self._grep, match_case=self._case, context=self._context or None, offset=offset, limit=1000,
                since=self._times.get("since"), **self._which,
            )  # fmt: skip
            found.extend((one.before, one.text, one.after) for one in answer.matches)
            if self._tail is None:
                self._write_matches(found, task, write)
                found.clear()
            offset = answer.next_offset
        self._write_matches(found, task, write)

    def _write_matches(
        self, found: "Iterable[tuple[list[str], str, list[str]]]", task: "Task", write: Callable[[bytes], None]
    ) -> None:
        beside = self._steps(task, self._tasks.index(task))[1:]
        for before, line, after in found:
            for words in before:
                self._write_beside(words, beside)
            write(line.encode() + b"\n")
            for words in after:
                self._write_beside(words, beside)
            if self._context and not self._as_json:
                self._write_beside("--", beside)

    def _write_beside(self, words: str, steps: "list[Rewrite]") -> None:
        line: bytes | None = words.encode()
        for step in steps:
            line = step(line) if line is not None else None
        to_standard_output((line or b"") + b"\n")


def _encoded_line(line: bytes, task_id: str | None, *, timestamps: bool = False) -> bytes:
    from msgspec import json

    words = {} if task_id is None else {"task_id": task_id}
    if timestamps:
        from gpuyard.cli.output.many_outputs import time_and_line

        at, line = time_and_line(line)
        words["at"] = at.decode()
    return json.encode({**words, "line": line.decode(errors="replace")})


def _follow(cluster: "Client", task: "Task", output: Output, server: str | None, *, as_json: bool) -> None:
    """Follow the output to the end of the task, or of the selected attempt."""
    from gpuyard.live.sdk import NotFound
    from gpuyard.live.sdk.waiting import AWAY

    outages = None if as_json else outage_printer(task.id)
    try:
        follow(cluster, task, output, on_outage=outages)
    except AWAY as error:
        raise gave_up(error, task.id, server, as_json=as_json) from None
    except NotFound as error:
        if not is_gone(error):
            raise
        raise gone(error, task.id, cluster, as_json=as_json) from None
    if not output.is_whole:
        raise typer.Exit(1)


def _patiently(ask: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
    """Return the output; wait a while for a node that is not connected yet, as after a restart of the scheduler."""
    from gpuyard.live.sdk import Refused

    give_up_at = time.monotonic() + NODE_SECONDS
    waits = wrote = False
    while True:
        try:
            for part in ask():
                wrote = True
                yield part
        except Refused as refused:
            if wrote or refused.code != "NodeUnreachable" or time.monotonic() >= give_up_at:
                raise
            if not waits:
                waits = True
                said = f"gpuyard: {refused.message} Waiting for up to {NODE_SECONDS:.0f} s."
                print(said, file=sys.stderr, flush=True)
            time.sleep(LOOK_SECONDS)
        else:
            return


def _tell_of_no_start(task: "Task") -> None:
    """Print why a task that has not started has no output."""
    if task.started_at is None:
        words = "never started" if task.ended else "has not started"
        print(f"gpuyard: {task.id} {words}. {task.reason or ''}".rstrip(), file=sys.stderr, flush=True)


def _bytes_of_last_lines(cluster: "Client", task: "TaskRef", lines: int, which: dict[str, Any]) -> int:
    """Return the length of the last lines. The scheduler counts bytes, so read larger and larger parts of the end."""
    look = FIRST_LOOK_BYTES
    while lines:
        end = b"".join(_patiently(lambda look=look: cluster.logs(task, tail=look, **which)))  # type: ignore[misc]
        found = end[:-1].split(b"\n")  # the last line's end is no beginning of another
        if len(found) > lines:
            return sum(len(line) + 1 for line in found[-lines:]) - 1 + len(end[-1:])
        if len(end) < look:
            return max(len(end), 1)
        look *= 8
    return 0
