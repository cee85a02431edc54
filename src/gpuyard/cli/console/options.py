"""Options of the commands that open a terminal, and how such a command ends."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gpuyard.cli.input.options import seconds_of
from gpuyard.cli.output.task_output import GAVE_UP

if TYPE_CHECKING:
    from gpuyard.cli.console.session import SessionEnd
    from gpuyard.live.sdk import Client, Task
    from gpuyard.live.sdk.console import TaskConsole

ESCAPES = {"ctrl-]": True, "none": False}
SIGNALLED = 128
EscapeOption = Annotated[
    str,
    typer.Option(
        "--escape", metavar="ctrl-]|none", help="Keys that leave the session if pressed three times within a second."
    ),
]
LingerOption = Annotated[
    str,
    typer.Option(
        "--linger", metavar="TIME", help="How long the terminal stays open without a client, such as 0, 15m or 2h."
    ),
]


def check_escape(word: str) -> None:
    """Refuse an unknown escape."""
    if word not in ESCAPES:
        raise typer.BadParameter(f"{word!r} is not one of: {', '.join(ESCAPES)}", param_hint="'--escape'")


def escapes(word: str) -> bool:
    """Return whether keys leave the session."""
    return ESCAPES[word]


def linger_of(text: str, *, keep: bool) -> float | None:
    """Return the seconds without a client; None: for ever."""
    if keep:
        return None
    return 0.0 if text.strip() == "0" else seconds_of(text, "--linger")


def ends_with(
    end: "SessionEnd", cluster: "Client", task: "Task", console: "TaskConsole", *, as_json: bool, again: str
) -> None:
    """Report how the session of a task's terminal has ended; end this command with the code for it."""
    if end.why == "detached":
        if as_json:
            from gpuyard.cli.output.printing import print_json

            print_json(cluster.task(task))
        else:
            print(f"\ngpuyard: detached; {task.id} continues. To attach again: {again}", file=sys.stderr)
        raise typer.Exit(SIGNALLED + end.signal if end.signal else 0)
    if end.why in {"refused", "lost"}:
        from gpuyard.cli.output.errors import complain

        complain(end.sentence, code=end.reason or end.why, as_json=as_json)
        raise typer.Exit(GAVE_UP if end.why == "lost" else 1)
    finish(end, cluster, task, console, as_json=as_json)


def finish(end: "SessionEnd", cluster: "Client", task: "Task", console: "TaskConsole", *, as_json: bool) -> None:
    """Print the rest of the output, wait for the end of the task and end this command with its exit code."""
    from gpuyard.cli.run import exit_code_of
    from gpuyard.live.sdk import ClusterError

    if end.why == "over":
        try:
            for part in cluster.logs(task, offset=console.received):
                sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()
        except ClusterError as error:
            print(f"gpuyard: the rest of the output is not available. {error}", file=sys.stderr)
    ended = cluster.wait(task)
    if as_json:
        from gpuyard.cli.output.printing import print_json

        print_json(ended)
    raise typer.Exit(exit_code_of(ended, silent=as_json))
