"""Reads and writes plan files, `planner-plan/1`, as text; the caller opens files."""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input import strict
from gpuyard.input.document import parse
from gpuyard.plan.planner.plan import Loads, Plan
from gpuyard.plan.planner.problem import Problem

FORMAT: Final = "planner-plan/1"
ACTUAL: Final = "actual"
"""The `planner` of a file that records an executed plan."""


class WrittenTask(msgspec.Struct, forbid_unknown_fields=True):
    """One call of a plan."""

    request: str
    node: str
    gpus: list[int]
    start: float
    end: float
    level: int | UnsetType = UNSET
    """The power level, if the plan chooses one."""


class WrittenLoad(msgspec.Struct, forbid_unknown_fields=True):
    """One load of the record of an execution."""

    model: str
    gpus: list[int]
    start: float
    end: float


class WrittenPlan(msgspec.Struct, forbid_unknown_fields=True):
    """A whole plan file."""

    format: str
    instance: str
    tasks: list[WrittenTask]
    planner: str = ""
    planning_s: float | UnsetType = UNSET
    """In files of earlier versions: how long planning took. Equal plans are equal files, so it is not written."""
    loads: list[WrittenLoad] | UnsetType = UNSET
    """In the record of an execution with `preload`: when models were loaded."""
    ended_by_hand: bool | UnsetType = UNSET
    """Whether the run was ended early; the remaining calls are missing."""
    preload: bool | UnsetType = UNSET
    """Whether GPUs load their next model while they run calls."""


_STRICT: Final = strict.Strict(WrittenPlan, what="the plan")


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan as read, and the faults found while reading: calls that are missing or occur twice."""

    plan: Plan
    planner: str
    faults: tuple[str, ...]
    preload: bool = False
    """Whether it was made for GPUs that load their next model while they run calls."""

    @property
    def is_actual(self) -> bool:
        """Whether the file records an execution instead of a plan."""
        return self.planner == ACTUAL


def write_plan(problem: Problem, plan: Plan, planner: str) -> bytes:
    """Encode a plan as JSON, in the order of the calls."""
    requests = [problem.requests.ids[r] for r in problem.calls.request.tolist()]
    nodes = [
        problem.workflows[w].nodes[p]
        for w, p in zip(
            problem.requests.workflow[problem.calls.request].tolist(), problem.calls.position.tolist(), strict=True
        )
    ]
    width = problem.width[problem.calls.model].tolist()
    groups: dict[tuple[int, int], list[int]] = {}
    gpus = [groups.setdefault((g, w), list(range(g, g + w))) for g, w in zip(plan.gpu.tolist(), width, strict=True)]
    levels = plan.level.tolist() if plan.level is not None else [UNSET] * len(gpus)
    tasks = [
        WrittenTask(*columns)
        for columns in zip(requests, nodes, gpus, plan.start.tolist(), plan.end.tolist(), levels, strict=True)
    ]
    preload = True if problem.preload else UNSET
    return msgspec.json.encode(WrittenPlan(FORMAT, problem.name, tasks, planner, preload=preload))


def read_plan(text: bytes, problem: Problem) -> PlanFile:
    """Read a plan for this problem. Raise `WrongInput` if it is malformed; return an invalid plan with its faults."""
    try:
        said = msgspec.json.decode(text, type=WrittenPlan)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        said = _careful(text)
    _is_a_plan(said.format)
    if said.instance != problem.name:
        raise WrongInput(f"The plan is for the problem {said.instance!r}, but this problem is {problem.name!r}.")
    return _plan(said, problem)


def _is_a_plan(said: object) -> None:
    if said != FORMAT:
        raise WrongInput(f"format is {said!r}; plans have the format {FORMAT!r}.")


def _careful(text: bytes) -> WrittenPlan:
    """Read strictly, to report what is wrong."""
    said = parse(text).value
    if isinstance(said, dict) and "format" in said:
        _is_a_plan(said["format"])
    try:
        return _STRICT.plain(said)
    except strict.WrongRequest as error:
        raise WrongInput(str(error)) from None


def _plan(said: WrittenPlan, problem: Problem) -> PlanFile:
    request_of = {name: i for i, name in enumerate(problem.requests.ids)}
    nodes_of = [{name: i for i, name in enumerate(workflow.nodes)} for workflow in problem.workflows]
    workflow_of, first = problem.requests.workflow.tolist(), problem.first_call.tolist()
    position = problem.calls.position.tolist()
    width = problem.width[problem.calls.model].tolist()
    count = len(problem.calls)
    gpu = [-1] * count
    start, end, level = [0.0] * count, [0.0] * count, [0] * count
    faults: list[str] = []
    for place, task in enumerate(said.tasks):
        request = request_of.get(task.request)
        if request is None:
            raise WrongInput(f"tasks[{place}].request: the problem has no request {task.request!r}.")
        node = nodes_of[workflow_of[request]].get(task.node, -1)
        call = bisect_left(position, node, first[request], first[request + 1])
        if call == first[request + 1] or position[call] != node:
            raise WrongInput(f"tasks[{place}].node: request {task.request!r} has no node {task.node!r}.")
        if gpu[call] != -1:
            faults.append(f"{task.request}/{task.node} occurs twice in the plan, the second time at tasks[{place}].")
            continue
        group = task.gpus
        if len(group) != width[call] or group != list(range(group[0], group[0] + width[call])):
            faults.append(
                f"{task.request}/{task.node} is planned on the GPUs {group}; it needs {width[call]} "
                "with consecutive numbers."
            )
        gpu[call] = group[0] if group else 0
        start[call], end[call] = task.start, task.end
        level[call] = task.level if task.level is not UNSET else 0
    missing = [call for call in range(count) if gpu[call] == -1]
    faults += [f"{problem.name_of(call)} is not in the plan." for call in missing]
    levels = np.array(level, dtype=np.int32) if any(task.level is not UNSET for task in said.tasks) else None
    plan = Plan(np.array(gpu, dtype=np.int32), np.array(start), np.array(end), levels, loads=_loads(said, problem))
    return PlanFile(plan, said.planner, tuple(faults), said.preload is True)


def _loads(said: WrittenPlan, problem: Problem) -> Loads | None:
    if said.loads is UNSET:
        return None
    number = {model.name: i for i, model in enumerate(problem.models)}
    for place, load in enumerate(said.loads):
        if load.model not in number:
            raise WrongInput(f"loads[{place}].model: the problem has no model {load.model!r}.")
        first, width = load.gpus[0] if load.gpus else 0, problem.models[number[load.model]].gpus
        if load.gpus != list(range(first, first + width)) or not 0 <= first <= len(problem.gpus) - width:
            raise WrongInput(f"loads[{place}].gpus: {load.model!r} needs {width} GPUs with consecutive numbers.")
    return Loads(
        np.array([number[load.model] for load in said.loads], dtype=np.int32),
        np.array([load.gpus[0] for load in said.loads], dtype=np.int32),
        np.array([load.start for load in said.loads]),
        np.array([load.end for load in said.loads]),
    )
