"""The options of `submit` and `run` that describe a task, and the request that they form.

Each function builds a part of the request: its parameters are the options, it returns the fields that they set.
"""

import os
import sys
from collections.abc import Callable
from inspect import Parameter, Signature, signature
from itertools import chain
from math import isfinite, nan
from re import fullmatch
from typing import Annotated, Any, TypeAlias

import typer

from gpuyard.cli.input.options import (
    TenantOption,
    finite,
    gpu_memory_of,
    gpus_of,
    mebibytes_of,
    priority_of,
    seconds_of,
)

RequestFields: TypeAlias = dict[str, Any]
"""Keyword arguments of the client's `submit`, and the command."""
SHELL = "shell"
"""The key for what of this shell's environment travels with the task, until `with_shell` adds it."""


def _task_name(value: str | None) -> str | None:
    """Refuse a number as a name: commands that take names take it as an id. In Slurm -n is the number of tasks."""
    if value is None or not value.isdigit():
        return value
    message = f"-n is the name, and {value} would mean task-{value}; CPUs are --cpus {value}, nodes --nodes {value}"
    raise typer.BadParameter(message, param_hint="'--name'")


def resource_options(
    gpus: Annotated[
        str | None,
        typer.Option("-g", "--gpus", metavar="N|MODEL:N", help="GPUs on each node, such as 2 or A100:2 (default: 1)."),
    ] = None,
    gpu_model: Annotated[
        list[str] | None,
        typer.Option("-m", "--gpu-model", metavar="MODEL", help="Allowed GPU model; repeat to allow several."),
    ] = None,
    any_of: Annotated[
        str | None, typer.Option("--any-of", metavar="MODEL,...", help="Allowed GPU models, such as H100,A100.")
    ] = None,
    gpu_speed: Annotated[
        list[str] | None,
        typer.Option("--gpu-speed", metavar="MODEL=X", help="Relative speed on a GPU model; repeat for each model."),
    ] = None,
    gpu_memory: Annotated[
        str | None,
        typer.Option("--gpu-mem", "--gpu-memory", metavar="SIZE", help="Minimum memory of each GPU, such as 24G."),
    ] = None,
    fraction: Annotated[
        float | None, typer.Option("--fraction", callback=finite, metavar="F", help="Share of one GPU, such as 0.5.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", metavar="N", help="Number of nodes; all start together.")
    ] = None,
    cpus: Annotated[
        int | None, typer.Option("--cpus", metavar="N", help="CPUs on each node; without --gpus, a task without GPUs.")
    ] = None,
    mem: Annotated[
        str | None, typer.Option("--mem", metavar="SIZE", help="Host memory on each node, such as 8G.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option("--label", metavar="K=V", help="Required node label.")] = None,
    link: Annotated[
        str | None,
        typer.Option("--link", metavar="any|numa|nvlink", help="How close the GPUs should be to each other."),
    ] = None,
    require_fit: Annotated[
        bool, typer.Option("--require-fit", help="Reject the task if no current node is large enough.")
    ] = False,
    booking: Annotated[
        str | None, typer.Option("--booking", metavar="ID", help="Use the GPUs of this booking, when it has begun.")
    ] = None,
) -> RequestFields:
    """Return the resources and constraints."""
    gpu_count, gpu_models = gpus_of(gpus, gpu_model, any_of)
    if gpu_count == 0 and not cpus and fraction is None:
        message = "a task without GPUs needs --cpus N; request at least one GPU or one CPU"
        raise typer.BadParameter(message, param_hint="'--gpus'")
    return {
        "gpu_count": gpu_count,
        "gpu_model": gpu_models,
        "gpu_speeds": _speeds(gpu_speed),
        "gpu_memory_mb": gpu_memory_of(gpu_memory, share=fraction is not None and fraction < 1),
        "gpu_fraction": fraction,
        "nodes": nodes,
        "cpu_count": cpus,
        "memory_mb": mebibytes_of(mem, "--mem"),
        "labels": _pairs(label, "--label"),
        "link": link,
        "require_fit": require_fit or None,
        "booking": booking,
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
        list[str] | None,
        typer.Option("--after", metavar="TASK,...", help="Start after these tasks, arrays or sweeps have succeeded."),
    ] = None,
    after_any: Annotated[
        list[str] | None,
        typer.Option(
            "--after-any", metavar="TASK,...", help="Start after these tasks have ended, successfully or not."
        ),
    ] = None,
    estimate: Annotated[
        str | None, typer.Option("--estimate", metavar="TIME", help="Expected run time, such as 30m.")
    ] = None,
) -> RequestFields:
    """Return the fields for its place in the queue."""
    return {
        "priority": priority_of(priority),
        "task_class": task_class,
        "depends_on": _tasks(after, "--after"),
        "after_any": _tasks(after_any, "--after-any"),
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
    name: Annotated[
        str | None, typer.Option("-n", "--name", metavar="NAME", help="Name of the task.", callback=_task_name)
    ] = None,
    description: Annotated[
        str | None, typer.Option("--description", metavar="TEXT", help="Description of the task.")
    ] = None,
    tenant: TenantOption = None,
    project: Annotated[str | None, typer.Option("--project", metavar="NAME", help="Project of the task.")] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Machine-learning model that the task uses.")
    ] = None,
    notify: Annotated[
        list[str] | None,
        typer.Option(
            "--notify",
            metavar="start|end|fail,...:TARGET",
            help="Tell a web address or mailto:ADDRESS, or run cmd:COMMAND, such as end,fail:mailto:me@example.org.",
        ),
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
        "notify": notify,
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
        str | None,
        typer.Option(
            "--array", metavar="N[%M]", help="Number of copies, numbered in GPUYARD_ARRAY_INDEX; at most M run at once."
        ),
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
        bool, typer.Option("--env-all", help="Pass on your whole environment, not only the usual variables.")
    ] = False,
    clean_env: Annotated[
        bool, typer.Option("--clean-env", help="Pass on nothing of your environment, umask and limits.")
    ] = False,
    no_venv: Annotated[
        bool, typer.Option("--no-venv", help="Do not pass on your active virtual or conda environment.")
    ] = False,
    setup: Annotated[
        str | None,
        typer.Option(
            "--setup", metavar="LINE", help="Shell line that runs before the command; if it fails, the task fails."
        ),
    ] = None,
    work_dir: Annotated[
        str | None, typer.Option("-C", "--work-dir", metavar="DIR", help="Working directory (default: this folder).")
    ] = None,
    snapshot: Annotated[
        bool,
        typer.Option(
            "--snapshot", help="Run in a copy of the working directory as it is now; later changes do not count."
        ),
    ] = False,
) -> RequestFields:
    """Return the command and its environment."""
    folder = work_dir or os.getcwd()  # noqa: PTH109 - as text, which is what is sent
    if clean_env and (env_all or no_venv):
        other = "--env-all" if env_all else "--no-venv"
        raise typer.BadParameter(
            f"it passes on nothing, so {other} has no meaning beside it", param_hint="'--clean-env'"
        )
    return {
        "command": _command(command, shell),
        **_array(array),
        **_variables(env, _secrets(secret)),
        SHELL: None if clean_env else (env_all, no_venv),
        "setup": setup,
        "work_dir": None if snapshot else folder,
        "snapshot": folder if snapshot else None,
    }


