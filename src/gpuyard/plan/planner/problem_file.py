"""Reads problem files: `planner-instance/1` as JSON, and the workflow file format, as YAML or JSON.

    text ─► fast: the JSON is a valid instance ─────────────────────────────────┐
         └► careful: parse, convert the workflow format (dialect), read strictly ┴► validate ─► Problem

The input is text, the result a `Problem`, or a `WrongInput` that names line, place and reason; the caller opens files.
A million calls take seconds: only text that the fast reader refuses is read carefully, to find the error.
"""

from collections.abc import Mapping
from itertools import chain
from math import isfinite
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import UNSET

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input import strict
from gpuyard.input.document import parse, refuse_repeated_names, with_line
from gpuyard.input.error_location import FieldPath, LocatedError, format_path
from gpuyard.plan.planner.instance import FORMAT, Instance, WrittenGpu, WrittenWorkflow
from gpuyard.plan.planner.problem import Calls, Level, Model, ModelLevel, PlannerGpu, Problem, Requests, Workflow
from gpuyard.plan.planner.validate import RepeatedId, validate
from gpuyard.plan.planner.workflow_format import Predict, to_instance

_STRICT: Final = strict.Strict(Instance, what="the file")
_LARGEST_WITH_NAMES: Final = 64_000_000
"""Longer texts, which programs wrote, are not checked for repeated names."""


def read_problem(text: bytes, *, gpus: int | None = None, predict: Predict | None = None) -> Problem:
    """Read a problem. `gpus`: use that number of GPUs, which repeat those of the file in turn.

    `predict` returns the seconds of nodes whose time is to be predicted.
    """
    spelled: dict[FieldPath, FieldPath] = {}
    """The paths in the file, for paths that have another name in an instance."""
    try:
        said = _quick(text) or _careful(text, spelled, predict)
        if gpus is not None:
            said.gpus = [_like(said.gpus, number) for number in range(gpus)]
        try:
            validate(said)
        except RepeatedId as error:
            path, first = (_in_their_words(each, spelled) for each in (error.path, error.first))
            raise RepeatedId(path, error.name, first) from None
        except LocatedError as error:
            raise LocatedError(_in_their_words(error.path, spelled), error.sentence) from None
    except LocatedError as error:
        raise with_line(error, text) from None
    return problem_of(said)


def _like(gpus: list[WrittenGpu], number: int) -> WrittenGpu:
    return msgspec.structs.replace(gpus[number % len(gpus)], id=number) if gpus else WrittenGpu(number)


# --- text -------------------------------------------------------------------------------------------------------------


def _quick(text: bytes) -> Instance | None:
    """Decode an instance; None if the text must be read carefully."""
    try:
        said = msgspec.json.decode(text, type=Instance)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if said.format != FORMAT:
        return None
    if len(text) < _LARGEST_WITH_NAMES:
        refuse_repeated_names(text)
    return said


def _careful(text: bytes, spelled: dict[FieldPath, FieldPath], predict: Predict | None) -> Instance:
    said = parse(text).value
    if not isinstance(said, Mapping) or not said:
        raise WrongInput("This is not a problem: it must have models, workflows, requests and gpus.")
    _finite(said, ())
    if "format" not in said:
        said = {"format": FORMAT, **to_instance(said, spelled, predict)}
    elif said["format"] != FORMAT:
        raise LocatedError(
            ("format",), f"this is {said['format']!r}; known is {FORMAT!r}, or no format for the workflow file format."
        )
    try:
        return _STRICT.plain(said)
    except strict.WrongRequest as error:
        theirs, sentence = _in_their_words(error.path, spelled), str(error)
        for ours, at in (
            (error.path, theirs),
            (error.path[:-1], theirs[:-1]),
        ):  # an unknown name is reported with the path of its parent
            if ours and format_path(ours) in sentence:
                sentence = sentence.replace(format_path(ours), format_path(at), 1)
                break
        raise LocatedError(theirs, sentence, names_place=True) from None


def _in_their_words(ours: FieldPath, spelled: Mapping[FieldPath, FieldPath]) -> FieldPath:
    """Return a path as it is in the file."""
    known = next((n for n in range(len(ours), 0, -1) if ours[:n] in spelled), 0)
    return (*spelled[ours[:known]], *ours[known:]) if known else ours


def _finite(said: Any, path: FieldPath) -> None:
    """Raise an error for infinities and NaN, which YAML can express."""
    if isinstance(said, float) and not isfinite(said):
        raise LocatedError(path, f"this is {said}; all numbers must be finite.")
    if isinstance(said, Mapping):
        for key, value in said.items():
            _finite(value, (*path, key))
    elif isinstance(said, list):
        for place, value in enumerate(said):
            _finite(value, (*path, place))


# --- columns ----------------------------------------------------------------------------------------------------------


