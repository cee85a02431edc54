"""Measures a node: its host, its GPUs, and whether a process outside of gpuyard uses one of them.

A GPU is external while a process computes on it that does not belong to an attempt holding that GPU. On a leased GPU
any process may run. A process that only draws (a desktop's) takes memory and nothing else. Virtual GPUs have no
processes, so they are never external.
"""

import os
import pwd
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from gpuyard.core.domain.values import GpuHealth, Value
from gpuyard.live.agent.inventory import GpuDevice, GpuProcess, GpuUsage
from gpuyard.live.agent.supervisor import cgroup, proc, process_tag
from gpuyard.live.agent.supervisor.messages import AttemptKey

_MIB = 1024 * 1024
_MOST_ANCESTORS = 64
DISPLAY_PROGRAMS = frozenset({
    "Xorg", "Xwayland", "X", "Xvnc", "gnome-shell", "gnome-session-b", "gnome-remote-de", "mutter", "kwin_x11",
    "kwin_wayland", "plasmashell", "ksmserver", "cinnamon", "xfwm4", "sway", "weston", "Hyprland", "gdm-x-session",
    "gdm-wayland-ses", "sddm", "sddm-greeter", "lightdm", "nxnode.bin", "compiz", "budgie-wm",
})  # fmt: skip
"""Names as in the kernel, cut to 15 characters. Some desktops compute a little to draw."""


class HostReading(Value, frozen=True):
    """The readings of the machine."""

    cpu_percent: float
    memory_used_mib: int
    memory_mib: int
    load: float
    """The average of the last minute."""
    disk_free_mib: int
    """Free space where tasks write their output."""


class Occupant(Value, frozen=True):
    """An attempt that holds GPUs on this node."""

    key: AttemptKey
    pid: int
    """The pid of its command; 0: it has none (a lease)."""
    gpus: tuple[int, ...]
    lease: bool = False
    whole: bool = True
    """It holds its GPUs completely, not a share."""


class GpuUser(Value, frozen=True):
    """A process on a GPU, and its owner."""

    pid: int
    memory_mib: int
    user: str
    display: bool
    key: AttemptKey | None
    """The attempt it belongs to; None: not an attempt of this node."""


class GpuReading(Value, frozen=True):
    """The report about one GPU."""

    use: GpuUsage
    health: GpuHealth
    why: str
    """One sentence if the health is not OK."""
    users: tuple[GpuUser, ...]


def host(folder: Path) -> HostReading:
    """Measure the machine. The CPU percentage is since the last call."""
    memory = psutil.virtual_memory()
    free = os.statvfs(folder)
    return HostReading(
        cpu_percent=psutil.cpu_percent(interval=None),
        memory_used_mib=(memory.total - memory.available) // _MIB,
        memory_mib=memory.total // _MIB,
        load=os.getloadavg()[0],
        disk_free_mib=free.f_bavail * free.f_frsize // _MIB,
    )


def gpus(
    devices: Iterable[GpuDevice], uses: Iterable[GpuUsage], occupants: Iterable[Occupant], folder_mark: str
) -> list[GpuReading]:
    """Determine the health and the users of each GPU. The mark is that of the supervisor's folder (`paths.mark_of`)."""
    by_key = {occupant.key: occupant for occupant in occupants}
    return [_gpu(device, use, by_key, folder_mark) for device, use in zip(devices, uses, strict=True)]


def _gpu(device: GpuDevice, use: GpuUsage, occupants: Mapping[AttemptKey, Occupant], folder_mark: str) -> GpuReading:
    if use.broken:
        return GpuReading(use, GpuHealth.OFFLINE, use.broken, ())
    if device.virtual:
        return GpuReading(use, GpuHealth.OK, "", ())
    # Skip processes that have just ended.
    found = [(process, name) for process in use.processes if (name := _name_of(process.pid))]
    users = tuple(
        GpuUser(
            process.pid,
            process.memory_mib,
            _user_of(process.pid),
            process.display or name in DISPLAY_PROGRAMS,
            owner(process, occupants, folder_mark),
        )
        for process, name in found
    )
    if any(occupant.lease and device.index in occupant.gpus for occupant in occupants.values()):
        return GpuReading(use, GpuHealth.OK, "", users)
    names = {process.pid: name for process, name in found}
    for user in users:
        why = _why_external(device, user, names[user.pid], occupants)
        if why:
            return GpuReading(use, GpuHealth.EXTERNAL, why, users)
    return GpuReading(use, GpuHealth.OK, "", users)


def _why_external(device: GpuDevice, user: GpuUser, name: str, occupants: Mapping[AttemptKey, Occupant]) -> str:
    """Return a sentence if this process makes the GPU external; empty if it does not."""
    if user.display:
        return ""
    if user.key is None:
        who = f" of user {user.user}" if user.user else ""
        return f"Process {user.pid} ({name}){who} uses it and was not started by gpuyard."
    occupant = occupants.get(user.key)
    # An attempt that is not in the list has just begun or has just ended.
    if occupant is None or device.index in occupant.gpus:
        return ""
    return f"Process {user.pid} of task {user.key.task} uses it but was assigned other GPUs."


def owner(process: GpuProcess, occupants: Mapping[AttemptKey, Occupant], folder_mark: str) -> AttemptKey | None:
    """Return the attempt that a process belongs to, by its mark, control group, session or ancestors."""
    key = process_tag.owner(folder_mark, process.pid) or cgroup.owner_of(process.pid, cgroup.name_of(folder_mark))
    if key is not None:
        return key
    commands = {occupant.pid: occupant.key for occupant in occupants.values() if occupant.pid}
    pid = process.pid
    for _ in range(_MOST_ANCESTORS):
        found = proc.process(pid)
        if found is None:
            return None
        for candidate in (pid, found.session):
            if candidate in commands:
                return commands[candidate]
        pid = found.parent
    return None


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _user_of(pid: int) -> str:
    try:
        uid = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