SCRIPT_ENDINGS = (".sh", ".bash", ".sbatch", ".slurm", ".py")
_WORDS_FOR_UNITS = frozenset(
    ["second", "seconds", "minute", "minutes", "min", "hour", "hours", "day", "days", "week", "weeks"]
)

_OPTIONS_AS_KEYS = ("gpus", "gpu_model", "gpu_memory", "nodes", "priority", "timeout", "retries", "name", "array")
"""Options that one may write as `gpu=2`."""

PARTS: tuple[Callable[..., RequestFields], ...] = (
    resource_options,
    scheduling_options,
    ending_options,
    naming_options,
    command_options,
)
"""The parts of the request, in the order of `--help`."""


def task_options(command: Callable[..., None], *, add_shell: bool = True) -> Callable[..., None]:
    """Give a command whose first parameter is such a request all task options in addition to its own.

    Without `add_shell` the command calls `with_shell` itself, once it knows whose environment the task gets.
    """
    return _with_options(command, PARTS, add_shell=add_shell)


def _with_options(
    command: Callable[..., None], parts: tuple[Callable[..., RequestFields], ...], *, add_shell: bool = False
) -> Callable[..., None]:
    options = {part: list(signature(part).parameters.values()) for part in parts}
    own = list(signature(command).parameters.values())[1:]

    def called(**values: Any) -> None:
        request: RequestFields = {}
        for part, asked in options.items():
            request |= part(**{parameter.name: values.pop(parameter.name) for parameter in asked})
        if "command" in request:
            _refuse_missing_script(request)
        command(with_shell(request) if add_shell else request, **values)

    together = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in (*chain(*options.values()), *own)]
    called.__signature__ = Signature(together)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in together}
    called.__name__, called.__doc__ = command.__name__, command.__doc__
    return called


def environment_changes(
    env: Annotated[
        list[str] | None,
        typer.Option("-e", "--env", metavar="K=V", help="Environment variable to add; NAME alone takes your value."),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option("--secret", metavar="K", help="Secret variable; taken from your environment or prompted for."),
    ] = None,
    work_dir: Annotated[str | None, typer.Option("-C", "--work-dir", metavar="DIR", help="Working directory.")] = None,
) -> RequestFields:
    """Return the changes of an environment."""
    return {
        "env": _pairs(env, "--env", from_environment=True),
        "secrets": _secrets(secret),
        "work_dir": work_dir,
    }


CHANGES: tuple[Callable[..., RequestFields], ...] = (
    resource_options,
    scheduling_options,
    ending_options,
    naming_options,
    environment_changes,
)
"""The parts of a task that can be changed when it is submitted again."""


