"""`gpuyard analyze`: tasks, dependencies and classes out of sources, and a model divided over GPUs."""

import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.options import Server, Token, client, finite, json_option
from gpuyard.cli.train.files import PeaksFile, SpecsFile
from gpuyard.core.domain.errors import WrongInput

if TYPE_CHECKING:
    from gpuyard.learn.analysis.graph import Graph
    from gpuyard.learn.analysis.submission import Request
    from gpuyard.live.sdk import Client

PICTURES = (".svg", ".html", ".png")


class WrongUse(WrongInput):
    """The options do not go together."""


def analyze(
    source: Annotated[Path, typer.Argument(metavar="PATH", help="A Python file, shell script, Makefile or folder.")],
    words: Annotated[list[str] | None, typer.Argument(metavar="[-- WORDS...]", help="What the script is called with.")] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Draw it: .svg, .html or .png.")] = None,
    evidence: Annotated[bool, typer.Option("--evidence", help="Say what each class rests on, with file and line.")] = False,
    takes: Annotated[list[str] | None, typer.Option("--takes", metavar="TASK=SECONDS", help="How long a task takes; the critical path counts seconds when all are said.")] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Show what would be submitted, then submit it.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --submit: only show it.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="With --submit: do not ask on a terminal.")] = False,
    python: Annotated[str | None, typer.Option("--python", metavar="PROGRAM", help="The Python that runs scripts and counts models (default: this one).")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="[MODULE:]NAME", help="Divide this PyTorch model over GPUs instead; a class or function without arguments. It is imported and run, in a process of its own.")] = None,
    inputs: Annotated[list[str] | None, typer.Option("--input", metavar="SHAPE", help="With --model: an input, such as 32x3x224x224 or 8x1024:int64, the batch first.")] = None,
    gpus: Annotated[int, typer.Option("--gpus", metavar="N", min=1, max=1024, help="With --model: how many GPUs.")] = 4,
    gpu: Annotated[str, typer.Option("--gpu", metavar="NAME", help="With --model: which.")] = "H100",
    precision: Annotated[str, typer.Option("--precision", metavar="fp32|tf32|bf16|amp|…", help="With --model: of its arithmetic; amp is autocast to bf16.")] = "amp",
    micro_batches: Annotated[int | None, typer.Option("--micro-batches", metavar="N", min=1, help="With --model: how many (default: the best number).")] = None,
    inference: Annotated[bool, typer.Option("--inference", help="With --model: forward only.")] = False,
    link: Annotated[float | None, typer.Option("--link", callback=finite, metavar="GB/S", min=0.001, help="With --model: one way between two GPUs (default: as the data sheet says).")] = None,
    limit: Annotated[float, typer.Option("--limit", callback=finite, metavar="SECONDS", min=1.0, help="With --model: how long counting may take.")] = 120.0,
    specs: SpecsFile = None,
    calibration: PeaksFile = None,
    as_json: Annotated[bool, json_option("Print all of it as one JSON object.")] = False,
    server: Server = None,
    token: Token = None,
) -> None:  # fmt: skip
    """Read tasks and what they need of each other out of sources, without running them; or divide a model."""
    from gpuyard.cli.printing import print_json
    from gpuyard.learn.analysis.reading import analyze as read
    from gpuyard.learn.analysis.reading import with_seconds
    from gpuyard.learn.analysis.submission import timed

    if model is not None:
        from gpuyard.cli.analyze.splitting import split

        if submit or out or takes or words:
            raise WrongUse("--model divides a model; --submit, --out, --takes and WORDS are about tasks.")
        split(
            source, model, inputs or [], gpu=gpu, gpus=gpus, precision=precision, micro_batches=micro_batches,
            training=not inference, link=link, limit=limit, python=python or sys.executable, specs=specs,
            calibration=calibration, as_json=as_json,
        )  # fmt: skip
        return
    if inputs or micro_batches or inference or link or specs or calibration:
        raise WrongUse("--input, --micro-batches, --inference, --link, --specs and --calibration go with --model.")
    if dry_run and not submit:
        raise WrongUse("--dry-run goes with --submit.")
    if out is not None:
        _check_picture(out)
    with _Progress(quiet=as_json) as progress:
        graph, requests = read(source, words or (), python=python or sys.executable, tell=progress.tell)
    if takes:
        graph = with_seconds(graph, _seconds(takes))
        requests = timed(requests, graph)
    if out is not None:
        _draw(graph, out)
    if not as_json:
        _show(graph, evidence=evidence)
    ids: list[str] | None = None
    if submit:
        if not as_json:
            _show_requests(requests)
        if not dry_run and requests and (yes or as_json or not sys.stdin.isatty() or typer.confirm("Submit?")):
            ids = submit_all(client(server, token), requests)
            if not as_json:
                typer.echo("\n".join(ids))
    if as_json:
        print_json({**_told(graph), "requests": requests, **({"submitted": ids} if ids is not None else {})})


def _seconds(takes: list[str]) -> dict[str, float]:
    found = {}
    for text in takes:
        name, _, value = text.rpartition("=")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = -1.0
        if not name or not 0 <= found[name] < float("inf"):
            raise typer.BadParameter(f"{text!r} is not of the form TASK=SECONDS", param_hint="'--takes'")
    return found


