"""The front door of the room: a file or a folder in, its tasks and what the yard would be asked to run out."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.analysis.graph import Graph, graph_of
from gpuyard.learn.analysis.programs import MAKEFILES, Programs
from gpuyard.learn.analysis.script import Script, script_graph
from gpuyard.learn.analysis.sources import Project, Unreadable, read_bytes
from gpuyard.learn.analysis.submission import Request, of_programs, of_script

DEEP = 20_000
"""Calls within calls that Python allows us: sources may be nested deeply, and we go with them."""


def analyze(
    path: Path, words: Sequence[str] = (), *, python: str = "python", tell: Callable[[str], None] = lambda _: None
) -> tuple[Graph, list[Request]]:
    """Read it. `words` is the command line a script is looked at with, `tell` hears how far a large folder is."""
    with _room_for_depth():
        try:
            return _analyze(path, words, python, tell)
        except RecursionError:
            raise Unreadable(f"{path}: it is nested too deeply to be read.") from None


def _analyze(path: Path, words: Sequence[str], python: str, tell: Callable[[str], None]) -> tuple[Graph, list[Request]]:
    if not path.exists():
        raise Unreadable(f"{path}: there is no such file or folder.")
    if path.is_dir():
        _check_listable(path)
        graph = Programs(path, tell).graph(python)
        return graph, of_programs(graph, path)
    begins = read_bytes(path, path.name)[:20]
    if path.name in MAKEFILES or path.suffix == ".sh" or begins.startswith(_SHELLS):
        graph = Programs(path.parent, tell).graph_of_file(path)
        return graph, of_programs(graph, path.parent)
    project = Project(path)
    script = Script(project, project.module(path), words)
    return script_graph(script), of_script(script, path, words, python)


_SHELLS = (b"#!/bin/bash", b"#!/bin/sh", b"#!/usr/bin/env bash", b"#!/usr/bin/env sh")


def _check_listable(folder: Path) -> None:
    try:
        next(folder.iterdir(), None)
    except OSError as error:
        raise Unreadable(f"{folder}: {error.strerror}.") from None


def with_seconds(graph: Graph, seconds: Mapping[str, float]) -> Graph:
    """The same with how long tasks take, by name."""
    known = {task.id for task in graph.tasks}
    for name in seconds:
        if name not in known:
            from difflib import get_close_matches

            near = get_close_matches(name, sorted(known), 1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            raise WrongInput(f"There is no task {name!r} in {graph.source}.{meant}")
    tasks = [replace(task, seconds=seconds.get(task.id)) for task in graph.tasks]
    return graph_of(graph.source, graph.what, tasks, graph.notes)


@contextmanager
def _room_for_depth() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, DEEP))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
