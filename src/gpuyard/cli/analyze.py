"""`gpuyard analyze`: print the steps of a script, their dependencies and classes, and submit it."""

import re
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import ServerOption, TokenOption, client, finite, json_option
from gpuyard.core.domain.errors import WrongInput

if TYPE_CHECKING:
    from gpuyard.learn.analysis import SubmitRequest, TaskGraph
    from gpuyard.live.sdk import Client


def analyze(
    source: Annotated[Path, typer.Argument(metavar="SCRIPT.py", help="A Python script.")],
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[-- ARGUMENTS...]", help="The arguments that the script is called with.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.mmd", help="Write the task graph as a Mermaid diagram.")] = None,
    evidence: Annotated[bool, typer.Option("--evidence", help="Print the evidence for each class and dependency, with file and line.")] = False,
    takes: Annotated[list[str] | None, typer.Option("--duration", metavar="TASK=SECONDS", help="Duration of a task; when all are given, the critical path is in seconds.")] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Print the tasks, then submit them.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --submit: only print them.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="With --submit: do not ask for confirmation.")] = False,
    trial: Annotated[bool, typer.Option("--trial", help="With --submit: before a script is submitted in parts, run it and its parts here and compare their files.")] = False,
    trial_args: Annotated[str | None, typer.Option("--trial-args", metavar="ARGUMENTS", help="Like --trial, with these arguments of the script in place of its own: small data.")] = None,
    trial_env: Annotated[list[str] | None, typer.Option("--trial-env", metavar="NAME=VALUE", help="Like --trial, with this variable: small data.")] = None,
    trial_seconds: Annotated[float, typer.Option("--trial-seconds", metavar="SECONDS", callback=finite, min=1, max=86_400, help="The longest that a trial may take.")] = 300,
    python: Annotated[str | None, typer.Option("--python", metavar="PROGRAM", help="Python interpreter that runs the script (default: this one).")] = None,
    as_json: Annotated[bool, json_option("Print everything as one JSON object.")] = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:  # fmt: skip
    """Read the steps of a Python script and their dependencies without running it."""
    from msgspec import to_builtins
    from msgspec.structs import replace

    from gpuyard.cli.output.printing import print_json
    from gpuyard.learn.analysis import NOT_TRIED, Trial, try_division
    from gpuyard.learn.analysis import analyze as read

    tries = trial or trial_args is not None or bool(trial_env)
    for option, given in (("--dry-run", dry_run), ("--trial", tries)):
        if given and not submit:
            raise WrongInput(f"{option} requires --submit.")
    if out is not None and out.suffix != ".mmd":
        raise WrongInput(f"{out}: the diagram is written in Mermaid format; use a file name that ends in .mmd.")
    interpreter, variables = python or sys.executable, _variables(trial_env or [])
    small_arguments = _words(trial_args) if trial_args is not None else arguments or []
    graph = read(source, arguments or (), seconds=_seconds(takes or []), python=interpreter)
    if out is not None:
        from gpuyard.learn.analysis.mermaid import mermaid

        try:
            out.write_text(mermaid(graph), encoding="utf-8")
        except OSError as error:
            raise WrongInput(f"Cannot write {out}: {error.strerror}.") from None
    if not as_json:
        _show(graph, evidence=evidence)
    tried = Trial(outcome="not divided", says=f"Nothing was divided, so nothing was tried: {graph.undivided}.")
    if submit and graph.is_divided and graph.whole is not None:
        small = read(source, small_arguments, python=interpreter) if tries else graph
        tried = try_division(graph, small, variables, trial_seconds) if tries else NOT_TRIED
        if tried.outcome != "equal":
            graph = replace(graph, requests=(graph.whole,))
    if submit and not as_json:
        _show_requests(graph.requests, tried.says if tries or tried.outcome != "not divided" else "")
    ids: list[str] | None = None
    confirmed = yes or as_json or not sys.stdin.isatty()
    if submit and not dry_run and graph.requests and (confirmed or typer.confirm("Submit?")):
        ids = submit_all(client(server, token), graph.requests)
        if not as_json:
            typer.echo("\n".join(ids))
    if as_json:
        print_json(to_builtins(graph) | ({"trial": to_builtins(tried), "submitted": ids} if submit else {}))


def _words(text: str) -> list[str]:
    import shlex

    try:
        return shlex.split(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}", param_hint="'--trial-args'") from None


