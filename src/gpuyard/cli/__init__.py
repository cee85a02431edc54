"""The command line. Each command has a file, or a folder if it is long.

The file of a command imports nothing heavy at its top, so that `gpuyard --help` stays fast; it imports what it needs when
the command is called. Exit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted. An error is reported in one sentence on
standard error, with `--json` in one object; a traceback means a bug in gpuyard.

This file imports no library, because the shell starts it for every completion; `application.py` builds the commands.
"""

import os
import sys

TYPE_CHECKING = False  # importing `typing` takes as long as a completion
if TYPE_CHECKING:
    import typer

    app: typer.Typer

DONE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130

COMMANDS = {
    "up": "up:up",
    "down": "down:down",
    "server": "server:server",
    "status": "schedulers:status",
    "promote": "schedulers:promote",
    "detach-standby": "schedulers:detach_standby",
    "agent": "agent:agent",
    "witness": "witness:witness",
    "submit": "submit:submit",
    "sbatch": "sbatch:sbatch",
    "run": "run:run",
    "demo": "demo:demo",
    "ps": "ps:ps",
    "top": "top.command:top",
    "show": "show:show",
    "logs": "logs:logs",
    "attach": "attach:attach",
    "shell": "task_shell:shell",
    "forward": "forward:forward",
    "cancel": "cancel:cancel",
    "hold": "task_actions:hold",
    "release": "task_actions:release",
    "suspend": "task_actions:suspend",
    "resume": "task_actions:resume",
    "priority": "task_actions:priority",
    "boost": "task_actions:boost",
    "extend": "task_actions:extend",
    "max-running": "task_actions:max_running",
    "clone": "clone:clone",
    "retry": "clone:retry",
    "wait": "wait:wait",
    "explain": "explain:explain",
    "book": "book:book",
    "bookings": "bookings:app",
    "lease": "lease:app",
    "gpus": "gpus:gpus",
    "nodes": "nodes:app",
    "quota": "quota:quota",
    "predictions": "predictions:predictions",
    "alerts": "alerts:app",
    "usage": "usage:usage",
    "tenants": "tenants:app",
    "users": "users:app",
    "tokens": "tokens:app",
    "login": "login:login",
    "whoami": "whoami:whoami",
    "plan": "plan:app",
    "train": "train:app",
    "predict": "predict:predict",
    "partition": "partition:partition",
    "analyze": "analyze:analyze",
    "simulate": "simulate:simulate",
    "journal": "journal:app",
    "trace": "trace:app",
    "profile": "profile:app",
    "completion": "completion:completion",
    "help": "help:help_of",
}
"""Every command: its file and the function in it. A group of commands is called `app`."""

BEFORE_A_COMMAND = {"submit", "run", "sbatch", "shell"}
"""Arguments after the command of a task belong to that command, even if they look like options of gpuyard."""
OPTIONS_OF_OTHERS = {"sbatch"}
"""Commands that read options which typer does not know."""
COMPLETION_VARIABLE = "_GPUYARD_COMPLETE"
"""Set by the completion scripts: the shell that asks for completions of the words given as arguments."""


def __getattr__(name: str) -> "typer.Typer":
    """Build `app`, the command line with all commands."""
    if name == "app":
        from gpuyard.cli.application import make_app

        return make_app()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main() -> int:
    """Run one command line and return its exit code."""
    words = sys.argv[1:]
    if COMPLETION_VARIABLE in os.environ:
        from gpuyard.cli.shell.answer import print_completions

        return print_completions(words)
    from gpuyard.cli.application import run

    return run(words, globals().get("app"))
