"""Programs of Debian packages that tests need, unpacked below build/debian: nothing is installed and no service starts.

    .venv/bin/python -m tools.debian_tools      unpack all of them; `make test` does it

A program that is on the PATH already is used as it is.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "build" / "debian"
PROGRAMS = {
    "prometheus": ("prometheus", ("prometheus",)),
    "promtool": ("prometheus", ("promtool",)),
    "alertmanager": ("prometheus-alertmanager", ("prometheus-alertmanager", "alertmanager")),
    "amtool": ("prometheus-alertmanager", ("amtool",)),
    "zsh": ("zsh", ("zsh",)),
    "fish": ("fish", ("fish",)),
}
"""The package of each program, and the names that the program may have."""
NEEDED = {"zsh": ("zsh-common",), "fish": ("fish-common", "libpcre2-32-0")}
"""Packages that a package needs and that a machine may not have."""


class NoPackages(Exception):
    """This machine has no apt-get."""


class NotDownloaded(Exception):
    """A package could not be downloaded: the network is away, or the lists of packages are old."""


def program(name: str) -> str:
    """Return the path of a program; unpack its package if needed. Raise `NoPackages` where that is impossible."""
    package, names = PROGRAMS[name]
    found = _found(names)
    if found is None:
        for each in (package, *NEEDED.get(package, ())):
            unpack(each)
        found = _found(names)
    if found is None:
        raise FileNotFoundError(f"The package {package} has no program {name}.")
    return found


def command(name: str) -> list[str]:
    """Return the words that start a program. An unpacked one finds its files in a mount namespace of its own."""
    path = program(name)
    if not Path(path).is_relative_to(FOLDER):
        return [path]
    apart = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    return [*apart, "sh", "-c", 'mount --bind "$0" /usr/share && exec "$@"', str(FOLDER / "usr" / "share"), path]


def _found(names: tuple[str, ...]) -> str | None:
    path = os.pathsep.join((str(FOLDER / "usr" / "bin"), str(FOLDER / "bin"), os.environ.get("PATH", os.defpath)))
    return next((found for each in names if (found := shutil.which(each, path=path))), None)


def unpack(package: str) -> None:
    """Download a package and unpack it below `FOLDER`; one process at a time."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise NoPackages("Programs of Debian packages are needed; this machine has no apt-get.")
    FOLDER.mkdir(parents=True, exist_ok=True)
    done = FOLDER / f".{package}"
    with (FOLDER / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            return
        if _download(package) != 0:
            update = ["apt-get", "update", "-qq"]
            if os.geteuid() != 0 and shutil.which("sudo"):
                update = ["sudo", "-n", *update]
            subprocess.run(update, check=False, capture_output=True, timeout=300)
            if _download(package) != 0:
                raise NotDownloaded(
                    f"Cannot download the Debian package {package}; run `sudo apt-get update` and try again."
                )
        newest = max(FOLDER.glob(f"{package}_*.deb"), key=lambda path: path.stat().st_mtime)
        subprocess.run(["dpkg", "-x", str(newest), str(FOLDER)], check=True, timeout=120)
        newest.unlink()
        done.touch()


def _download(package: str) -> int:
    words = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", package]
    return subprocess.run(words, cwd=FOLDER, check=False, capture_output=True, timeout=300).returncode


if __name__ == "__main__":
    try:
        for name, _ in PROGRAMS.values():
            for each in (name, *NEEDED.get(name, ())):
                unpack(each)
    except (NoPackages, NotDownloaded) as problem:
        sys.exit(str(problem))
