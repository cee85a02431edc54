"""`gpuyard submit`: submit a task, or all tasks of a sweep, without waiting for them."""

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuyard.cli.explain import fits_nowhere, next_step
from gpuyard.cli.input.dependencies import tasks_meant, with_dependencies
from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client
from gpuyard.cli.input.sweep_options import confirm, requests_of_sweep, shown_command
from gpuyard.cli.input.task_options import SHELL, RequestFields, task_options, with_shell
from gpuyard.cli.output.progress import NO_NODES, NO_NODES_SENTENCE
from gpuyard.cli.shell.messages import localized

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from gpuyard.cli.input.task_file import TasksOfFile
    from gpuyard.cli.slurm.script import JobScript
    from gpuyard.live.sdk import Client, Task
    from gpuyard.live.wire.preview_answers import PreviewAnswer

SHOWN_FIRST = 3
"""Of many tasks, a terminal shows the first ones and the last one."""


@partial(task_options, add_shell=False)
def submit(
    request: RequestFields,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="K=VALUES",
            help="Submit once for each value, as {K} in the command; repeat to combine: a,b or 0..9 or @FILE.",
        ),
    ] = None,
    side_by_side: Annotated[
        bool, typer.Option("--zip", help="Use the values of several --sweep side by side, not all combinations.")
    ] = False,
    max_running: Annotated[
        int | None,
        typer.Option("--max-running", metavar="M", min=1, help="How many tasks of the array or sweep run at once."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the commands and where the first one would start; submit nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Submit more than 100 tasks without asking.")] = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Submit a task, a sweep, a job script or a file of tasks, and print ids such as task-7."""
    if side_by_side and not sweep:
        raise typer.BadParameter("it needs --sweep", param_hint="'--zip'")
    request, limits = _with_max_running(request, max_running), list[dict[str, int]]()
    from_file = _tasks_of_file(request, sweep, lambda: client(server, token), dry_run=dry_run)
    script = None if from_file else _job_script(request["command"])
    if from_file:
        requests, limits = from_file.requests, from_file.limits
        if max_running is not None:
            message = "put it into the task file, as max_running: 4 beside sweep or array"
            raise typer.BadParameter(message, param_hint="'--max-running'")
    elif sweep:
        named = {**request, "max_running": None}
        if script and not request["name"]:
            named = {**request, "name": script.options.get("job-name") or script.name}
        read_by = script.text if script else ""
        requests = requests_of_sweep(named, sweep, side_by_side=side_by_side, read_by=read_by)
        if max_running is not None:
            limits = [{"first": 0, "count": len(requests), "max_running": max_running}]
    else:
        requests = [request]
    if script:
        requests, dry_run = _jobs(
            script, requests, lambda: client(server, token), dry_run=dry_run, as_json=as_json, server=server
        )
    if max_running is not None and not sweep and not requests[0].get("array"):
        raise typer.BadParameter("it needs --array or --sweep", param_hint="'--max-running'")
    submit_requests(
        requests,
        lambda: client(server, token),
        together=bool(sweep or from_file),
        limits=limits,
        dry_run=dry_run,
        yes=yes,
        as_json=as_json,
    )


def _with_max_running(request: RequestFields, max_running: int | None) -> RequestFields:
    """Return the request with the limit of `--max-running`, which `--array N%M` may give, too."""
    if max_running is None:
        return request
    if request["max_running"] not in {None, max_running}:
        message = f"--array says that at most {request['max_running']} run at once; give the limit only once"
        raise typer.BadParameter(message, param_hint="'--max-running'")
    return {**request, "max_running": max_running}


def _tasks_of_file(
    request: RequestFields, sweep: list[str] | None, connect: "Callable[[], Client]", *, dry_run: bool
) -> "TasksOfFile | None":
    """Return the requests of a task file, if the command is the name of one, or - for standard input."""
    from pathlib import Path

    command = request["command"]
    words = command if isinstance(command, list) else []
    if not words or not (words[0] == "-" or words[0].endswith((".yaml", ".yml", ".json"))):
        return None
    content = sys.stdin.buffer.read() if words[0] == "-" else _task_file_content(Path(words[0]))
    if content is None:
        return None
    if words[0] == "-" and content.startswith(b"#!"):
        raise typer.BadParameter(
            "a script on standard input is submitted by `gpuyard sbatch -`", param_hint="'COMMAND'"
        )
    if len(words) > 1:
        message = f"a task file has no arguments ({words[1][:40]!r})"
        message += "; options go before it" if words[1].startswith("-") else ""
        raise typer.BadParameter(message, param_hint="'COMMAND'")
    if sweep:
        raise typer.BadParameter(
            "put the sweep into the task file, as sweep: {lr: [1e-3, 1e-4]}", param_hint="'--sweep'"
        )
    from gpuyard.cli.input.task_file import read_tasks
    from gpuyard.live.sdk import Unreachable

    def named(word: str) -> list[str]:
        try:
            return tasks_meant(connect(), word)
        except Unreachable:
            if dry_run:  # it can be read without a scheduler
                return [word]
            raise

    return read_tasks(content, "standard input" if words[0] == "-" else words[0], request, named)


def _task_file_content(path: "Path") -> bytes | None:
    """Return the content of a task file; None for a program with such a name, which begins with #!."""
    from gpuyard.input.files import LARGEST_TEXT_BYTES, read_file

    try:
        content = read_file(path, largest=LARGEST_TEXT_BYTES)
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror or error}", param_hint="'COMMAND'") from None
    if not content.startswith(b"#!"):
        return content
    print(f"gpuyard: {path} begins with #!, so it is run as a program and not read as a task file.", file=sys.stderr)
    return None


def _job_script(command: "list[str] | str") -> "JobScript | None":
    """Return the job script that a command names: a file with `#SBATCH` lines, alone or followed by its arguments."""
    if isinstance(command, str) or not command:
        return None
    from pathlib import Path

    from gpuyard.cli.slurm.script import is_job_script, read_script

    return read_script(Path(command[0])) if is_job_script(Path(command[0])) else None


def _jobs(
    script: "JobScript",
    requests: "Sequence[RequestFields]",
    connect: "Callable[[], Client]",
    *,
    dry_run: bool,
    as_json: bool,
    server: str | None,
) -> "tuple[list[RequestFields], bool]":
    """Return the requests of a job script, once for each request of a sweep, and whether nothing is to be submitted."""
    import os

    from gpuyard.cli.slurm.job import job_of, tell, with_whole_arrays

    script.options.add_variables(os.environ)
    folder = os.getcwd()  # noqa: PTH109 - as text, which is what is sent
    address = server or os.environ.get("GPUYARD_SERVER", "")
    jobs = [
        job_of(script, one["command"][1:], one, environ=os.environ, folder=folder, server=address) for one in requests
    ]
    if not as_json:
        tell(jobs[0], script.name)
    dry_run = dry_run or jobs[0].dry_run
    together = [_with_job(one, job.request) for one, job in zip(requests, jobs, strict=True)]
    if "dependency" in script.options and not dry_run:
        cluster = connect()
        together = [with_whole_arrays(cluster, one) for one in together]
    return together, dry_run


def _with_job(request: RequestFields, job: RequestFields) -> RequestFields:
    """Return the request with the fields of a job script, which has got the whole environment already."""
    from gpuyard.cli.input.environment import submit_process

    return {**request, **job, SHELL: None, "submit_process": submit_process(job["env"])}


def submit_requests(
    requests: "Sequence[RequestFields]",
    connect: "Callable[[], Client]",
    *,
    together: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    limits: "Sequence[Mapping[str, int]]" = (),
) -> "list[Task]":
    """Submit requests, or with `dry_run` show what they would do. `together`: as one batch, all or none.

    `limits`: how many of the tasks of each sweep run at the same time.
    """
    requests = [with_shell(one) for one in requests]
    if dry_run:
        _show_dry_run(connect(), requests, limits, as_json=as_json)
        return []
    confirm(len(requests), yes=yes)
    cluster = connect()
    tasks = submitted_together(cluster, requests, limits) if together else submitted(cluster, requests[0])
    if as_json:
        from gpuyard.cli.output.printing import print_answer

        print_answer(cluster)
    else:
        _print_ids(tasks, summarize=together)
        _print_environment(requests[0])
    warn_if_nothing_fits(cluster, tasks[0], alone=True)
    return tasks


def submitted(cluster: "Client", request: RequestFields) -> "list[Task]":
    """Submit the request and return all its tasks. If no answer arrives, say that the task may exist nevertheless."""
    (with_code,) = with_snapshots(with_dependencies(cluster, [request]))
    return _told_if_uncertain(lambda: cluster.submit_all(**with_code), "The task")


def submitted_together(
    cluster: "Client", requests: "Sequence[RequestFields]", limits: "Sequence[Mapping[str, int]]" = ()
) -> "list[Task]":
    """Submit requests as one batch, all or none."""
    tasks: Any = with_snapshots(with_dependencies(cluster, requests))
    return _told_if_uncertain(lambda: cluster.submit_together(tasks, limits=limits), "The tasks")


def with_snapshots(requests: "Sequence[RequestFields]") -> list[RequestFields]:
    """Take the snapshots of code that requests ask for, each folder once, and describe them on standard error."""
    if not any(one.get("snapshot") for one in requests):
        return list(requests)
    from pathlib import Path

    from gpuyard.cli.output.snapshots import describe
    from gpuyard.live.sdk.snapshots import TakenSnapshot, take_snapshot

    taken: dict[str, TakenSnapshot] = {}
    for folder in dict.fromkeys(str(one["snapshot"]) for one in requests if one.get("snapshot")):
        taken[folder] = take_snapshot(Path(folder))
        describe(taken[folder])
    return [{**one, "snapshot": taken[str(one["snapshot"])]} if one.get("snapshot") else one for one in requests]


def _told_if_uncertain(submit_now: "Callable[[], list[Task]]", what: str) -> "list[Task]":
    from gpuyard.live.sdk import Unreachable

    try:
        return submit_now()
    except Unreachable as error:
        if not error.may_have_arrived:
            raise
        again = "it" if what == "The task" else "them"
        message = f"{error} {what} may have been accepted; check with `gpuyard ps` before you submit {again} again."
        raise Unreachable(message, may_have_arrived=True) from None


def _print_environment(request: RequestFields) -> None:
    """Print to a terminal what travels with the task."""
    if not sys.stderr.isatty():
        return
    from gpuyard.cli.input.environment import described

    told = described(request.get("env") or {}, request.get("secrets") or {})
    print(localized(f"environment: {told}"), file=sys.stderr)


def _print_ids(tasks: "Sequence[Task]", *, summarize: bool) -> None:
    """Print the ids: for a program all of them, on a terminal those of a sweep in short and with their names."""
    if not summarize or not sys.stdout.isatty():
        typer.echo("\n".join(task.id for task in tasks))
        return
    for task in tasks[:SHOWN_FIRST]:
        typer.echo(f"{task.id}  {task.name}")
    if len(tasks) > SHOWN_FIRST + 1:
        typer.echo("…")
    if len(tasks) > SHOWN_FIRST:
        typer.echo(f"{tasks[-1].id}  {tasks[-1].name}")
        typer.echo(localized(f"{len(tasks):,} tasks were submitted."))


def _show_dry_run(
    cluster: "Client",
    requests: "Sequence[RequestFields]",
    limits: "Sequence[Mapping[str, int]]" = (),
    *,
    as_json: bool,
) -> None:
    """Print the commands, and where the first one would start if the scheduler can be asked."""
    from gpuyard.live.sdk import ClusterError

    told, problem = None, ""
    try:
        requests = with_dependencies(cluster, requests)
        told = cluster.preview(**_without_places(requests[0]))
    except ClusterError as error:
        if error.code not in {"Unreachable", "NotGpuyard"}:
            raise
        problem = str(error)
    if as_json:
        from msgspec import to_builtins

        from gpuyard.cli.output.printing import print_json

        tasks = [_set_fields(one) for one in requests]
        print_json({"tasks": tasks, "limits": list(limits), "preview": to_builtins(told) if told else None})
        return
    for one in requests:
        name = f"{one['name']}  " if one["name"] else ""
        typer.echo(f"{name}{shown_command(one)}")
    if told is None:
        print(f"gpuyard: {localized(f'Where it would start is not known: {problem}')}", file=sys.stderr)
    else:
        typer.echo(localized(_would_start("The first" if len(requests) > 1 else "It", told)))


def _without_places(request: RequestFields) -> RequestFields:
    """Return the request without its dependencies on tasks that are submitted together with it."""
    kept = dict(request)
    for field in ("depends_on", "after_any"):
        kept[field] = [ref for ref in request.get(field) or () if not ref.startswith("tasks[")] or None
    return kept


def _set_fields(request: RequestFields) -> dict[str, Any]:
    """Return the fields that are set, without the values of secrets."""
    fields = {name: value for name, value in request.items() if value is not None}
    if fields.get("secrets"):
        fields["secrets"] = sorted(fields["secrets"])
    return fields


def _would_start(subject: str, told: "PreviewAnswer") -> str:
    from gpuyard.cli.output.printing import format_instant

    if told.would_start == "now":
        where = f" on {told.node_id}" if told.node_id else ""
        gpus = f" ({', '.join(told.gpus)})" if told.gpus else ""
        return f"{subject} would start now{where}{gpus}."
    likely = told.expected_start.likely
    when = f" Expected start: {format_instant(likely)}." if likely and told.would_start == "later" else ""
    wait = "would wait" if told.would_start == "later" else "would wait for a suitable node"
    return f"{subject} {wait}. {told.reason or ''}{when}".rstrip()


def warn_if_nothing_fits(cluster: "Client", task: "Task", *, alone: bool = False) -> None:
    """Print to standard error that no current node can hold a task that was accepted and waits.

    `alone`: also print the reason; otherwise `Progress` prints it.
    """
    from gpuyard.core.domain.errors import GpuyardError

    if task.status != "pending" or task.allocated_gpus:
        return
    try:
        told = cluster.explain(task.id)
    except GpuyardError:
        return  # the task is accepted; this was only a courtesy
    if told.status != "pending" or not fits_nowhere(told):
        return
    if told.reason_code == NO_NODES:
        words = f"{task.id} waits. {NO_NODES_SENTENCE}" if alone else ""
    else:
        step = next_step(told)
        words = f"{task.id} waits. {told.reason} {step}".rstrip() if alone else step and f"{task.id}: {step}"
    if words:
        print(f"gpuyard: {localized(words)}", file=sys.stderr)
