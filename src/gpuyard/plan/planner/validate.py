"""Validates an instance as a whole: names are unique and known, graphs are acyclic, models fit."""

from collections.abc import Iterable
from itertools import groupby
from math import inf
from typing import Final

from msgspec import UNSET

from gpuyard.input.error_location import FieldPath, LocatedError, format_path
from gpuyard.input.nearest_name import closest_word
from gpuyard.plan.planner.instance import Instance, WrittenGpu, WrittenModel, WrittenWorkflow

PRELOAD_NEEDS_MEMORY: Final = "and preload needs it: a model is loaded beside another one only if both fit."


class RepeatedId(LocatedError):
    """Two objects have the same id; `first` is the path of the first one."""

    def __init__(self, path: FieldPath, name: object, first: FieldPath) -> None:
        self.name, self.first = name, first
        super().__init__(path, f"{name!r} is also the id of {format_path(first[-2:])}.")


def validate(said: Instance) -> None:
    """Raise `LocatedError` for the first violation."""
    if not said.gpus:
        raise LocatedError(("gpus",), "there are none; list them in the file, or give their number with --gpus N.")
    _unique((gpu.id for gpu in said.gpus), ("gpus",))
    for place, gpu in enumerate(said.gpus):
        if gpu.levels and gpu.levels[0].speed != 1:
            raise LocatedError(
                ("gpus", place, "levels", 0, "speed"),
                (
                    f"this is {gpu.levels[0].speed:g}; the first power level must be full speed, 1, and "
                    "the others fractions of it."
                ),
            )
    _model_levels(said)
    if said.preload is True:
        _memory_known(said.gpus)
    for name, workflow in said.workflows.items():
        _workflow(said, workflow, ("workflows", name, "nodes"))
    _unique((request.id for request in said.requests), ("requests",))
    _requests(said)
    called = {node.model for workflow in said.workflows.values() for node in workflow.nodes}
    for name, model in said.models.items():
        if name in called:
            _fits(model, said.gpus, ("models", name))


def _memory_known(gpus: list[WrittenGpu]) -> None:
    """Raise an error if a GPU has no memory: whether two models fit side by side must be known."""
    for place, gpu in enumerate(gpus):
        if gpu.memory_gb == inf:
            raise LocatedError(("gpus", place), f"this GPU has no memory_gb, {PRELOAD_NEEDS_MEMORY}")


def _model_levels(said: Instance) -> None:
    most = max(max(len(gpu.levels), 1) for gpu in said.gpus)
    for name, model in said.models.items():
        path: FieldPath = ("models", name, "levels")
        if model.levels and model.levels[0].speed != 1:
            raise LocatedError(
                (*path, 0, "speed"), f"this is {model.levels[0].speed:g}; the first level is full speed, 1."
            )
        if len(model.levels) > most:
            raise LocatedError(path, f"there are {len(model.levels)} power levels, and the GPUs have {most}.")


def _unique(ids: Iterable[object], path: FieldPath) -> None:
    seen: dict[object, int] = {}
    for place, name in enumerate(ids):
        first = seen.setdefault(name, place)
        if first != place:
            raise RepeatedId((*path, place, "id"), name, (*path, first))


def _workflow(said: Instance, workflow: WrittenWorkflow, path: FieldPath) -> None:
    _unique((node.id for node in workflow.nodes), path)
    known = {node.id for node in workflow.nodes}
    for place, node in enumerate(workflow.nodes):
        if node.model not in said.models:
            raise LocatedError((*path, place, "model"), _no_such("model", node.model, said.models))
        for other in node.deps:
            if other not in known:
                raise LocatedError((*path, place, "deps"), _no_such("node", other, known))
    if cycle := _cycle(workflow):
        place = next(i for i, node in enumerate(workflow.nodes) if node.id == cycle[0])
        raise LocatedError((*path, place, "deps"), f"the nodes depend on each other in a cycle: {' → '.join(cycle)}.")


def _no_such(what: str, name: str, known: Iterable[str]) -> str:
    near = closest_word(name, known)
    return f"unknown {what} {name!r}" + (f"; did you mean {near!r}?" if near else ".")


def _cycle(workflow: WrittenWorkflow) -> list[str]:
    """Return the nodes of a cycle in running order, with the first repeated at the end; empty if there is no cycle."""
    waits = {node.id: len(set(node.deps)) for node in workflow.nodes}
    after: dict[str, list[str]] = {node.id: [] for node in workflow.nodes}
    for node in workflow.nodes:
        for other in set(node.deps):
            after[other].append(node.id)
    ready = [name for name, count in waits.items() if not count]
    for name in ready:
        for later in after[name]:
            waits[later] -= 1
            if not waits[later]:
                ready.append(later)
    stuck = {name for name, count in waits.items() if count}
    if not stuck:
        return []
    # Every blocked node waits for a blocked node, so walking back must reach a node twice.
    before = {node.id: next(other for other in node.deps if other in stuck) for node in workflow.nodes if node.id in stuck}  # fmt: skip
    name, seen = next(iter(before)), []
    while name not in seen:
        seen.append(name)
        name = before[name]
    circle = seen[seen.index(name) :]
    return [name, *reversed(circle)]


def _requests(said: Instance) -> None:
    sizes = {name: len(workflow.nodes) for name, workflow in said.workflows.items()}
    without = {
        name: next((node.id for node in workflow.nodes if node.exec_time is UNSET), None)
        for name, workflow in said.workflows.items()
    }
    for place, request in enumerate(said.requests):
        size = sizes.get(request.workflow)
        if size is None:
            raise LocatedError(("requests", place, "workflow"), _no_such("workflow", request.workflow, sizes))
        if request.exec_times is None:
            if (node := without[request.workflow]) is not None:
                raise LocatedError(
                    ("requests", place),
                    f"node {node!r} has no time, here or in the workflow {request.workflow!r}.",
                )
        elif len(request.exec_times) != size:
            raise LocatedError(
                ("requests", place, "exec_times"),
                f"there are {len(request.exec_times)} times, and {size} nodes in the workflow {request.workflow!r}.",
            )


def _fits(model: WrittenModel, gpus: list[WrittenGpu], path: FieldPath) -> None:
    largest = max(gpu.memory_gb for gpu in gpus)
    if model.memory_gb > largest:
        raise LocatedError(path, f"it needs {model.memory_gb:g} GB on a GPU, and the largest GPU has {largest:g} GB.")
    runs = groupby(gpus, key=lambda gpu: gpu.memory_gb >= model.memory_gb)
    longest = max(len(list(run)) for fits, run in runs if fits)
    if model.gpus > longest:
        enough = f" with {model.memory_gb:g} GB" if longest < len(gpus) else ""
        raise LocatedError(path, f"it needs {model.gpus} adjacent GPUs{enough}, and there are {longest}.")
