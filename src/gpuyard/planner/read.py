"""Files of problems: the JSON of `planner-instance/1`.

Text comes in, a `Problem` or a `WrongInput` that names the place comes out; opening files is somebody else's work.
"""

from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from gpuyard.domain.errors import WrongInput
from gpuyard.planner.instance import Instance, WrittenWorkflow
from gpuyard.planner.problem import Calls, Gpu, Level, Model, Problem, Requests, Workflow


def read_problem(text: bytes) -> Problem:
    """A problem from its JSON."""
    try:
        said = msgspec.json.decode(text, type=Instance)
    except msgspec.MsgspecError as error:
        raise WrongInput(str(error)) from None
    return problem_of(said)


def problem_of(said: Instance) -> Problem:
    """What strategies compute with."""
    models = tuple(
        Model(
            name,
            m.memory_gb,
            m.gpus,
            m.load_time_s if m.load_time_s is not UNSET else m.memory_gb / said.pcie_gb_s + said.switch_overhead_s,
            m.memory_gb / said.pcie_gb_s,
        )
        for name, m in said.models.items()
    )
    gpus = tuple(
        Gpu(g.id, g.type, g.memory_gb, g.speed, g.idle_watts, tuple(Level(x.speed, x.watts, x.mhz) for x in g.levels))
        for g in said.gpus
    )
    number = {name: i for i, name in enumerate(said.models)}
    workflows = tuple(_workflow(name, w, number) for name, w in said.workflows.items())
    which = {w.name: i for i, w in enumerate(workflows)}
    requests = Requests(
        tuple(r.id for r in said.requests),
        np.array([which[r.workflow] for r in said.requests], dtype=np.int32),
        np.array([r.arrival_s for r in said.requests]),
        np.array([r.priority for r in said.requests], dtype=np.int32),
        np.array([r.deadline_s for r in said.requests]),
    )
    times = [r.exec_times or workflows[w].seconds for r, w in zip(said.requests, requests.workflow, strict=True)]
    seconds = np.fromiter((t for some in times for t in some), dtype=np.float64)
    calls = calls_of(workflows, requests, seconds)
    return Problem(
        said.name, models, gpus, workflows, requests, calls, bool(said.many_residents), said.family, said.seed
    )


def _workflow(name: str, said: WrittenWorkflow, number: dict[str, int]) -> Workflow:
    position = {node.id: i for i, node in enumerate(said.nodes)}
    return Workflow(
        name,
        tuple(node.id for node in said.nodes),
        tuple(number[node.model] for node in said.nodes),
        tuple(node.exec_time if node.exec_time is not UNSET else 0.0 for node in said.nodes),
        tuple(tuple(position[d] for d in node.deps) for node in said.nodes),
    )


def calls_of(workflows: tuple[Workflow, ...], requests: Requests, seconds: Any) -> Calls:
    """The columns: each workflow's own columns are made once and laid out for all requests at a time."""
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
    """Models, then how many and which are before and after each node, end to end."""
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
    """`parts[which[0]]`, `parts[which[1]]`, … end to end, without a loop over `which`."""
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    chosen = sizes[which]
    offsets = np.arange(chosen.sum()) - np.repeat(np.cumsum(chosen) - chosen, chosen)
    return np.concatenate(parts)[np.repeat(starts[which], chosen) + offsets]
