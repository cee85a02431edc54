"""`gpuyard sbatch`: submit a job script with the options of Slurm's sbatch, in Slurm's meaning."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import JsonOption, ServerOption, TokenOption, client
from gpuyard.cli.submit import submit_requests, submitted, warn_if_nothing_fits

if TYPE_CHECKING:
    from gpuyard.cli.slurm.options import SbatchOptions
    from gpuyard.cli.slurm.script import JobScript
    from gpuyard.live.sdk import Client, Task

WRAPPED = "wrap"
"""The name of a job without a script, as in Slurm."""


def sbatch(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SBATCH OPTIONS] SCRIPT [ARGS]...", help="As for sbatch; - reads the script from input."
        ),
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
    token: TokenOption = None,
) -> None:
    """Submit a job script as sbatch does, with its options; options of gpuyard come first."""
    import os

    from gpuyard.cli.input.environment import submit_process
    from gpuyard.cli.slurm.job import job_of, tell, with_whole_arrays
    from gpuyard.cli.slurm.options import SbatchOptions

    typed = SbatchOptions()
    left = typed.add(words or [], "")
    script = _script(typed, left)
    script.options.add_variables(os.environ)
    for name, value in typed.values.items():
        script.options.set(name, value, "")
    folder = os.getcwd()  # noqa: PTH109 - as text, which is what is sent
    job = job_of(
        script, left[1:], {}, environ=os.environ, folder=folder, server=server or os.environ.get("GPUYARD_SERVER", "")
    )
    request = {**job.request, "submit_process": submit_process(job.request["env"])}
    options = script.options
    parsable = "parsable" in options
    if not as_json and not parsable and "quiet" not in options:
        tell(job, script.name)
    if job.dry_run:
        submit_requests(
            [request], lambda: client(server, token), together=False, dry_run=True, yes=True, as_json=as_json
        )
        return
    cluster = client(server, token)
    request = with_whole_arrays(cluster, request) if "dependency" in options else request
    tasks = submitted(cluster, request)
    if as_json:
        from gpuyard.cli.output.printing import print_answer

        print_answer(cluster)
    else:
        typer.echo(str(tasks[0].number) if parsable else f"Submitted batch job {tasks[0].number}")
    warn_if_nothing_fits(cluster, tasks[0], alone=True)
    if "wait" in options:
        sys.stdout.flush()
        raise typer.Exit(_highest_exit_code(cluster, tasks))


def _script(typed: "SbatchOptions", left: list[str]) -> "JobScript":
    """Return the script: a file, standard input, or the line of `--wrap`."""
    from gpuyard.cli.slurm.options import SbatchOptions
    from gpuyard.cli.slurm.script import LARGEST_SCRIPT, JobScript, parse_script, read_script

    line = typed.get("wrap")
    if line is not None:
        if left:
            raise typer.BadParameter("--wrap and a script exclude each other", param_hint="'SCRIPT'")
        return JobScript(WRAPPED, f"#!/bin/sh\n{line}\n", SbatchOptions(), ())
    if not left:
        raise typer.BadParameter("name a job script, - for standard input, or --wrap LINE", param_hint="'SCRIPT'")
    if left[0] == "-":
        return parse_script("standard input", sys.stdin.buffer.read(LARGEST_SCRIPT))
    return read_script(Path(left[0]))


def _highest_exit_code(cluster: "Client", tasks: "list[Task]") -> int:
    """Wait for the tasks; return the highest exit code, as `sbatch --wait`."""
    ends = cluster.wait(tasks)
    return max(one.exit_code or (0 if one.succeeded else 1) for one in ends)
