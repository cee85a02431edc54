"""What travels with a task from the shell that submits it: variables, umask, soft limits.

By default a task gets the *usual* variables: PATH, the active virtual or conda environment, and the settings of common
libraries. `--env-all` sends everything but what describes this terminal session or another scheduler, `--clean-env`
nothing. Job scripts get everything, as on Slurm. Values that look like secrets, by their name or their form, travel as
secrets: their values are in no journal, answer or list.

An environment is active if it has been activated. The folder of programs of gpuyard's own environment on PATH, without
that, only makes the command `gpuyard` available; it is left out, so that `python` is the one of the user.
"""

import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ENVIRONMENT = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV")
USUAL = frozenset(
    ["PATH", "VIRTUAL_ENV", "PYTHONPATH", "LD_LIBRARY_PATH", "CUDA_HOME", "LOADEDMODULES", "MODULEPATH", "LANG", "TZ"]
    + [name for proxy in ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy") for name in (proxy, proxy.upper())]
)  # fmt: skip
USUAL_PREFIXES = (
    "CONDA_", "MAMBA_", "HF_", "TORCH_", "PYTORCH_", "XLA_", "JAX_", "NCCL_", "OMP_", "MKL_", "WANDB_", "MLFLOW_", "UV_",
    "LC_",
)  # fmt: skip
"""The variables that travel by default, besides `USUAL`."""
_SESSION = frozenset(
    [
        "_", "DISPLAY", "HOME", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL", "STY", "TERM", "TTY",
        "USER", "WAYLAND_DISPLAY", "WINDOWID", "XAUTHORITY", "LS_COLORS", "PS1", "CUDA_DEVICE_ORDER",
    ]
)  # fmt: skip
_NEVER_PREFIXES = (
    "DBUS_", "GPUYARD_", "SSH_", "XDG_", "SYSTEMD_", "GPG_", "SLURM_", "SBATCH_", "SRUN_", "PMI", "OMPI_", "TMUX", "MASTER_",
)  # fmt: skip
"""Variables of this terminal session and of other schedulers, which no task gets."""
_FUNCTIONS = "BASH_FUNC_"
LIMITS = ("nofile", "stack", "memlock", "core")
_SECRET_NAME = re.compile(r"TOKEN(?!IZ)|SECRET|PASSW|CREDENTIAL|(API|ACCESS|PRIVATE)_?KEY|_KEY$|^KEY$", re.IGNORECASE)
_SECRET_VALUE = re.compile(
    r"^(hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abprs]-|AKIA[0-9A-Z]{12})[A-Za-z0-9_-]{4,}"
    r"|^ey[A-Za-z0-9_-]{8,}\.ey[A-Za-z0-9_-]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s@]+@"
)
_WANDB_KEY = re.compile(r"^[0-9a-f]{40}$")


class Travelling(NamedTuple):
    """The variables that a task gets: those that are shown, and secrets."""

    env: dict[str, str]
    secrets: dict[str, str]


def looks_secret(name: str, value: str) -> bool:
    """Return whether a variable looks like a secret, by its name or by its value."""
    if name.startswith(_FUNCTIONS):
        return False
    wandb = name.startswith("WANDB") and _WANDB_KEY.match(value)
    return bool(_SECRET_NAME.search(name) or wandb or _SECRET_VALUE.search(value))


def usual(env: Mapping[str, str], own_prefix: str = sys.prefix) -> Travelling:
    """Return the variables that travel by default."""
    return _split(_without_own(_passable(env, usual_only=True), own_prefix))


def everything(env: Mapping[str, str], own_prefix: str = sys.prefix) -> Travelling:
    """Return all variables that can be passed to a task."""
    return _split(_without_own(_passable(env), own_prefix))


def for_job_script(
    env: Mapping[str, str], own_prefix: str = sys.prefix, *, activates: bool = False
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables that travel with a job script, and the secrets.

    Everything, with exported functions of bash such as `module`, but without gpuyard's own environment. A script that
    activates a conda environment itself does not get the one that is active here: activating a second one on top of it
    leaves the programs of the first one in front.
    """
    found = _passable(env, functions=True)
    own = os.path.realpath(own_prefix)
    left_out = {prefix for prefix in (found.get("VIRTUAL_ENV"),) if prefix and os.path.realpath(prefix) == own}
    folders = {os.path.realpath(f"{own_prefix}/bin")}
    if activates:
        left_out |= {prefix for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if (prefix := found.get(name))}
        folders |= {os.path.realpath(f"{prefix}/bin") for prefix in left_out}
        found = {name: value for name, value in found.items() if not name.startswith("CONDA_")}
    if found.get("VIRTUAL_ENV") in left_out:
        del found["VIRTUAL_ENV"]
    return _split(_without_folders(found, folders))


def without_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without the active virtual or conda environment and its folders on PATH."""
    prefixes = [env[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if env.get(name)]
    kept = {name: value for name, value in env.items() if name != "VIRTUAL_ENV" and not name.startswith("CONDA_")}
    if not prefixes:
        return kept
    return _without_folders(kept, {os.path.realpath(f"{prefix}/bin") for prefix in prefixes})


def submit_process(env: Mapping[str, str], own_prefix: str = sys.prefix) -> dict[str, Any]:
    """Return the machine, umask and soft limits of this process, and the Python that a node must have for `env`."""
    import resource

    from gpuyard.system.machine import machine

    mask = os.umask(0o077)
    os.umask(mask)
    soft = {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[0] for name in LIMITS}
    prefix = active_prefix(env)
    python = f"{prefix}/bin/python" if prefix and os.path.realpath(prefix) != os.path.realpath(own_prefix) else ""
    told: dict[str, Any] = {"host": machine(), "umask": mask, "limits": soft}
    return told | ({"python": python} if python and os.access(python, os.X_OK) else {})


def active_prefix(env: Mapping[str, str]) -> str:
    """Return the folder of the virtual or conda environment whose programs come first on PATH; empty if there is none."""
    prefixes = [env[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if env.get(name)]
    folders = env.get("PATH", "").split(os.pathsep)
    found = [(folders.index(f"{prefix}/bin"), prefix) for prefix in prefixes if f"{prefix}/bin" in folders]
    return min(found)[1] if found else ""


def described(env: Mapping[str, str], secrets: Collection[str]) -> str:
    """Return what travels in a few words, such as `.venv (Python 3.11), 34 variables, 2 secrets`."""
    parts = []
    if prefix := active_prefix(env):
        version = _python_version(Path(prefix))
        here = os.path.relpath(prefix)
        shown = here if not here.startswith("..") else prefix
        name = env.get("CONDA_DEFAULT_ENV") if prefix == env.get("CONDA_PREFIX") else None
        parts.append(f"{name or shown}{f' (Python {version})' if version else ''}")
    parts.append(_count(len(env), "variable"))
    if secrets:
        parts.append(_count(len(secrets), "secret"))
    return ", ".join(parts)


def _python_version(prefix: Path) -> str:
    """Return the version of the Python of an environment from the names of its folders; empty if it has none."""
    found = sorted(path.name for path in (prefix / "lib").glob("python[0-9]*") if path.is_dir())
    return found[-1].removeprefix("python") if found else ""


def _count(number: int, word: str) -> str:
    from gpuyard.cli.shell.messages import localized

    return localized(f"{number} {word}{'' if number == 1 else 's'}")


def _passable(env: Mapping[str, str], *, functions: bool = False, usual_only: bool = False) -> dict[str, str]:
    from gpuyard.live.wire.tasks import RESERVED_VARIABLES

    return {
        name: value
        for name, value in env.items()
        if name not in _SESSION
        and name not in RESERVED_VARIABLES
        and not name.startswith(_NEVER_PREFIXES)
        and name.isprintable()
        and (functions or not name.startswith(_FUNCTIONS))
        and (not usual_only or name in USUAL or name.startswith(USUAL_PREFIXES))
        and _is_text(name + value)
    }


def _without_own(env: dict[str, str], own_prefix: str) -> dict[str, str]:
    """Remove gpuyard's own programs from PATH, unless its environment has been activated."""
    if own_prefix == sys.base_prefix:
        return env  # it has no environment of its own, and its folder is that of the system
    activated = {os.path.realpath(env[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if env.get(name)}
    if os.path.realpath(own_prefix) in activated:
        return env
    return _without_folders(env, {os.path.realpath(f"{own_prefix}/bin")})


def _without_folders(env: Mapping[str, str], folders: Collection[str]) -> dict[str, str]:
    if "PATH" not in env:
        return dict(env)
    kept = [one for one in env["PATH"].split(os.pathsep) if os.path.realpath(one) not in folders]
    return {**env, "PATH": os.pathsep.join(kept)}


def _split(env: Mapping[str, str], known: Iterable[str] = ()) -> Travelling:
    secret = {name for name, value in env.items() if looks_secret(name, value)} | set(known)
    return Travelling(
        {name: value for name, value in env.items() if name not in secret},
        {name: value for name, value in env.items() if name in secret},
    )


def _is_text(value: str) -> bool:
    """Return whether a value is UTF-8, which a request needs."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