def _check_picture(out: Path) -> None:
    from importlib.util import find_spec

    if out.suffix not in PICTURES:
        raise WrongUse(
            f"{out}: the picture is drawn as {', '.join(PICTURES[:-1])} or {PICTURES[-1]}; name the file so."
        )
    if out.suffix == ".png" and find_spec("matplotlib") is None:
        raise WrongUse(
            "--out with .png needs matplotlib: pip install 'gpuyard[simulate]'. .svg and .html need nothing."
        )


def _draw(graph: "Graph", out: Path) -> None:
    from gpuyard.learn.analysis import drawing

    try:
        if out.suffix == ".png":
            drawing.save_png(graph, out)
        else:
            out.write_text(drawing.svg(graph) if out.suffix == ".svg" else drawing.page(graph), encoding="utf-8")
    except OSError as error:
        raise WrongUse(f"{out} can not be written: {error.strerror}.") from None


def _told(graph: "Graph") -> dict[str, Any]:
    """As JSON: the graph, its edges once more on their own, and what follows."""
    from msgspec import to_builtins

    told: dict[str, Any] = to_builtins(graph)
    level = {name: number for number, names in enumerate(graph.levels) for name in names}
    for task in told["tasks"]:
        task["level"] = level[task["id"]]
    told["edges"] = [{"from": n.task, "to": t.id, "why": n.why} for t in graph.tasks for n in t.needs]
    told["speedup"] = graph.speedup
    return told


def _show(graph: "Graph", *, evidence: bool) -> None:
    from gpuyard.cli.printing import print_table
    from gpuyard.learn.analysis.drawing import summary

    level = {name: number for number, names in enumerate(graph.levels) for name in names}
    path = set(graph.critical_path)
    if graph.tasks:
        rows = [
            (
                level[task.id], f"{task.id}{'*' if task.id in path else ''}", task.kind, task.bound, task.gpus * task.nodes,
                _rounds(task), f"{task.file}:{task.line}", [need.task for need in task.needs],
            )
            for task in sorted(graph.tasks, key=lambda task: level[task.id])
        ]  # fmt: skip
        print_table(
            ("LEVEL", "TASK", "CLASS", "BOUND BY", "GPUS", "ROUNDS", "WHERE", "NEEDS"), rows, right=("LEVEL", "GPUS")
        )
    if evidence:
        for task in graph.tasks:
            typer.echo(f"\n{task.id}: {task.kind}, {task.bound}")
            for seen in task.evidence:
                typer.echo(f"  {seen.file}:{seen.line}  {seen.seen}  ({seen.says})")
            for need in task.needs:
                typer.echo(f"  needs {need.task}: {need.why}")
    typer.echo(("\n" if graph.tasks else "") + summary(graph) + ".")
    if graph.critical_path:
        typer.echo(f"Critical path: {' → '.join(graph.critical_path)}.")
    for note in graph.notes:
        typer.echo(note)


def _rounds(task: Any) -> str:
    if task.repeats is None:
        return ""
    return f"{task.rounds or 'some'}{', apart' if task.independent else ''}"


def _show_requests(requests: "list[Request]") -> None:
    from gpuyard.cli.printing import print_table
    from gpuyard.learn.analysis.submission import spoken

    if not requests:
        typer.echo("\nThere is nothing to submit.")
        return
    alone = len(requests) == 1 and requests[0].array is None
    typer.echo("\nWould be submitted, as one process:" if alone else "\nWould be submitted:")
    if alone and requests[0].kind == "training" and len(requests[0].tasks) > 1:
        typer.echo("It trains, so it is not divided: all its steps run in one process.")
    rows = [(r.name, r.array or 1, r.gpus * r.nodes, list(r.after), spoken(r.command)) for r in requests]
    print_table(("TASK", "TASKS", "GPUS", "AFTER", "COMMAND"), rows, right=("TASKS", "GPUS"))


def submit_all(yard: "Client", requests: "list[Request]") -> list[str]:
    """All of them, those needed first. If one is refused, those before it are cancelled: all or nothing."""
    ids: dict[str, list[str]] = {}
    try:
        for request in requests:
            tasks = yard.submit_all(
                request.command if isinstance(request.command, str) else list(request.command),
                name=request.name,
                work_dir=request.work_dir,
                gpu_count=request.gpus,
                cpu_count=None if request.gpus else 1,
                nodes=request.nodes if request.nodes > 1 else None,
                depends_on=[needed for name in request.after for needed in ids[name]] or None,
                estimated_seconds=request.seconds,
                array=request.array,
            )
            ids[request.name] = [task.id for task in tasks]
    except BaseException:
        for made in chain.from_iterable(reversed(ids.values())):
            yard.cancel(made)
        raise
    return list(chain.from_iterable(ids.values()))


class _Progress:
    """On a terminal one line that is written over and disappears; elsewhere nothing."""

    def __init__(self, *, quiet: bool) -> None:
        self._shows = not quiet and sys.stderr.isatty()

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shows:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def tell(self, words: str) -> None:
        """How far it is."""
        if self._shows:
            print(f"\r\x1b[K{words}", end="", file=sys.stderr, flush=True)