def problem_of(said: Instance) -> Problem:
    """Convert an instance into the columns that strategies use."""
    models = tuple(
        Model(
            name,
            m.memory_gb,
            m.gpus,
            m.load_time_s if m.load_time_s is not UNSET else m.memory_gb / said.pcie_gb_s + said.switch_overhead_s,
            m.memory_gb / said.pcie_gb_s,
            tuple(ModelLevel(level.speed, level.watts) for level in m.levels),
        )
        for name, m in said.models.items()
    )
    gpus = tuple(
        PlannerGpu(
            g.id, g.type, g.memory_gb, g.speed, g.idle_watts, tuple(Level(x.speed, x.watts, x.mhz) for x in g.levels)
        )
        for g in said.gpus
    )
    number = {name: i for i, name in enumerate(said.models)}
    workflows = tuple(_workflow(name, w, number) for name, w in said.workflows.items())
    which = {w.name: i for i, w in enumerate(workflows)}
    requests = Requests(
        tuple(r.id for r in said.requests),
        np.array([which[r.workflow] for r in said.requests], dtype=np.int32),
        np.array([r.arrival_s for r in said.requests], dtype=np.float64),
        np.array([r.priority for r in said.requests], dtype=np.int32),
        np.array([r.deadline_s for r in said.requests], dtype=np.float64),
    )
    times = [
        workflows[w].seconds if r.exec_times is None else r.exec_times
        for r, w in zip(said.requests, requests.workflow.tolist(), strict=True)
    ]
    seconds = np.fromiter(chain.from_iterable(times), dtype=np.float64)
    calls = calls_of(workflows, requests, seconds)
    return Problem(
        said.name,
        models,
        gpus,
        workflows,
        requests,
        calls,
        said.multi_model is True,
        said.preload is True,
        said.family,
        said.seed,
    )


def _workflow(name: str, said: WrittenWorkflow, number: dict[str, int]) -> Workflow:
    position = {node.id: i for i, node in enumerate(said.nodes)}
    return Workflow(
        name,
        tuple(node.id for node in said.nodes),
        tuple(number[node.model] for node in said.nodes),
        tuple(node.exec_time if node.exec_time is not UNSET else 0.0 for node in said.nodes),
        tuple(tuple(dict.fromkeys(position[d] for d in node.deps)) for node in said.nodes),
    )


def calls_of(workflows: tuple[Workflow, ...], requests: Requests, seconds: Any) -> Calls:
    """Build the columns of all calls: those of each workflow are made once and repeated for its requests."""
    shapes = [_shape(w) for w in workflows]
    which = requests.workflow
    sizes = np.array([len(w.nodes) for w in workflows], dtype=np.int64)[which]
    first = np.concatenate(([0], np.cumsum(sizes)))
    of_request = np.repeat(np.arange(len(which)), sizes)

    def laid(column: int) -> Any:
        parts = [shape[column] for shape in shapes]
        return _take(parts, which) if parts else np.zeros(0, dtype=np.int64)

    def edges(counts: int, ends: int) -> tuple[Any, Any]:
        at = np.concatenate(([0], np.cumsum(laid(counts))))
        many = np.array([len(shape[ends]) for shape in shapes], dtype=np.int64)[which]
        return at.astype(np.int32), (laid(ends) + np.repeat(first[:-1], many)).astype(np.int32)

    before_at, before = edges(1, 2)
    after_at, after = edges(3, 4)
    position = np.arange(first[-1]) - np.repeat(first[:-1], sizes)
    return Calls(
        of_request.astype(np.int32),
        position.astype(np.int32),
        laid(0).astype(np.int32),
        np.ascontiguousarray(seconds, dtype=np.float64),
        requests.arrival_s[of_request],
        before_at,
        before,
        after_at,
        after,
    )


def _shape(workflow: Workflow) -> tuple[Any, ...]:
    """Return the models, then the numbers and the concatenated lists of the nodes before and after each node."""
    after: list[list[int]] = [[] for _ in workflow.nodes]
    for node, some in enumerate(workflow.before):
        for earlier in some:
            after[earlier].append(node)

    def flat(lists: Any) -> tuple[Any, Any]:
        return (
            np.array([len(some) for some in lists], dtype=np.int64),
            np.array([x for some in lists for x in some], dtype=np.int64),
        )

    return (np.array(workflow.models, dtype=np.int64), *flat(workflow.before), *flat(after))


def _take(parts: list[Any], which: Any) -> Any:
    """Concatenate `parts[which[0]]`, `parts[which[1]]`, …, without a loop over `which`."""
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    chosen = sizes[which]
    offsets = np.arange(chosen.sum()) - np.repeat(np.cumsum(chosen) - chosen, chosen)
    return np.concatenate(parts)[np.repeat(starts[which], chosen) + offsets]
