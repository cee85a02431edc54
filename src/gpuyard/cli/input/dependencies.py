"""Which tasks `--after`, `--after-any` and the dependencies of a task file mean: ids, ranges, or names.

task-7  7       this task
7-12            the tasks with these numbers
train           the task with this name, or all tasks of the array or sweep with this name

Of several things with one name, the only one that has not ended is meant; if all have ended, the newest one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import typer

from gpuyard.cli.input.task_options import RequestFields
from gpuyard.cli.input.task_selection import OPEN, numbers_in_range, tasks_of_line
from gpuyard.core.domain.errors import WrongInput

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client, Task

OPTIONS: Final = {"depends_on": "--after", "after_any": "--after-any"}
_ID: Final = re.compile(r"(task-)?[1-9][0-9]{0,18}")
_PLACE: Final = re.compile(r"tasks\[[0-9]+\]")
SHOWN = 4


class WrongDependency(WrongInput):
    """A name means no task, or more than one."""


class NoSuchTask(WrongDependency):
    """A name means no task."""


def is_id(word: str) -> bool:
    """Whether a word is the id of a task, and not a name."""
    return _ID.fullmatch(word) is not None


def with_dependencies(cluster: "Client", requests: "Sequence[Mapping[str, Any]]") -> list[RequestFields]:
    """Return the requests with the ids of the tasks that their dependencies name."""
    known: dict[str, list[str]] = {}
    return [_with_ids(cluster, one, known) for one in requests]


def _with_ids(cluster: "Client", request: Mapping[str, Any], known: dict[str, list[str]]) -> RequestFields:
    named = dict(request)
    for field, option in OPTIONS.items():
        found = []
        for word in request.get(field) or ():
            if word not in known:
                try:
                    known[word] = [word] if _PLACE.fullmatch(word) else tasks_meant(cluster, word)
                except WrongDependency as wrong:
                    raise typer.BadParameter(str(wrong), param_hint=f"'{option}'") from None
            found += known[word]
        if found:
            named[field] = list(dict.fromkeys(found))
    return named


def tasks_meant(cluster: "Client", word: str) -> list[str]:
    """Return the ids of the tasks that a word means, in order."""
    if is_id(word):
        return [word]
    try:
        numbers = numbers_in_range(word)
    except ValueError as error:
        raise WrongDependency(str(error)) from None
    if numbers is not None:
        return [f"task-{number}" for number in numbers]
    if on_line := tasks_of_line(cluster, word):
        return on_line
    newest = _only_open(cluster, word) or _newest(cluster, word)
    if not newest:
        raise NoSuchTask(f"there is no task, array or sweep with the id or name {word[:80]!r}")
    one = newest[0]
    whole = _groups(_called(cluster, word, since=one.created_at), word)
    found = whole.get(_group_of(one, word)) or newest
    return [task.id for task in sorted(found, key=lambda task: task.number)]


def open_task_meant(cluster: "Client", word: str) -> str:
    """Return the id of a task of the array or sweep with this name that has not ended; an id is returned as it is."""
    if is_id(word):
        return f"task-{word.removeprefix('task-')}"
    found = _only_open(cluster, word)
    if not found:
        raise NoSuchTask(f"no array or sweep that has not ended is called {word[:80]!r}")
    return found[0].id


def _only_open(cluster: "Client", name: str) -> "list[Task]":
    """Return the open tasks of the only task, array or sweep with this name that has not ended; empty: there is none."""
    groups = _groups(_called(cluster, name, status=OPEN), name)
    if len(groups) > 1:
        shown = ", ".join(_shown(group) for group in list(groups.values())[:SHOWN])
        more = ", …" if len(groups) > SHOWN else ""
        message = f"{len(groups)} tasks, arrays or sweeps that have not ended are called {name}: {shown}{more}; use ids"
        raise WrongDependency(message)
    return next(iter(groups.values()), [])


def _called(cluster: "Client", name: str, **filters: Any) -> "Iterable[Task]":
    """Yield the tasks with this name, and those of sweeps with it, which are called such as `train[lr=0.1]`."""
    of_sweeps = (task for task in cluster.tasks(query=f"{name}[", **filters) if task.name.startswith(f"{name}["))
    return chain(cluster.tasks(name=name, **filters), of_sweeps)


def _newest(cluster: "Client", name: str) -> "list[Task]":
    """Return the newest task with this name, or of a sweep with it."""
    named = list(cluster.page(name=name, limit=1).tasks)
    of_sweep = next((task for task in cluster.tasks(query=f"{name}[") if task.name.startswith(f"{name}[")), None)
    found = [*named, *([of_sweep] if of_sweep is not None else [])]
    return sorted(found, key=lambda task: -task.number)[:1]


def _groups(tasks: "Iterable[Task]", word: str) -> "dict[tuple[object, ...], list[Task]]":
    """Return the tasks by array or sweep; any other task is alone."""
    groups: dict[tuple[object, ...], list[Task]] = {}
    for task in tasks:
        groups.setdefault(_group_of(task, word), []).append(task)
    return groups


def _group_of(task: "Task", word: str) -> tuple[object, ...]:
    """Return what the tasks of an array or sweep have in common."""
    if task.array_index is not None:
        return ("array", task.number - task.array_index, task.created_at)
    if task.name != word:
        return ("sweep", task.user, task.tenant_id, task.created_at)
    return ("task", task.number)


def _shown(tasks: "list[Task]") -> str:
    numbers = sorted(task.number for task in tasks)
    return f"task-{numbers[0]}" if len(numbers) == 1 else f"task-{numbers[0]} to task-{numbers[-1]}"
