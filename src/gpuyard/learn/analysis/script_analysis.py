"""Entry point: return the tasks of a script, their dependencies and what could be submitted. The script is not run."""

import ast
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.arguments import argument
from gpuyard.input.files import is_file, is_folder, path_of, shown_path
from gpuyard.learn.analysis import iterations
from gpuyard.learn.analysis.dataflow import Edges, dependencies, needs
from gpuyard.learn.analysis.graph import Need, ScriptTask, TaskGraph, graph_of
from gpuyard.learn.analysis.source import one_line
from gpuyard.learn.analysis.steps import Script, Unit, read_script, step_name
from gpuyard.learn.analysis.submission import requests_of, whole_of

Durations = dict[str, Annotated[float, Meta(ge=0, le=315_360_000)]] | None
"""In seconds, at most ten years."""
DEEP = 20_000
"""Recursion limit while reading: code may be nested deeply."""


def analyze(
    path: Path | str,
    arguments: Sequence[str] = (),
    *,
    seconds: Mapping[str, float] | None = None,
    python: str = sys.executable,
) -> TaskGraph:
    """Read a Python script as it would run with these arguments.

    `seconds` are durations by the id of the task; when every task has one, the critical path counts seconds. `python`
    is the interpreter of the resulting requests.
    """
    path, arguments = path_of("path", path), argument("arguments", arguments, list[str])
    seconds, python = argument("seconds", seconds, Durations), argument("python", python, str)
    if not is_file(path):
        what = "this is a folder; give one Python script in it" if is_folder(path) else "no such file"
        raise WrongInput(f"{shown_path(path)}: {what}.")
    if path.suffix in {".sh", ".bash", ".mk"} or path.name == "Makefile":
        raise WrongInput(f"{shown_path(path)}: this is not a Python script.")
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(max(limit, DEEP))
        script = read_script(path, arguments)
        edges = dependencies(script.units, script.hazard)
        tasks = _tasks(script, edges, seconds or {})
    except RecursionError:
        raise WrongInput(f"{shown_path(path)}: it is nested too deeply to be read.") from None
    finally:
        sys.setrecursionlimit(limit)
    _check_names(path, [task.id for task in tasks.values()], seconds or {})
    notes = () if tasks else (f"{script.module.shown} contains no tasks.",)
    if len(tasks) > 1 and script.hazard is not None:
        notes = (f"All steps keep their order: {script.hazard}.",)
    requests, undivided = requests_of(script, edges, tasks, path, arguments, python)
    whole = whole_of(tasks, path, arguments, python)
    return graph_of(script.module.shown, list(tasks.values()), notes, requests, whole, undivided)


def _tasks(script: Script, edges: Edges, seconds: Mapping[str, float]) -> dict[int, ScriptTask]:
    """Return the steps as tasks, by the number of their unit."""
    steps = [unit for unit in script.units if unit.is_step]
    names = _names(steps)
    needed = needs(script.units, edges)
    tasks = {}
    for unit in steps:
        clues, files = unit.effects.clues, unit.effects.files
        name = names[unit.number]
        why = needed[unit.number].items()
        is_loop = isinstance(unit.node, ast.For | ast.While)
        dependent = iterations.why_dependent(unit, script) if is_loop else None
        tasks[unit.number] = ScriptTask(
            id=name,
            does=one_line(unit.node),
            file=unit.walker.module.shown,
            line=unit.node.lineno,
            end_line=unit.node.end_lineno or unit.node.lineno,
            kind=clues.kind(),
            bound=clues.bound(),
            needs=tuple(Need(names[other], "; ".join(sorted(map(str, reasons)))) for other, reasons in why),
            rounds=unit.rounds,
            independent=is_loop and dependent is None,
            dependent=dependent,
            reads=tuple(sorted({file.path for file in files if not file.writes})),
            writes=tuple(sorted({file.path for file in files if file.writes})),
            gpus=clues.processes if clues.uses_gpu and clues.kind() != "data" else 0,
            seconds=seconds.get(name),
            evidence=clues.evidence(),
        )
    return tasks


def _names(steps: Sequence[Unit]) -> dict[int, str]:
    """Return a name for each step; the second `load` is `load-2`."""
    used: dict[str, int] = {}
    names = {}
    for unit in steps:
        name = step_name(unit)
        used[name] = used.get(name, 0) + 1
        names[unit.number] = name if used[name] == 1 else f"{name}-{used[name]}"
    return names


def _check_names(path: Path, known: Sequence[str], seconds: Mapping[str, float]) -> None:
    for name in seconds:
        if name not in known:
            near = get_close_matches(name, known, 1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise WrongInput(f"Unknown task {name!r} in {path.name}.{meant}")