def _variables(texts: list[str]) -> dict[str, str]:
    for text in texts:
        if not re.match(r"[A-Za-z_]\w*=", text):
            raise typer.BadParameter(f"{text!r} does not have the form NAME=VALUE", param_hint="'--trial-env'")
    return dict(text.split("=", 1) for text in texts)


def _seconds(takes: list[str]) -> dict[str, float]:
    found = {}
    for text in takes:
        name, _, value = text.rpartition("=")
        if not name or not re.fullmatch(r"\d+(\.\d+)?", value):
            raise typer.BadParameter(f"{text!r} does not have the form TASK=SECONDS", param_hint="'--duration'")
        found[name] = float(value)
    return found


def _show(graph: "TaskGraph", *, evidence: bool) -> None:
    from gpuyard.cli.output.printing import counted, print_table

    if graph.tasks:
        rounds = {task.id: f"{task.rounds or ''}{', independent' if task.independent else ''}" for task in graph.tasks}
        rows = [
            (
                task.level, f"{task.id}{'*' if task.id in graph.critical_path else ''}", task.kind, task.bound,
                task.gpus, rounds[task.id], f"{task.file}:{task.line}", [need.task for need in task.needs],
            )
            for task in sorted(graph.tasks, key=lambda task: task.level)
        ]  # fmt: skip
        heads = ("LEVEL", "TASK", "CLASS", "BOUND BY", "GPUS", "ROUNDS", "WHERE", "NEEDS")
        print_table(heads, rows, right=("LEVEL", "GPUS"))
    for task in graph.tasks if evidence else ():
        typer.echo(f"\n{task.id}: {task.kind}, {task.bound}")
        for seen in task.evidence:
            typer.echo(f"  {seen.file}:{seen.line}  {seen.seen}  ({seen.says})")
        for need in task.needs:
            typer.echo(f"  needs {need.task}: {need.why}")
        if task.dependent is not None:
            typer.echo(f"  rounds are not independent: {task.dependent}")
    unit = " s" if graph.in_seconds else ""
    typer.echo(
        f"{chr(10) if graph.tasks else ''}{graph.source}: {counted(len(graph.tasks), 'task')} in "
        f"{counted(len(graph.levels), 'level')}; critical path {graph.critical_length:g}{unit} of {graph.total_length:g}{unit}; "
        f"at most {graph.width} at once; speed-up at most {graph.speedup:.2f}."
    )
    missing = [task.id for task in graph.tasks if task.seconds is None]
    if 0 < len(missing) < len(graph.tasks):
        typer.echo(f"Durations are not used: add --duration for {', '.join(missing)}.")
    if graph.critical_path:
        typer.echo(f"Critical path: {' → '.join(graph.critical_path)}.")
    for task in graph.tasks:
        if task.rounds is not None and task.dependent is not None:
            typer.echo(f"Rounds of {task.id} are not independent: {task.dependent}.")
    for note in graph.notes:
        typer.echo(note)
    if graph.tasks and graph.undivided is not None:
        typer.echo(f"Kept as one process: {graph.undivided}.")


def _show_requests(requests: "tuple[SubmitRequest, ...]", trial: str) -> None:
    import shlex

    from gpuyard.cli.output.printing import print_table

    if not requests:
        typer.echo("\nThe script has no tasks to submit.")
        return
    is_one = len(requests) == 1 and requests[0].array is None
    if trial:
        typer.echo(f"\n{trial}")
    typer.echo("\nTo be submitted, as one process:" if is_one else "\nTo be submitted:")
    rows = [(r.name, r.array or 1, r.gpus, list(r.after), shlex.join(r.command)) for r in requests]
    print_table(("TASK", "TASKS", "GPUS", "AFTER", "COMMAND"), rows, right=("TASKS", "GPUS"))


def submit_all(cluster: "Client", requests: "tuple[SubmitRequest, ...]") -> list[str]:
    """Submit all requests, those that others wait for first. If one is refused, those before it are cancelled."""
    ids: dict[str, list[str]] = {}
    try:
        for request in requests:
            tasks = cluster.submit_all(
                list(request.command),
                name=request.name,
                work_dir=request.work_dir,
                gpu_count=request.gpus,
                cpu_count=None if request.gpus else 1,
                depends_on=[needed for name in request.after for needed in ids[name]] or None,
                estimated_seconds=request.seconds,
                array=request.array,
            )
            ids[request.name] = [task.id for task in tasks]
    except BaseException:
        for made in chain.from_iterable(reversed(ids.values())):
            cluster.cancel(made)
        raise
    return list(chain.from_iterable(ids.values()))