def change_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command whose first parameter is a set of changes all options for them in addition to its own."""
    return _with_options(command, CHANGES)


def secret_values(names: list[str], *, known: dict[str, str]) -> dict[str, str]:
    """Return values for these secrets, except for known ones: from the environment, or prompted for."""
    return _secrets([name for name in names if name not in known]) or {}


def _command(words: list[str] | None, shell: str | None) -> list[str] | str:
    """Return words as arguments; a single word with a space in it is a shell line, because it was quoted as one."""
    if bool(words) == bool(shell):
        raise typer.BadParameter("give either a command or --shell with a shell command line", param_hint="'COMMAND'")
    if words and words[0].lower() in _WORDS_FOR_UNITS and words[1:2] == ["--"]:
        message = (
            f"{words[0]!r} seems to belong to a duration; write it as one word, such as 2{words[0][0]}, or quote it"
        )
        raise typer.BadParameter(message, param_hint="'COMMAND'")
    if shell or not words:
        return shell or ""
    if found := fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)=([^\s/]*)", words[0]):
        raise typer.BadParameter(_instead_of_assignment(*found.groups()), param_hint="'COMMAND'")
    return words[0] if len(words) == 1 and " " in words[0].strip() else words


def _refuse_missing_script(request: RequestFields) -> None:
    """Refuse a script as program that is neither here nor on PATH: on a node with this folder it would fail, too.

    Only where nothing can bring it: no other folder, snapshot, PATH, setup line or earlier task.
    """
    command = request["command"]
    word = command[0] if isinstance(command, list) else ""
    if not word.endswith(SCRIPT_ENDINGS) or word.startswith("/") or "{" in word:
        return
    elsewhere = request["work_dir"] != os.getcwd() or request[SHELL] is None  # noqa: PTH109 - as text
    if (
        elsewhere
        or "PATH" in (request["env"] or {})
        or any(request[field] for field in ("setup", "depends_on", "after_any"))
    ):
        return
    from shutil import which

    if not os.path.exists(word) and which(word) is None:  # noqa: PTH110 - as the user wrote it
        message = (
            f"{word!r} is neither in this folder nor a program on your PATH; a file that only the nodes have needs its "
            "absolute path"
        )
        raise typer.BadParameter(message, param_hint="'COMMAND'")


def _instead_of_assignment(name: str, value: str) -> str:
    """Return what to write instead of `gpu=2` or `DEBUG=1` before the command."""
    from gpuyard.input.nearest_name import closest_word

    near = closest_word(name, _OPTIONS_AS_KEYS) if name.islower() else None
    option = f"; if the option is meant, write --{near.replace('_', '-')} {value}" if near else ""
    return f"{name}={value} is not a program; set a variable with -e {name}={value}{option}"


def _tasks(texts: list[str] | None, option: str) -> list[str] | None:
    """Return the ids, ranges and names of an option that may be repeated and may list several with commas."""
    words = [item.strip() for text in texts or () for item in text.split(",")]
    if not all(words):
        raise typer.BadParameter("name a task, such as 7, task-7 or train", param_hint=f"'{option}'")
    return words or None


def _array(text: str | None) -> RequestFields:
    """Return the number of copies: 20 or 0-19, and after % how many may run at the same time.

    Copies are numbered from 0; other numbers are a sweep.
    """
    if text is None:
        return {"array": None, "max_running": None}
    found = fullmatch(r"(?:(0+)-)?([0-9]{1,9})(?:%([1-9][0-9]{0,8}))?", text.strip())
    if found is None:
        message = (
            f"{text!r} is not a number of copies, such as 20, or 20%4 to run at most 4 at the same time; they are numbered "
            "from 0. For other numbers or values use --sweep i=1..20 and {i} in the command"
        )
        raise typer.BadParameter(message, param_hint="'--array'")
    return {"array": int(found[2]) + (1 if found[1] else 0), "max_running": int(found[3]) if found[3] else None}


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


def _variables(texts: list[str] | None, asked: dict[str, str] | None) -> RequestFields:
    """Return the variables of `-e` and `--secret`; those of `-e` that look like secrets are sent as such."""
    from gpuyard.cli.input.environment import looks_secret

    said = _pairs(texts, "--env", from_environment=True) or {}
    secrets = {name: value for name, value in said.items() if looks_secret(name, value)} | (asked or {})
    return {
        "env": {name: value for name, value in said.items() if name not in secrets} or None,
        "secrets": secrets or None,
    }


def with_shell(request: RequestFields) -> RequestFields:
    """Add what travels from this shell, below what the request says itself."""
    request = dict(request)
    choice = request.pop(SHELL, None)
    if choice is None:
        return request
    from gpuyard.cli.input import environment

    env_all, no_venv = choice
    found = environment.everything(os.environ) if env_all else environment.usual(os.environ)
    own, own_secrets = request.get("env") or {}, request.get("secrets") or {}
    without = no_venv or "PATH" in own
    shell = environment.without_environment(found.env) if without else found.env
    env = {name: value for name, value in {**shell, **own}.items() if name not in own_secrets}
    secrets = {name: value for name, value in {**found.secrets, **own_secrets}.items() if name not in own}
    submitter = request.get("submit_process") or environment.submit_process(env)
    return request | {"env": env or None, "secrets": secrets or None, "submit_process": submitter}


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
