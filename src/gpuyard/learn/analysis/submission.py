"""Creates the requests to submit for a script: one process, or parts that may run at once.

A value cannot pass between processes, a file can. So units that are connected by anything but files are put into one
part. Setup that needs no step is repeated in every part. A part runs as the script without the statements of the others
(`run_part`), which refuses if a file was changed since. A part that is a loop with independent iterations becomes an array, one process for each iteration.

A script that trains is one process. So is one whose setup must not be repeated: it writes files, uses hidden state or the
clock, does something unknown, or reads a file that a step writes.
"""

import ast
from collections.abc import Sequence
from pathlib import Path

from gpuyard.learn.analysis.dataflow import Edges
from gpuyard.learn.analysis.effects import Groups
from gpuyard.learn.analysis.graph import ScriptTask, SubmitRequest
from gpuyard.learn.analysis.iterations import CONTAINS_TRAINING
from gpuyard.learn.analysis.source import digest
from gpuyard.learn.analysis.steps import DEFINITIONS, Script

MOST_PARTS = 100
"""Maximum number of parts: the command of each names the lines of all others."""
MOST_ROUNDS = 1_000
"""Maximum number of iterations of a loop that becomes an array."""


def whole_of(tasks: dict[int, ScriptTask], path: Path, arguments: Sequence[str], python: str) -> SubmitRequest | None:
    """Return the script as one process; None if it has no tasks."""
    return _request(path.stem, list(tasks.values()), (python, path.name, *arguments), path, ()) if tasks else None


def requests_of(
    script: Script, edges: Edges, tasks: dict[int, ScriptTask], path: Path, arguments: Sequence[str], python: str
) -> tuple[list[SubmitRequest], str | None]:
    """Return the requests of a script in dependency order, and why it is one process; None if it is divided.

    `tasks` are its steps by the number of their unit.
    """
    edges = {pair: reasons for pair, reasons in edges.items() if any(reason.kind != "name" for reason in reasons)}
    whole = whole_of(tasks, path, arguments, python)
    if whole is None:
        return [], "it has no tasks"
    parts = _parts(script, edges)
    if isinstance(parts, str):
        return [whole], parts
    if len(parts) == 1 and _array(parts[0], tasks) is None:
        why = "it has one step" if len(tasks) == 1 else "its steps share more than files"
        rounds = [f"; the rounds of {task.id}: {task.dependent}" for task in tasks.values() if task.dependent]
        return [whole], "".join([why, *rounds[:1]])
    part_of = {number: at for at, part in enumerate(parts) for number in part}
    names = [tasks[next(number for number in part if number in tasks)].id for part in parts]
    lines = [{script.units[number].node.lineno for number in part} for part in parts]
    analyzed = [word for file in script.files for word in ("--analyzed", f"{file.shown}={digest(file.source)}")]
    found = []
    for at, part in enumerate(parts):
        without = sorted(set().union(*lines) - lines[at])
        array = _array(part, tasks)
        command = (
            python, "-m", f"{__package__}.run_part", path.name, *analyzed,
            *(("--without", ",".join(map(str, without))) if without else ()),
            *(("--round-of", str(min(lines[at]))) if array else ()),
            *(("--", *arguments) if arguments else ()),
        )  # fmt: skip
        before = {part_of[one] for one, other in edges if one in part_of and part_of.get(other) == at}
        after = tuple(names[one] for one in sorted(before - {at}))
        own = [tasks[number] for number in part if number in tasks]
        found.append(_request(names[at], own, command, path, after, array))
    return found, None


def _parts(script: Script, edges: Edges) -> list[list[int]] | str:
    """Return the numbers of the units of each part, without the setup that all parts repeat, or why there is one only."""
    units = script.units
    steps = [unit.number for unit in units if unit.is_step]
    after_a_step = set(steps)
    for earlier, later in sorted(edges, key=lambda edge: edge[1]):
        if earlier in after_a_step:
            after_a_step.add(later)
    own = sorted(after_a_step)
    read_too_late = {
        earlier
        for (earlier, _), reasons in edges.items()
        if earlier not in after_a_step and any(reason.kind == "file" for reason in reasons)
    }
    lines = [unit.node.lineno for unit in units]
    if any(unit.effects.clues.has_training for unit in units):
        return CONTAINS_TRAINING
    if script.hazard is not None:
        return script.hazard
    for unit in units:
        is_repeated = unit.number not in after_a_step
        has_effects = bool(unit.effects.states) or any(file.writes for file in unit.effects.files)
        if (
            unit.number in read_too_late
            or (is_repeated and has_effects)
            or (not is_repeated and isinstance(unit.node, ast.ClassDef | DEFINITIONS))
        ):
            return f"its setup must not be repeated (line {unit.node.lineno})"
    if len(set(lines)) < len(lines):
        return "it has several statements in a line"
    groups = Groups(
        (earlier, later)
        for (earlier, later), reasons in edges.items()
        if earlier in after_a_step and any(reason.kind not in {"file", "name"} for reason in reasons)
    )
    parts: dict[int, list[int]] = {}
    for number in own:
        parts.setdefault(groups.group(number), []).append(number)
    first = {number: part[0] for part in parts.values() for number in part}
    in_order = all(first[one] <= first[other] for one, other in edges if one in first and other in first)
    if not in_order or not all(set(part) & set(steps) for part in parts.values()):
        return "its parts would need each other"
    if len(parts) > MOST_PARTS:
        return f"it would have more than {MOST_PARTS} parts"
    return list(parts.values())


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
