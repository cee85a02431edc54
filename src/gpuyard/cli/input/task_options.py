"""The options of `submit` and `run` that describe a task, and the request that they form.

Each function builds a part of the request: its parameters are the options, it returns the fields that they set.
"""

import os
import sys
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from itertools import chain
from math import isfinite, nan
from typing import Annotated, Any, TypeAlias

import typer

from gpuyard.cli.input.options import finite, priority_of, seconds_of

RequestFields: TypeAlias = dict[str, Any]
"""Keyword arguments of the client's `submit`, and the command."""


def resource_options(
    gpus: Annotated[
        int | None, typer.Option("-g", "--gpus", metavar="N", min=0, help="GPUs on each node (default: 1).")
    ] = None,
    gpu_model: Annotated[
        list[str] | None,
        typer.Option("-m", "--gpu-model", metavar="MODEL", help="Allowed GPU model; repeat to allow several."),
    ] = None,
    gpu_speed: Annotated[
        list[str] | None,
        typer.Option("--gpu-speed", metavar="MODEL=X", help="Relative speed on a GPU model; repeat for each model."),
    ] = None,
    gpu_mem: Annotated[int | None, typer.Option("--gpu-mem", metavar="MB", help="Minimum memory of each GPU.")] = None,
    fraction: Annotated[
        float | None, typer.Option("--fraction", callback=finite, metavar="F", help="Share of one GPU, such as 0.5.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", metavar="N", help="Number of nodes; all start together.")
    ] = None,
    cpus: Annotated[
        int | None, typer.Option("--cpus", metavar="N", help="CPUs on each node; without --gpus, a task without GPUs.")
    ] = None,
    mem: Annotated[int | None, typer.Option("--mem", metavar="MB", help="Host memory on each node.")] = None,
    label: Annotated[list[str] | None, typer.Option("--label", metavar="K=V", help="Required node label.")] = None,
    link: Annotated[
        str | None,
        typer.Option("--link", metavar="any|numa|nvlink", help="How close the GPUs should be to each other."),
    ] = None,
    require_fit: Annotated[
        bool, typer.Option("--require-fit", help="Reject the task if no current node is large enough.")
    ] = False,
) -> RequestFields:
    """Return the resources and constraints."""
    if gpus == 0 and not cpus and fraction is None:
        message = "a task without GPUs needs --cpus N; request at least one GPU or one CPU"
        raise typer.BadParameter(message, param_hint="'--gpus'")
    return {
        "gpu_count": gpus,
        "gpu_model": gpu_model or None,
        "gpu_speeds": _speeds(gpu_speed),
        "gpu_memory_mb": gpu_mem,
        "gpu_fraction": fraction,
        "nodes": nodes,
        "cpu_count": cpus,
        "memory_mb": mem,
        "labels": _pairs(label, "--label"),
        "link": link,
        "require_fit": require_fit or None,
    }


def scheduling_options(
    priority: Annotated[
        str | None,
        typer.Option("-p", "--priority", metavar="high|low|N", help="Priority, 0 to 100; higher starts first."),
    ] = None,
    task_class: Annotated[
        str | None, typer.Option("--class", metavar="online|batch", help="Quota class: online or batch.")
    ] = None,
    after: Annotated[
        list[str] | None, typer.Option("--after", metavar="ID", help="Start after this task has succeeded.")
    ] = None,
    after_any: Annotated[
        list[str] | None,
        typer.Option("--after-any", metavar="ID", help="Start after this task has ended, successfully or not."),
    ] = None,
    estimate: Annotated[
        str | None, typer.Option("--estimate", metavar="TIME", help="Expected run time, such as 30m.")
    ] = None,
) -> RequestFields:
    """Return the fields for its place in the queue."""
    return {
        "priority": priority_of(priority),
        "task_class": task_class,
        "depends_on": after or None,
        "after_any": after_any or None,
        "estimated_seconds": seconds_of(estimate, "--estimate"),
    }


def ending_options(
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Time limit, such as 90, 30m or 2h.")
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option("--grace", metavar="TIME", help="Time to save its state between SIGTERM and SIGKILL."),
    ] = None,
    retries: Annotated[
        int | None, typer.Option("--retries", metavar="N", help="Number of retries after a failure.")
    ] = None,
    preemption: Annotated[
        str | None,
        typer.Option(
            "--preemption",
            metavar="never|suspend|checkpoint|requeue",
            help="Whether and how the task may be preempted.",
        ),
    ] = None,
    on_lost: Annotated[
        str | None,
        typer.Option("--on-lost", metavar="rerun|fence|wait", help="What to do when its node loses contact."),
    ] = None,
) -> RequestFields:
    """Return the fields for its end: timeout, grace, retries, preemption, lost nodes."""
    return {
        "timeout": seconds_of(timeout, "--timeout"),
        "grace": seconds_of(grace, "--grace"),
        "retries": retries,
        "preemption": preemption,
        "on_lost": on_lost,
    }


def naming_options(
    name: Annotated[str | None, typer.Option("-n", "--name", metavar="NAME", help="Name of the task.")] = None,
    description: Annotated[
        str | None, typer.Option("--description", metavar="TEXT", help="Description of the task.")
    ] = None,
    tenant: Annotated[
        str | None, typer.Option("-t", "--tenant", metavar="NAME", help="Tenant whose quota is used (default: yours).")
    ] = None,
    project: Annotated[str | None, typer.Option("--project", metavar="NAME", help="Project of the task.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Machine-learning model that the task uses.")
    ] = None,
    work: Annotated[
        str | None,
        typer.Option(
            "--work", metavar="K=V,...", help="Workload for the prediction: model=resnet50,batch=64,steps=1000."
        ),
    ] = None,
) -> RequestFields:
    """Return names, for display and for usage accounting, and the declared workload."""
    return {
        "work": _work(work),
        "name": name,
        "description": description,
        "tenant_id": tenant,
        "project": project,
        "model": model,
    }


