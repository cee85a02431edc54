"""Runs a script in other orders that its analysis allows, and compares the files that it leaves with its own.

Three claims are tried. *Steps*: statements are put into another order that respects the dependencies, and iterations that
are called independent run backwards. *Parts*: the requests that would be submitted run as separate processes, late ones first.
"""

import ast
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuyard.learn.analysis import TaskGraph, analyze
from gpuyard.learn.analysis.dataflow import dependencies
from gpuyard.learn.analysis.iterations import why_dependent
from gpuyard.learn.analysis.source import is_main_guard
from gpuyard.learn.analysis.steps import Unit, read_script

RUNNER = Path(__file__).with_name("run_scripts.py")


@dataclass
class Job:
    """One process: a script in a folder of its own or shared with the jobs before it."""

    folder: Path
    script: str
    arguments: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def run_jobs(jobs: Sequence[Job], libraries: Iterable[str] = ()) -> list[tuple[int, float, str]]:
    """Exit status, CPU seconds and the end of the output of each."""
    asked = {
        "libraries": list(libraries),
        "jobs": [
            {"folder": str(job.folder), "script": job.script, "arguments": list(job.arguments), "env": dict(job.env)}
            for job in jobs
        ],
    }
    done = subprocess.run(
        [sys.executable, str(RUNNER)], input=json.dumps(asked), capture_output=True, text=True, check=True, timeout=1800
    )
    return [(one["code"], one["cpu"], one["said"]) for one in json.loads(done.stdout)]


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.name != "reordered.py"
    }


def copied(source: Path, target: Path) -> Path:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


# --- steps in another order --------------------------------------------------------------------------------------------


def reordered(path: Path, seeds: Sequence[int]) -> list[str]:
    """The script with its statements in another order that the analysis allows, for each seed."""
    script = read_script(path, ())
    edges = set(dependencies(script.units, script.hazard))
    for unit in script.units:
        if unit.is_step and why_dependent(unit, script) is None:
            assert isinstance(unit.node, ast.For)
            every = ast.Call(ast.Name("list", ast.Load()), [unit.node.iter], [])
            unit.node.iter = ast.Subscript(every, ast.Slice(step=ast.Constant(-1)), ast.Load())
    tree = script.module.tree
    bodies: dict[int, list[Unit]] = {}
    for unit in script.units:
        bodies.setdefault(id(unit.walker), []).append(unit)
    for units in reversed(list(bodies.values())[1:]):  # what the body of main() needs, the call of it needs
        inner = {unit.number for unit in units}
        call = min(inner) - 1
        edges |= {(call if one in inner else one, call if other in inner else other) for one, other in edges}
    edges -= {(number, number) for number in range(len(script.units))}
    sources = []
    for chance in map(random.Random, seeds):
        for units in bodies.values():
            _replace(tree, units, _another_order(units, edges, chance))
        sources.append(ast.unparse(ast.fix_missing_locations(tree)))
    return sources


def _another_order(units: list[Unit], edges: set[tuple[int, int]], chance: random.Random) -> list[Unit]:
    waiting = {unit.number: unit for unit in units}
    ordered = []
    while waiting:
        ready = [number for number in waiting if not any((other, number) in edges for other in waiting)]
        chosen = chance.choice(ready[-2:])  # late ones first: far from the order of the program
        ordered.append(waiting.pop(chosen))
    return ordered


def _replace(tree: ast.Module, units: list[Unit], ordered: list[Unit]) -> None:
    nodes = {id(unit.node) for unit in units}
    for owner in ast.walk(tree):
        body = getattr(owner, "body", None)
        if isinstance(body, list) and any(id(node) in nodes for node in body) and owner is not tree:
            if isinstance(owner, ast.If):  # the guard of the main program
                continue
            body[:] = [node for node in body if id(node) not in nodes] + [unit.node for unit in ordered]
            return
    flat = [inner for node in tree.body for inner in (node.body if is_main_guard(node) else [node])]
    tree.body = [node for node in flat if id(node) not in nodes] + [unit.node for unit in ordered]


# --- parts as separate processes ---------------------------------------------------------------------------------------


def part_jobs(graph: TaskGraph, folder: Path) -> list[Job]:
    """The processes of all requests, in an order that their dependencies allow, late ones first."""
    waiting = {request.name: request for request in graph.requests}
    jobs = []
    while waiting:
        name = [name for name, request in waiting.items() if not set(request.after) & waiting.keys()][-1]
        request = waiting.pop(name)
        command = list(request.command[1:])
        if command[0] == "-m":
            command = [str(Path(sys.modules["gpuyard"].__path__[0], "learn", "analysis", "run_part.py")), *command[2:]]
        indices = map(str, reversed(range(request.array or 1)))
        jobs += [Job(folder, command[0], command[1:], {"GPUYARD_ARRAY_INDEX": index}) for index in indices]
    return jobs


@dataclass
class Tried:
    """What was claimed for a script, and how its other orders ended."""

    graph: TaskGraph
    wrong: list[str]
    cpu_seconds: float = 0.0
    """Of all runs."""


def mentions(source: str, libraries: Sequence[str]) -> bool:
    return any(library.partition(".")[0] in source for library in libraries)


def _run_all(
    jobs: list[tuple[str, str, Job]], heavy: set[str], libraries: Sequence[str]
) -> list[tuple[str, str, tuple[int, float, str]]]:
    """Run the jobs; a process that has large libraries is forked only for the scripts that use them."""
    ended = []
    for some, loaded in ((True, libraries), (False, ())):
        chosen = [job for job in jobs if (job[0] in heavy) is some]
        if chosen:
            results = run_jobs([job for _, _, job in chosen], loaded)
            ended += [(name, how, result) for (name, how, _), result in zip(chosen, results, strict=True)]
    return ended


def try_scripts(
    scripts: Mapping[str, Path], scratch: Path, libraries: Sequence[str] = (), seeds: Sequence[int] = (0,)
) -> dict[str, Tried]:
    """Try scripts, each with the folder it is in, in all ways; return what was wrong with each."""
    jobs: list[tuple[str, str, Job]] = []
    graphs = {}
    for name, path in scripts.items():
        graphs[name] = graph = analyze(path, python=sys.executable)
        jobs.append((name, "plain", Job(copied(path.parent, scratch / name / "plain"), path.name)))
        seen = {ast.unparse(ast.parse(path.read_text()))}
        for seed, source in zip(seeds, reordered(path, seeds), strict=True):
            if source not in seen:  # there may be one order only
                seen.add(source)
                folder = copied(path.parent, scratch / name / f"order-{seed}")
                (folder / "reordered.py").write_text(source)
                jobs.append((name, f"order-{seed}", Job(folder, "reordered.py")))
        if len(graph.requests) > 1 or any(request.array for request in graph.requests):
            folder = copied(path.parent, scratch / name / "parts")
            jobs += [(name, "parts", job) for job in part_jobs(graph, folder)]
    ended = _run_all(jobs, {name for name, path in scripts.items() if mentions(path.read_text(), libraries)}, libraries)
    tried = {name: Tried(graph, []) for name, graph in graphs.items()}
    for name, how, (code, cpu, said) in ended:
        tried[name].cpu_seconds += cpu
        if code != 0:
            tried[name].wrong.append(f"{how} ended with {code}: {said}")
    for name, how in dict.fromkeys((name, how) for name, how, _ in jobs):
        expected, found = files(scratch / name / "plain"), files(scratch / name / how)
        different = sorted(file for file in expected.keys() | found.keys() if expected.get(file) != found.get(file))
        if different:
            tried[name].wrong.append(f"{how}: other content of {', '.join(different)}")
    return tried
