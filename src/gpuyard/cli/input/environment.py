"""Which environment variables `submit` and `run` pass to a task.

An active virtual or conda environment is passed on: the four variables that make programs find it, and no others.
gpuyard's own environment does not count, because users activate it to have the `gpuyard` command. `--env-all` sends
everything except variables that describe this terminal session and names that look like secrets; use `--secret` for
those.
"""

import os
import re
import sys
from collections.abc import Mapping

ENVIRONMENT = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV")
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE|_KEY$|^KEY$|AUTH", re.IGNORECASE)
_SESSION = frozenset(
    [
        "_",
        "DISPLAY",
        "HOME",
        "HOSTNAME",
        "LOGNAME",
        "MAIL",
        "OLDPWD",
        "PWD",
        "SHELL",
        "SHLVL",
        "STY",
        "TERM",
        "TMUX",
        "TMUX_PANE",
        "TTY",
        "USER",
        "WAYLAND_DISPLAY",
        "WINDOWID",
        "XAUTHORITY",
        "LS_COLORS",
        "PS1",
        "CUDA_DEVICE_ORDER",
    ]
)
_SESSION_PREFIXES = ("BASH_FUNC_", "DBUS_", "GPUYARD_", "SSH_", "XDG_", "SYSTEMD_", "GPG_")


def active(env: Mapping[str, str], own_prefix: str = sys.prefix) -> dict[str, str]:
    """Return the variables of an active virtual or conda environment; empty if there is none, or only gpuyard's own."""
    prefixes = [env[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if env.get(name)]
    if not any(os.path.realpath(prefix) != os.path.realpath(own_prefix) for prefix in prefixes):
        return {}
    return {name: env[name] for name in ENVIRONMENT if env.get(name)}


def everything(env: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return all variables that can be passed to a task, and the names left out because they look like secrets."""
    from gpuyard.live.wire.tasks import RESERVED_VARIABLES

    sent: dict[str, str] = {}
    secret = []
    for name, value in env.items():
        if (
            name in _SESSION
            or name in RESERVED_VARIABLES
            or name.startswith(_SESSION_PREFIXES)
            or not name.isprintable()
        ):
            continue
        if _SECRET.search(name):
            secret.append(name)
        else:
            sent[name] = value
    return sent, sorted(secret)
