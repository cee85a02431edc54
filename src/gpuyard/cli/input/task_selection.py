"""Which tasks a command acts on: ids, ranges of ids and names, or every task that matches filters.

task-7  7               this task
7-12                    the tasks with these numbers
train                   the task with this name: the only open one, or else the newest that has ended
--name train --mine …   all tasks that match and that the command can change, after a question
"""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client, Task

OPEN = "pending,running,suspended"
MOST_IN_A_RANGE = 100_000
SHOWN = 5
_RANGE = re.compile(r"(?:task-)?(\d+)-(?:task-)?(\d+)")

TaskArgument = Annotated[str, typer.Argument(metavar="TASK", help="A task: its id, such as task-7 or 7, or its name.")]
TasksArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="TASK...", help="Tasks: ids such as task-7 or 7, ranges such as 7-12, or names."),
]
NameFilter = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="All tasks with exactly this name, and those of a sweep with it."),
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
    found = cluster.page(name=word, status=OPEN, limit=SHOWN + 1)
    if found.total > 1:
        raise typer.BadParameter(
            f"{found.total} open tasks are called {word}: {_some(found.tasks)}. Use the id of one of them",
            param_hint="'TASK'",
        )
    newest = found.tasks or cluster.page(name=word, limit=1).tasks
    if not newest:
        message = f'There is no task with the id or name {word}; ids look like "task-7".'
        raise NotFound(message, status=404, code="UnknownTask")
    return newest[0].id


def tasks_named(cluster: "Client", words: list[str] | None) -> list[str]:
    """Return the ids of all tasks that are named, each once, ranges expanded; at least one must be."""
    if not words:
        raise typer.BadParameter("name a task, such as task-7, 7, 7-12 or a name", param_hint="'TASK'")
    return list(dict.fromkeys(task for word in words for task in _meant(cluster, word)))


def selected(
    cluster: "Client", words: list[str] | None, filters: SelectedBy, *, status: str, doing: str, yes: bool
) -> list[str]:
    """Return the tasks that are meant, in order. Several that filters have found are confirmed first.

    `status`: what the command can change; `doing`: such as "Cancel". Nothing is changed if one of the words is wrong.
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
        found += _of_sweep(filters.name, cluster.tasks(query=f"{filters.name}[", **chosen))
    found.sort(key=lambda task: number_of(task.id) or 0)  # the oldest first
    if not found:
        print(f"gpuyard: No task that is {_either(status)} matches.", file=sys.stderr)
    elif len(found) > 1 and not yes:
        _confirm(f"{doing} {len(found)} tasks ({_some(found)})?")
    return [task.id for task in found]


def _of_sweep(name: str, tasks: "Iterable[Task]") -> "Iterator[Task]":
    """Return the tasks of sweeps with this name: each is called such as `train[lr=0.1]`."""
    return (task for task in tasks if task.name.startswith(f"{name}["))


def _meant(cluster: "Client", word: str) -> Iterable[str]:
    try:
        numbers = numbers_in_range(word)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'TASK'") from None
    if numbers is None:
        return [task_named(cluster, word)]
    return (f"task-{number}" for number in numbers)


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
    from gpuyard.cli.shell.messages import localized

    typer.confirm(localized(question), abort=True, err=True)


def _some(tasks: "list[Task]") -> str:
    shown = ", ".join(task.id for task in tasks[:SHOWN])
    return f"{shown}, …" if len(tasks) > SHOWN else shown


def _either(status: str) -> str:
    words = status.split(",")
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
