"""Which tasks a command acts on: ids, ranges of ids and names, or every task that matches filters.

task-7  7               this task
7-12                    the tasks with these numbers
train                   the task with this name: the only open one, or else the newest that has ended
train[…]  train[...]    a line of `gpuyard ps`: the open tasks of an array, sweep or map, or else those of the newest one
--name train --mine …   all tasks that match and that the command can change, after a question
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.shell.messages import localized

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client, Task

OPEN = "pending,running,suspended"
MOST_IN_A_RANGE = 100_000
SHOWN = 5
_LINE = re.compile(r"(.*)\[(?:…|\.\.\.)\]")
"""The name of a line of `gpuyard ps` that has several tasks."""
_RANGE = re.compile(r"(?:task-)?(\d+)-(?:task-)?(\d+)")

TaskArgument = Annotated[str, typer.Argument(metavar="TASK", help="A task: its id, such as task-7 or 7, or its name.")]
TasksArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="TASK...", help="Tasks: ids such as task-7 or 7, ranges such as 7-12, or names."),
]
NameFilter = Annotated[
    str | None,
    typer.Option(
        "--name", metavar="NAME", help="All tasks with exactly this name, and those of a sweep or map with it."
    ),
]
UserFilter = Annotated[str | None, typer.Option("-u", "--user", metavar="NAME", help="All tasks of this user.")]
MineFilter = Annotated[bool, typer.Option("--mine", help="All your tasks.")]
TenantFilter = Annotated[str | None, typer.Option("-t", "--tenant", metavar="NAME", help="All tasks of this tenant.")]
ProjectFilter = Annotated[str | None, typer.Option("--project", metavar="NAME", help="All tasks of this project.")]
YesOption = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask before changing several tasks.")]


@dataclass(frozen=True)
class SelectedBy:
    """Select all tasks that match all of these."""

    name: str | None = None
    user: str | None = None
    mine: bool = False
    tenant: str | None = None
    project: str | None = None

    def __bool__(self) -> bool:
        """Whether anything is given."""
        return bool(self.name or self.user or self.mine or self.tenant or self.project)


def task_named(cluster: "Client", word: str) -> str:
    """Return the id of the task that a person means: an id as it is, or the task with this name."""
    from gpuyard.live.sdk.errors import NotFound
    from gpuyard.live.sdk.values import number_of

    number = number_of(word)
    if not word or number is not None:
        return f"task-{number}" if word else word
    line = _LINE.fullmatch(word)
    if line is None:
        found = cluster.page(name=word, status=OPEN, limit=SHOWN + 1)
        if found.total > 1:
            raise _several(word, found.total, found.tasks)
        if newest := found.tasks or cluster.page(name=word, limit=1).tasks:
            return newest[0].id
    base = word if line is None else line[1]
    tasks = tasks_on_line(cluster, base)
    if len(tasks) > 1:
        raise _several(base, len(tasks), tasks[: SHOWN + 1])
    if tasks:
        return tasks[0].id
    message = f'There is no task with the id or name {word}; ids look like "task-7".'
    raise NotFound(message, status=404, code="UnknownTask")


def _several(name: str, count: int, tasks: "list[Task]") -> typer.BadParameter:
    is_open = not tasks[0].ended
    message = f"{count} {'open ' if is_open else ''}tasks are called {name}: {_some(tasks)}. Use the id of one of them"
    if any(task.name != name or task.array_index is not None or task.group is not None for task in tasks):
        message += f", or '{name}[…]' for all of them where a command takes several tasks"
    return typer.BadParameter(message, param_hint="'TASK'")


def tasks_on_line(cluster: "Client", name: str) -> "list[Task]":
    """Return the open tasks of arrays, sweeps and maps with this name; if none is open, all of the newest one."""
    if found := list(_on_line(cluster, name, status=OPEN)):
        return found
    firsts = (next(tasks, None) for tasks in (_of_arrays(name, cluster), _of_sweep(name, cluster)))
    newest = max((task for task in firsts if task is not None), key=lambda task: task.number, default=None)
    if newest is None:
        return []
    same = _on_line(cluster, name, user=newest.user or None)
    if newest.group is not None:
        return [task for task in same if task.group == newest.group]
    return [task for task in same if task.created_at == newest.created_at]


def _on_line(cluster: "Client", name: str, **filters: Any) -> "Iterator[Task]":
    yield from _of_arrays(name, cluster, **filters)
    yield from _of_sweep(name, cluster, **filters)


def _of_arrays(name: str, cluster: "Client", **filters: Any) -> "Iterator[Task]":
    """Return the tasks of arrays with this name, and of maps that were given one."""
    tasks = cluster.tasks(name=name, **filters)
    return (task for task in tasks if task.array_index is not None or task.group is not None)


def _of_sweep(name: str, cluster: "Client", **filters: Any) -> "Iterator[Task]":
    """Return the tasks of sweeps and maps with this name: each is called such as `train[lr=0.1]`."""
    tasks = cluster.tasks(query=f"{name}[", **filters)
    return (task for task in tasks if task.name.startswith(f"{name}[") and task.name.endswith("]"))


def tasks_named(cluster: "Client", words: list[str] | None) -> list[str]:
    """Return the ids of all tasks that are named, each once, ranges expanded; at least one must be."""
    if not words:
        raise typer.BadParameter("name a task, such as task-7, 7, 7-12 or a name", param_hint="'TASK'")
    return list(dict.fromkeys(task for word in words for task in _meant(cluster, word)))


def selected(
    cluster: "Client",
    words: list[str] | None,
    filters: SelectedBy,
    *,
    status: str,
    doing: str,
    yes: bool,
    unfit: "Callable[[Task], tuple[str, str] | None] | None" = None,
) -> list[str]:
    """Return the tasks that are meant, in order. Several that filters have found are confirmed first.

    `status`: what the command can change; `doing`: such as "Cancel". `unfit` says what a task is that filters should not
    find, one and several of them; such tasks are counted on standard error. Nothing is changed if one of the words is wrong.
    """
    from gpuyard.live.sdk.values import number_of

    if words and filters:
        raise typer.BadParameter("name tasks, or select them with options, not both", param_hint="'TASK'")
    if words:
        return list(dict.fromkeys(task for word in words for task in _meant(cluster, word)))
    if not filters:
        raise typer.BadParameter("name a task, or select tasks with --mine, --name, --user, --tenant or --project")
    user = own_name(cluster) if filters.mine else filters.user
    if filters.mine and filters.user not in {None, user}:
        raise typer.BadParameter(f"--mine means {user}; use one of the two", param_hint="'--user'")
    chosen = {"status": status, "user": user, "tenant": filters.tenant, "project": filters.project}
    found = list(cluster.tasks(name=filters.name, **chosen))
    if filters.name:
        found += _of_sweep(filters.name, cluster, **chosen)
    found.sort(key=lambda task: number_of(task.id) or 0)  # the oldest first
    if unfit is not None:
        found = _fit(found, unfit)
    if not found:
        print(f"gpuyard: No task that is {_either(status)} matches.", file=sys.stderr)
    elif len(found) > 1 and not yes:
        _confirm(f"{doing} {len(found)} tasks ({_some(found)})?")
    return [task.id for task in found]


def _fit(found: "list[Task]", unfit: "Callable[[Task], tuple[str, str] | None]") -> "list[Task]":
    """Return the tasks that are not unfit, and say how many of each kind are left out."""
    kinds = [unfit(task) for task in found]
    counts = Counter(kind for kind in kinds if kind is not None)
    if counts:
        told = ", ".join(f"{count} {several if count > 1 else one}" for (one, several), count in counts.items())
        print(f"gpuyard: {localized(f'Left out: {told}.')}", file=sys.stderr)
    return [task for task, kind in zip(found, kinds, strict=True) if kind is None]


def _meant(cluster: "Client", word: str) -> Iterable[str]:
    if on_line := tasks_of_line(cluster, word):
        return on_line
    try:
        numbers = numbers_in_range(word)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'TASK'") from None
    if numbers is None:
        return [task_named(cluster, word)]
    return (f"task-{number}" for number in numbers)


def tasks_of_line(cluster: "Client", word: str) -> list[str]:
    """Return the ids of all tasks of a line such as `train[…]`; none if it is not written as one, or there is none."""
    line = _LINE.fullmatch(word)
    tasks = [] if line is None else tasks_on_line(cluster, line[1])
    return [task.id for task in sorted(tasks, key=lambda task: task.number)]


def numbers_in_range(word: str) -> range | None:
    """Return the numbers of a range such as 7-12; None if it is not written as one."""
    found = _RANGE.fullmatch(word)
    if found is None:
        return None
    first, last = int(found[1]), int(found[2])
    if not 0 <= last - first < MOST_IN_A_RANGE:
        raise ValueError(f"{word} is not a range of task numbers such as 7-12")
    return range(first, last + 1)


def own_name(cluster: "Client") -> str:
    """Return the name under which this person's tasks are listed."""
    import os
    import pwd

    told = cluster.who_am_i()
    if told.username:
        return told.username
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question[:-1]}: there is no terminal to ask on", param_hint="'--yes'")
    typer.confirm(localized(question), abort=True, err=True)


def _some(tasks: "list[Task]") -> str:
    shown = ", ".join(task.id for task in tasks[:SHOWN])
    return f"{shown}, …" if len(tasks) > SHOWN else shown


def _either(status: str) -> str:
    words = status.split(",")
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
