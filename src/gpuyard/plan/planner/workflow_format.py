"""Converts the workflow file format (YAML or JSON without `format`) into `planner-instance/1`.

    models:    {chat: {memory_gb: 16, gpus_required: 1, load_time_seconds: 3}}          or a list with names
    workflows: {w: {nodes: [{node_id: a, model_name: chat, estimated_time: 4}, …],      or a list with ids
                    edges: [[a, b], {from: b, to: c}]}}
    requests:  [{request_id: r, workflow_id: w, node_execution_times: {a: 3.5}, arrival_time: 10},
                {request_id: s, workflow_id: w, count: 400}]                            s-0 to s-399
    gpus:      4                                                                        or a list, or {count, memory_gb}

`exec_time: predicted` with `work: {model: bert-base, mode: infer, batch: 8}` asks the function `predict` that the caller
passes for the seconds of that work on the type of the GPUs.

Each field has one name in an instance and may have aliases here. An unknown name is refused, with the closest known
one. Errors name the path as it is in the file.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.error_location import FieldPath, LocatedError, format_path
from gpuyard.input.nearest_name import closest_word
from gpuyard.plan.planner.instance import (
    Instance,
    WrittenGpu,
    WrittenModel,
    WrittenNode,
    WrittenRequest,
    WrittenWorkflow,
)

PREDICTED: Final = "predicted"
Predict = Callable[[Mapping[str, Any], str], float]
"""Returns the seconds of a work, as `gpuyard predict` describes it, on a type of GPU."""


class _Words:
    """The field names of one kind of object, with their aliases, and ignored fields for human readers."""

    def __init__(self, kind: type[msgspec.Struct] | None, others: Mapping[str, str], more: str = "") -> None:
        fields = kind.__struct_fields__ if kind is not None else ()
        names = {**dict.fromkeys(others, ""), **dict.fromkeys((*fields, *more.split()), ""), **others}
        self.ours = {word: name for name, words in names.items() for word in (*words.split(), name)}
        self.ids = {word for word, name in self.ours.items() if name == "id"} - {"name"}
        self.usual = [(words.split() or [name])[0] for name, words in names.items()]
        """One name for each field, as the workflow file format has it."""

    def unknown(self, word: Any, path: FieldPath) -> LocatedError:
        """Return the error for an unknown name."""
        near = closest_word(str(word), self.ours)
        hint = f'did you mean "{near}"?' if near else f"known names: {', '.join(self.usual)}."
        where = format_path(path) if path else "the file"
        return LocatedError((*path, word), f'Unknown name "{word}" in {where}; {hint}', names_place=True)


_TOP: Final = _Words(
    Instance,
    {
        "gpus": "gpus num_gpus gpu_count",
        "pcie_gb_s": "pcie_bandwidth_gb_s pcie_bandwidth",
        "switch_overhead_s": "switch_overhead_seconds switch_overhead",
    },
    "gpu_memory_gb",
)
_MODEL: Final = _Words(
    WrittenModel,
    {"id": "model_name name", "gpus": "gpus_required", "load_time_s": "load_time_seconds load_time"},
)
_GPU: Final = _Words(WrittenGpu, {"id": "gpu_id", "type": "gpu_type"})
_LIKE: Final = _Words(WrittenGpu, {"type": "gpu_type"}, "count")
_WORKFLOW: Final = _Words(WrittenWorkflow, {"id": "workflow_id name"}, "edges")
_NODE: Final = _Words(
    WrittenNode,
    {
        "id": "node_id name",
        "model": "model_name",
        "exec_time": "estimated_time execution_time execution_time_seconds estimated_time_seconds exec_time_s",
        "deps": "dependencies depends_on",
    },
    "work",
)
_REQUEST: Final = _Words(
    WrittenRequest,
    {
        "id": "request_id",
        "workflow": "workflow_id",
        "exec_times": "node_execution_times execution_times",
        "arrival_s": "arrival_time arrival_time_seconds arrival",
        "deadline_s": "deadline deadline_seconds",
    },
    "count",
)
MOST_ALIKE: Final = 1_000_000
"""The largest `count` of a request."""
_ENDS: Final = _Words(None, {"from": "source", "to": "target"})


def to_instance(
    said: Mapping[str, Any], spelled: dict[FieldPath, FieldPath], predict: Predict | None = None
) -> dict[str, Any]:
    """Convert a file to an instance; `spelled` is filled with the path in the file of each path in the instance."""
    ours = _renamed(said, _TOP, (), (), spelled)
    memory = ours.pop("gpu_memory_gb", None)
    ours["models"] = _by_name(ours, "models", _MODEL, spelled)
    ours["workflows"] = _by_name(ours, "workflows", _WORKFLOW, spelled)
    for name, workflow in ours["workflows"].items():
        ours["workflows"][name] = _workflow(workflow, ("workflows", name), spelled)
    ours["gpus"] = _gpus(ours.get("gpus", []), memory, spelled)
    for name, workflow in ours["workflows"].items():
        for place, node in enumerate(workflow["nodes"]):
            _predicted(node, ours["gpus"], ("workflows", name, "nodes", place), spelled, predict)
    ours["requests"] = _requests(ours, spelled)
    return ours


def _predicted(
    node: dict[str, Any], gpus: Any, path: FieldPath, spelled: dict[FieldPath, FieldPath], predict: Predict | None
) -> None:
    """Replace a predicted time by seconds."""
    work = node.pop("work", None)
    if node.get("exec_time") != PREDICTED:
        if work is not None:
            raise LocatedError(spelled[(*path, "work")], f"this needs exec_time: {PREDICTED}.")
        return
    theirs = spelled[(*path, "exec_time")]
    if not isinstance(work, Mapping):
        raise LocatedError(theirs, "to predict it, describe the work: work: {model: bert-base, mode: infer, batch: 8}.")
    kind = gpus[0].get("type") if gpus and isinstance(gpus[0], Mapping) else None
    if not isinstance(kind, str) or not kind:
        raise LocatedError(theirs, "to predict it, give the type of the GPUs: gpus: {count: 4, type: H200}.")
    if predict is None:
        raise LocatedError(theirs, "this reader has no predictor; use a `gpuyard plan` command, or read(…, predict=…).")
    try:
        node["exec_time"] = predict(work, kind)
    except WrongInput as error:
        raise LocatedError(spelled[(*path, "work")], str(error)) from None


def _renamed(
    said: Mapping[str, Any],
    words: _Words,
    path: FieldPath,
    theirs: FieldPath,
    spelled: dict[FieldPath, FieldPath],
    *,
    has_name: bool = False,
) -> dict[str, Any]:
    """Replace aliases by field names. A description is ignored, and so is a name if there is an id."""
    skipped = {"description", "name"} if has_name or not words.ids.isdisjoint(said) else {"description"}
    ours: dict[str, Any] = {}
    for word, value in said.items():
        if word in skipped:
            continue
        name = words.ours.get(word)
        if name is None:
            raise words.unknown(word, theirs)
        if name in ours:
            raise LocatedError(
                (*theirs, word), f"this and {spelled[*path, name][-1]!r} mean the same; remove one of them."
            )
        ours[name] = value
        spelled[(*path, name)] = (*theirs, word)
    return ours


def _objects(said: Any, path: FieldPath, *, named: bool = False) -> list[Mapping[str, Any]]:
    """Return a list of objects. `named`: a mapping from ids to objects is accepted, too."""
    if named and isinstance(said, Mapping):
        said = [{"id": name, **item} if isinstance(item, Mapping) else item for name, item in said.items()]
    if not isinstance(said, list):
        raise LocatedError(path, "this must be a list.")
    for place, item in enumerate(said):
        if not isinstance(item, Mapping):
            raise LocatedError((*path, place), f"this is {item!r}; it must be an object.")
    return said


def _by_name(ours: dict[str, Any], key: str, words: _Words, spelled: dict[FieldPath, FieldPath]) -> dict[str, Any]:
    """Return a mapping by name; the file may have a list of objects with names instead."""
    said = ours.get(key, {})
    made: dict[str, Any] = {}
    if isinstance(said, Mapping):
        for name, item in said.items():
            if not isinstance(item, Mapping):
                raise LocatedError((key, name), f"this is {item!r}; it must be an object.")
            made[_name(name, (key,))] = _renamed(item, words, (key, str(name)), (key, name), spelled, has_name=True)
        return made
    for place, item in enumerate(_objects(said, (key,))):
        name = _name(_renamed(item, words, (), (key, place), {}).get("id"), (key, place))
        if name in made:
            raise LocatedError((key, place), f"{name!r} is also the name of another one.")
        spelled[(key, name)] = (key, place)
        made[name] = _renamed(item, words, (key, name), (key, place), spelled)
        del made[name]["id"]
    return made


def _workflow(said: dict[str, Any], path: FieldPath, spelled: dict[FieldPath, FieldPath]) -> dict[str, Any]:
    """Return the nodes with their dependencies; edges are added to them."""
    theirs = spelled.get(path, path)
    nodes: dict[str, dict[str, Any]] = {}
    made = []
    for place, node in enumerate(_objects(said.get("nodes"), (*theirs, "nodes"), named=True)):
        at = (*theirs, "nodes", place)
        one = _renamed(node, _NODE, (*path, "nodes", place), at, spelled)
        one["id"] = _name(one.get("id"), at)
        if not isinstance(one.setdefault("deps", []), list):
            raise LocatedError(spelled[(*path, "nodes", place, "deps")], "this must be a list of nodes.")
        one["deps"] = [_name(other, at) for other in one["deps"]]
        nodes[one["id"]] = one
        made.append(one)
    edges = said.pop("edges", [])
    if not isinstance(edges, list):
        raise LocatedError((*theirs, "edges"), "this must be a list of pairs.")
    for place, edge in enumerate(edges):
        first, then = _ends(edge, (*theirs, "edges", place))
        for end in (first, then):
            if end not in nodes:
                raise LocatedError((*theirs, "edges", place), f"the workflow has no node {end!r}.")
        nodes[then]["deps"].append(first)
    return {**said, "nodes": made}


def _ends(edge: Any, path: FieldPath) -> tuple[str, str]:
    if isinstance(edge, Mapping):
        edge = _renamed(edge, _ENDS, (), path, {})
        edge = [edge["from"], edge["to"]] if edge.keys() == {"from", "to"} else None
    if not isinstance(edge, list) or len(edge) != 2:
        raise LocatedError(path, "an edge is a pair of nodes, [a, b] or {from: a, to: b}.")
    return _name(edge[0], path), _name(edge[1], path)


def _requests(ours: dict[str, Any], spelled: dict[FieldPath, FieldPath]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for place, request in enumerate(_objects(ours.get("requests", []), ("requests",), named=True)):
        path: FieldPath = ("requests", len(made))
        spelled[path] = ("requests", place)
        one = _renamed(request, _REQUEST, path, ("requests", place), spelled)
        one |= {word: _name(one[word], spelled[(*path, word)]) for word in ("id", "workflow") if word in one}
        if isinstance(one.get("exec_times"), Mapping):
            one["exec_times"] = _times(ours["workflows"], one, spelled[(*path, "exec_times")])
        if "count" not in one:
            made.append(one)
            continue
        count = one.pop("count")
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST_ALIKE:
            raise LocatedError(
                spelled[(*path, "count")], f"this is {count!r}; it must be a whole number from 1 to {MOST_ALIKE:,}."
            )
        for number in range(count):
            spelled[("requests", len(made))] = ("requests", place)
            made.append({**one, "id": f"{one['id']}-{number}"} if "id" in one else one)
    return made


def _times(workflows: dict[str, Any], request: dict[str, Any], path: FieldPath) -> Any:
    """Return the times by node as a list in the order of the workflow's nodes; missing ones are the node's own."""
    workflow = workflows.get(request.get("workflow", ""))
    if workflow is None:
        return None  # the unknown workflow is reported elsewhere
    times = {_name(node, path): seconds for node, seconds in request["exec_times"].items()}
    usual = {node["id"]: node.get("exec_time") for node in workflow["nodes"]}
    for node in times:
        if node not in usual:
            raise LocatedError((*path, node), f"the workflow {request['workflow']!r} does not have this node.")
    for node, seconds in usual.items():
        if times.get(node, seconds) is None:
            raise LocatedError(path, f"node {node!r} has no time, here or in the workflow.")
    return [times.get(node, seconds) for node, seconds in usual.items()]


def _gpus(said: Any, memory_gb: Any, spelled: dict[FieldPath, FieldPath]) -> Any:
    """Convert a count, a count with properties, or a list of GPUs or of their ids."""
    theirs = spelled.get(("gpus",), ("gpus",))
    like: dict[str, Any] = {} if memory_gb is None else {"memory_gb": memory_gb}
    if isinstance(said, Mapping):
        like |= _renamed(said, _LIKE, (), theirs, {})
        said = like.pop("count", None)
    if isinstance(said, int) and not isinstance(said, bool):
        if not 0 <= said <= 1_000_000:
            raise LocatedError(theirs, f"this is {said}; it must be 1 to 1,000,000 GPUs.")
        return [{"id": number, **like} for number in range(said)]
    if not isinstance(said, list):
        raise LocatedError(theirs, "this must be a number of GPUs, or a list of them.")
    return [
        {**like, **_renamed(gpu, _GPU, ("gpus", place), (*theirs, place), spelled)}
        if isinstance(gpu, Mapping)
        else {"id": gpu, **like}
        for place, gpu in enumerate(said)
    ]


def _name(said: Any, path: FieldPath) -> str:
    """Return a name as a string; it may be written as a number."""
    if isinstance(said, int) and not isinstance(said, bool):
        return str(said)
    if not isinstance(said, str):
        raise LocatedError(path, "it has no name." if said is None else f"{said!r} is not a name; a name is text.")
    return said