def command_options(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND...", help="Program and its arguments.")
    ] = None,
    shell: Annotated[
        str | None, typer.Option("--shell", metavar="LINE", help="Shell command line, instead of COMMAND.")
    ] = None,
    array: Annotated[
        int | None, typer.Option("--array", metavar="N", help="Number of copies, numbered in GPUYARD_ARRAY_INDEX.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("-e", "--env", metavar="K=V", help="Environment variable; NAME alone takes your value."),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret", metavar="K", help="Secret environment variable; taken from your environment or prompted for."
        ),
    ] = None,
    env_all: Annotated[
        bool, typer.Option("--env-all", help="Copy your whole environment, except names that look like secrets.")
    ] = False,
    no_venv: Annotated[
        bool, typer.Option("--no-venv", help="Do not pass on your active virtual or conda environment.")
    ] = False,
    work_dir: Annotated[
        str | None, typer.Option("-C", "--work-dir", metavar="DIR", help="Working directory (default: this folder).")
    ] = None,
) -> RequestFields:
    """Return the command and its environment."""
    return {
        "command": _command(command, shell),
        "array": array,
        "env": _environment(env, env_all=env_all, no_venv=no_venv, secrets=secret or []),
        "secrets": _secrets(secret),
        "work_dir": work_dir or os.getcwd(),  # noqa: PTH109 - as text, which is what is sent
    }


PARTS: tuple[Callable[..., RequestFields], ...] = (
    resource_options,
    scheduling_options,
    ending_options,
    naming_options,
    command_options,
)
"""The parts of the request, in the order of `--help`."""


def task_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command whose first parameter is such a request all task options in addition to its own."""
    options = {part: list(signature(part).parameters.values()) for part in PARTS}
    own = list(signature(command).parameters.values())[1:]

    def called(**values: Any) -> None:
        request: RequestFields = {}
        for part, asked in options.items():
            request |= part(**{parameter.name: values.pop(parameter.name) for parameter in asked})
        command(request, **values)

    together = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in (*chain(*options.values()), *own)]
    called.__signature__ = Signature(together)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in together}
    called.__name__, called.__doc__ = command.__name__, command.__doc__
    return called


def _command(words: list[str] | None, shell: str | None) -> list[str] | str:
    """Return words as arguments; a single word with a space in it is a shell line, because it was quoted as one."""
    if bool(words) == bool(shell):
        raise typer.BadParameter("give either a command or --shell with a shell command line", param_hint="'COMMAND'")
    if shell or not words:
        return shell or ""
    return words[0] if len(words) == 1 and " " in words[0].strip() else words


def _pairs(texts: list[str] | None, option: str, *, from_environment: bool = False) -> dict[str, str] | None:
    pairs = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals and from_environment and name in os.environ:
            value = os.environ[name]
        elif not equals or not name:
            extra = "; without =VALUE it must be a variable of your environment" if from_environment else ""
            raise typer.BadParameter(f"{text!r} does not have the form NAME=VALUE{extra}", param_hint=f"'{option}'")
        pairs[name] = value
    return pairs or None


def _environment(texts: list[str] | None, *, env_all: bool, no_venv: bool, secrets: list[str]) -> dict[str, str] | None:
    """Return the variables of `-e`, on top of the active environment or of the whole environment."""
    from gpuyard.cli.input.environment import ENVIRONMENT, active, everything

    said = _pairs(texts, "--env", from_environment=True) or {}
    ours: dict[str, str] = {}
    if env_all:
        ours, left_out = everything(os.environ)
        left_out = [name for name in left_out if name not in said and name not in secrets]
        if left_out:
            names = ", ".join(left_out)
            print(f"gpuyard: --env-all omits {names}; use --secret for those that the task needs.", file=sys.stderr)
        if no_venv:
            ours = {name: value for name, value in ours.items() if name not in ENVIRONMENT}
    elif not no_venv and "PATH" not in said:
        ours = active(os.environ)
    together = {name: value for name, value in {**ours, **said}.items() if name in said or name not in secrets}
    return together or None


def _speeds(texts: list[str] | None) -> dict[str, float] | None:
    speeds = {}
    for model, value in (_pairs(texts, "--gpu-speed") or {}).items():
        try:
            speed = float(value)
        except ValueError:
            speed = nan
        if not isfinite(speed):
            message = f"{value!r} is not a number; give the relative speed, such as {model}=0.5"
            raise typer.BadParameter(message, param_hint="'--gpu-speed'")
        speeds[model] = speed
    return speeds or None


def _work(text: str | None) -> dict[str, Any] | None:
    """Parse the pairs of `--work`: numbers and true/false are converted, everything else is text."""
    if text is None:
        return None
    said: dict[str, Any] = {}
    for name, value in (_pairs(text.split(","), "--work") or {}).items():
        known = {"true": True, "false": False}.get(value.lower())
        said[name.strip()] = known if known is not None else _number(value)
    return said


def _number(value: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _secrets(names: list[str] | None) -> dict[str, str] | None:
    """Read secret values, never from arguments: all users of the machine can read those."""
    found = {}
    for name in names or ():
        if "=" in name:
            message = "give only the name; the value is taken from your environment or prompted for"
            raise typer.BadParameter(message, param_hint="'--secret'")
        if name in os.environ:
            found[name] = os.environ[name]
        elif sys.stdin.isatty():
            from getpass import getpass

            found[name] = getpass(f"{name}: ")
        else:
            message = f"{name} is not set in your environment, and there is no terminal to prompt on"
            raise typer.BadParameter(message, param_hint="'--secret'")
    return found or None
