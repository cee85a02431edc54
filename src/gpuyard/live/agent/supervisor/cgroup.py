"""A control group for each attempt, if the machine supports it: no process can leave its group.

A starter moves itself into the attempt's group before it becomes the command (`launcher.py`). Such a move is slow in
the kernel, so it is done only on request (`Launch.cgroup`).

    <own group>/gpuyard-<mark>/<task>.<attempt>.<origin>    one for each attempt, removed when it ends

Only version 2 of control groups is used, and no limits are set. If a group cannot be made, the mark and the session
identify the processes of an attempt, as without groups.
"""

import os
from contextlib import suppress
from pathlib import Path

from gpuyard.live.agent.supervisor.messages import AttemptKey


class Cgroups:
    """The groups of one supervisor."""

    def __init__(self, mark: str) -> None:
        self._base = base_of(mark)

    def open(self, key: AttemptKey) -> Path | None:
        """Make a group for an attempt; None if this machine does not allow it."""
        if self._base is None:
            return None
        try:
            folder = self._folder(key)
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder / "cgroup.procs", os.W_OK):
                raise PermissionError(folder)
        except OSError:
            self._base = None  # it will not work later either
            return None
        return folder

    def members(self, key: AttemptKey) -> set[int]:
        """Return all processes of an attempt's group, and of groups that it made below."""
        pids: set[int] = set()
        if self._base is None:
            return pids
        for path in (self._folder(key), *self._below(key)):
            with suppress(OSError):
                pids |= {int(pid) for pid in (path / "cgroup.procs").read_bytes().split()}
        return pids - {0}  # processes of another pid namespace show as 0

    def kill(self, key: AttemptKey) -> None:
        """Kill everything in the group at once, including processes that are just being forked."""
        if self._base is not None:
            with suppress(OSError):
                _write(self._folder(key) / "cgroup.kill", "1")

    def close(self, key: AttemptKey) -> None:
        """Remove the group."""
        if self._base is not None:
            for path in (*reversed(self._below(key)), self._folder(key)):
                with suppress(OSError):
                    path.rmdir()

    def owner(self, pid: int) -> AttemptKey | None:
        """Return the attempt whose group a process is in; None if it is in none."""
        return owner_of(pid, self._base.name) if self._base is not None and self._base.exists() else None

    def leave(self) -> None:
        """Remove the folder of the groups if it is empty."""
        if self._base is not None:
            with suppress(OSError):
                self._base.rmdir()

    def _folder(self, key: AttemptKey) -> Path:
        assert self._base is not None
        return self._base / ".".join(map(str, key))

    def _below(self, key: AttemptKey) -> list[Path]:
        """Return the groups the attempt made itself. These are rare, so the link count is checked before searching."""
        folder = self._folder(key)
        with suppress(OSError):
            if folder.stat().st_nlink > 2:
                return [path for path in sorted(folder.glob("**/*")) if path.is_dir()]
        return []


def owner_of(pid: int, base: str) -> AttemptKey | None:
    """Return the attempt whose group, below a folder of this name, a process is in; None if it is in none."""
    with suppress(OSError):
        own = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").rpartition("0::")[2]
        _, found, rest = own.partition(f"/{base}/")
        numbers = rest.strip().partition("/")[0].split(".")
        if found and len(numbers) == len(AttemptKey._fields) and all(number.isdigit() for number in numbers):
            return AttemptKey(*map(int, numbers))
    return None


def name_of(mark: str) -> str:
    """Return the name of the folder of a supervisor's groups."""
    return f"gpuyard-{mark}"


def base_of(mark: str) -> Path | None:
    """Return the folder for the groups; None if this machine has no usable control groups of version 2."""
    with suppress(OSError):
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()]
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        for mount in (words[1] for words in mounts if words[2] == "cgroup2"):
            for own in (line[3:] for line in lines if line.startswith("0::/")):
                here = Path(mount) / own.lstrip("/")
                base = here / name_of(mark)
                return base if (here / "cgroup.kill").exists() or here == Path(mount) else None
    return None


def _write(path: Path, word: str) -> None:
    with path.open("w", encoding="ascii") as file:
        file.write(word)
