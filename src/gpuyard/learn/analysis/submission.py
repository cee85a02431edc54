"""Creates the requests to submit for a script: one process, or parts that may run at once.

A value cannot pass between processes, a file can. So units that are connected by anything but files are put into one
part. Setup that needs no step is repeated in every part. A part runs as the script without the statements of the others
(`run_part`). A part that is a loop with independent iterations becomes an array, one process for each iteration.

A script that trains is one process. So is one whose setup must not be repeated: it writes files, uses hidden state or the
clock, does something unknown, or reads a file that a step writes.
"""

import ast
from collections.abc import Sequence
from pathlib import Path

from gpuyard.learn.analysis.dataflow import Edges
from gpuyard.learn.analysis.graph import ScriptTask, SubmitRequest
from gpuyard.learn.analysis.groups import Groups
from gpuyard.learn.analysis.steps import DEFINITIONS, Script

MOST_ROUNDS = 1_000
"""Maximum number of iterations of a loop that becomes an array."""


def whole_of(tasks: dict[int, ScriptTask], path: Path, arguments: Sequence[str], python: str) -> SubmitRequest | None:
    """Return the script as one process; None if it has no tasks."""
    return _request(path.stem, list(tasks.values()), (python, path.name, *arguments), path, ()) if tasks else None


def requests_of(
    script: Script, edges: Edges, tasks: dict[int, ScriptTask], path: Path, arguments: Sequence[str], python: str
) -> list[SubmitRequest]:
    """Return the requests of a script in dependency order. `tasks` are its steps by the number of their unit."""
    whole = whole_of(tasks, path, arguments, python)
    parts = _parts(script, edges) if whole else []
    if whole is None or (len(parts) == 1 and _array(parts[0], tasks) is None):
        return [whole] if whole else []
    part_of = {number: at for at, part in enumerate(parts) for number in part}
    names = [tasks[next(number for number in part if number in tasks)].id for part in parts]
    lines = [{script.units[number].node.lineno for number in part} for part in parts]
    found = []
    for at, part in enumerate(parts):
        without = sorted(set().union(*lines) - lines[at])
        array = _array(part, tasks)
        command = (
            python, "-m", f"{__package__}.run_part", path.name,
            *(("--without", ",".join(map(str, without))) if without else ()),
            *(("--round-of", str(min(lines[at]))) if array else ()),
            *(("--", *arguments) if arguments else ()),
        )  # fmt: skip
        before = {part_of[one] for one, other in edges if one in part_of and part_of.get(other) == at}
        after = tuple(names[one] for one in sorted(before - {at}))
        own = [tasks[number] for number in part if number in tasks]
        found.append(_request(names[at], own, command, path, after, array))
    return found


def _parts(script: Script, edges: Edges) -> list[list[int]]:
    """Return the numbers of the units of each part, without the setup that all parts repeat."""
    units = script.units
    steps = [unit.number for unit in units if unit.is_step]
    after_a_step = set(steps)
    for earlier, later in sorted(edges, key=lambda edge: edge[1]):
        if earlier in after_a_step:
            after_a_step.add(later)
    own = sorted(after_a_step)
    repeated = [unit.effects for unit in units if unit.number not in after_a_step]
    reads_too_late = any(
        earlier not in after_a_step and any(reason.kind == "file" for reason in reasons)
        for (earlier, _), reasons in edges.items()
    )
    lines = [unit.node.lineno for unit in units]
    if (
        script.hazard is not None
        or reads_too_late
        or len(set(lines)) < len(lines)
        or any(effects.states or any(file.writes for file in effects.files) for effects in repeated)
        or any(unit.effects.clues.has_training for unit in units)
        or any(isinstance(units[number].node, ast.ClassDef | DEFINITIONS) for number in own)
    ):
        return [own]
    groups = Groups(
        (earlier, later)
        for (earlier, later), reasons in edges.items()
        if earlier in after_a_step and any(reason.kind != "file" for reason in reasons)
    )
    parts: dict[int, list[int]] = {}
    for number in own:
        parts.setdefault(groups.group(number), []).append(number)
    first = {number: part[0] for part in parts.values() for number in part}
    in_order = all(first[one] <= first[other] for one, other in edges if one in first and other in first)
    return list(parts.values()) if in_order and all(set(part) & set(steps) for part in parts.values()) else [own]


def _array(part: Sequence[int], tasks: dict[int, ScriptTask]) -> int | None:
    """Return the number of iterations if the part is one loop that can be separate processes; otherwise None."""
    task = tasks.get(part[0])
    if len(part) > 1 or task is None or not task.independent or task.rounds is None:
        return None
    return task.rounds if 2 <= task.rounds <= MOST_ROUNDS else None


def _request(
    name: str,
    tasks: Sequence[ScriptTask],
    command: tuple[str, ...],
    path: Path,
    after: tuple[str, ...],
    array: int | None = None,
) -> SubmitRequest:
    heaviest = max(tasks, key=lambda task: (task.gpus, task.kind == "training"))
    seconds = [task.seconds for task in tasks if task.seconds is not None]
    return SubmitRequest(
        name=name,
        tasks=tuple(task.id for task in tasks),
        command=command,
        work_dir=str(path.resolve().parent),
        after=after,
        kind=heaviest.kind,
        gpus=heaviest.gpus,
        seconds=sum(seconds) if len(seconds) == len(tasks) else None,
        array=array,
    )
