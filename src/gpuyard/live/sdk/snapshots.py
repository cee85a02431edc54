"""Snapshots of code: the files of a folder as they are now, so that a later change does not reach a waiting task.

In a repository these are the files that git tracks and new ones that it does not ignore; elsewhere all files except what
`EXCLUDED` names. In both cases without those that `.gpuyardignore` names. Each file is a blob, so the next snapshot sends only what has changed.
"""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import msgspec

from gpuyard.core.domain.errors import WrongInput
from gpuyard.live.sdk.ignore_rules import NAME, IgnoreRules
from gpuyard.live.wire.blobs import MOST_SNAPSHOT_BYTES, MOST_SNAPSHOT_FILES, SnapshotFile, SnapshotManifest

EXCLUDED = (
    ".git", ".hg", ".svn", ".venv", "venv", "__pycache__", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache",
    ".ruff_cache", "node_modules", "wandb", "mlruns", "outputs", "checkpoints", "*.pyc", "*.pt", "*.ckpt", "*.safetensors",
)  # fmt: skip
"""Names that are left out of a folder without git, unless `.gpuyardignore` brings them back."""
LARGE_BYTES = 10 * 1024 * 1024
"""A file above this size probably should not be part of the code."""
NAMED = 5
"""Number of the largest files in a message."""
GIT_SECONDS = 60.0


@dataclass(slots=True)
class TakenSnapshot:
    """A snapshot: its manifest and where the contents are."""

    folder: Path
    manifest: bytes
    contents: dict[str, Path]
    """The files by SHA-256."""
    files: int
    size: int
    commit: str = ""
    dirty: bool = False
    large: list[tuple[str, int]] = field(default_factory=list)
    """Files above `LARGE_BYTES`, largest first."""

    @property
    def id(self) -> str:
        """The SHA-256 of the manifest, which identifies the code."""
        return sha256(self.manifest).hexdigest()

    @property
    def fields(self) -> dict[str, object]:
        """The snapshot as a task request names it."""
        return {"manifest": self.id, "commit": self.commit, "dirty": self.dirty}


def take_snapshot(folder: Path) -> TakenSnapshot:
    """Read a folder. Raise `WrongInput` if it is too large, naming the largest files."""
    folder = folder.absolute()
    if not folder.is_dir():
        raise WrongInput(f"There is no folder {folder} to take a snapshot of.")
    from_git = _git(folder, "ls-files", "-co", "--exclude-standard", "-z")
    names = _every_file(folder) if from_git is None else _named_by_git(folder, from_git)
    found = list(_described(folder, names))
    _check_size(folder, found)
    files, contents = [], {}
    for name, status in found:
        path = folder / name
        if stat.S_ISLNK(status.st_mode):
            files.append(SnapshotFile(name, link=str(path.readlink())))
            continue
        data = path.read_bytes()
        digest = sha256(data).hexdigest()
        contents[digest] = path
        files.append(SnapshotFile(name, digest, len(data), executable=bool(status.st_mode & 0o100)))
    manifest = msgspec.json.encode(SnapshotManifest(sorted(files, key=lambda file: file.path)))
    snapshot = TakenSnapshot(folder, manifest, contents, len(files), sum(file.size for file in files))
    snapshot.large = sorted(
        ((file.path, file.size) for file in files if file.size > LARGE_BYTES), key=lambda one: -one[1]
    )
    if from_git is not None:
        snapshot.commit = (_git(folder, "rev-parse", "--verify", "-q", "HEAD") or b"").decode().strip()
        snapshot.dirty = bool(_git(folder, "status", "--porcelain", "--", "."))
    return snapshot


def _git(folder: Path, *words: str) -> bytes | None:
    """Return the output of git; None if the folder is in no repository, or there is no git."""
    import subprocess

    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            ["git", "-C", str(folder), *words],  # noqa: S607 - the user's git
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_SECONDS,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _named_by_git(folder: Path, output: bytes) -> Iterator[str]:
    """Yield the files of `git ls-files`; a submodule is one entry there, and its files are read from the folder."""
    rules = IgnoreRules(folder)
    for name in dict.fromkeys(os.fsdecode(one).rstrip("/") for one in output.split(b"\0") if one):
        path = folder / name
        is_folder = path.is_dir() and not path.is_symlink()
        if rules.leaves_out(name, is_folder=is_folder):
            continue
        if not is_folder:
            yield name
            continue
        for below in _every_file(path):
            if not rules.leaves_out(f"{name}/{below}", is_folder=False):
                yield f"{name}/{below}"


def _every_file(folder: Path) -> Iterator[str]:
    """Yield the files of a folder without git, and links."""
    rules = IgnoreRules(folder, EXCLUDED)
    for path, folders, names in os.walk(folder):
        above = os.path.relpath(path, folder)
        start = "" if above == "." else f"{above}/"
        links = [name for name in folders if os.path.islink(f"{path}/{name}")]  # noqa: PTH114
        folders[:] = sorted(
            name for name in folders if name not in links and not rules.leaves_out(start + name, is_folder=True)
        )
        for name in sorted([*names, *links]):
            if not rules.leaves_out(start + name, is_folder=False):
                yield start + name


def _described(folder: Path, names: Iterable[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield files and links; a file that git tracks may be deleted, and sockets and pipes are no code."""
    for name in names:
        try:
            status = (folder / name).lstat()
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            try:
                name.encode()
            except UnicodeEncodeError:
                raise WrongInput(
                    f"The name of the file {name!r} is not UTF-8; rename it, or leave it out in {NAME}."
                ) from None
            yield name, status


def _check_size(folder: Path, found: list[tuple[str, os.stat_result]]) -> None:
    total = sum(status.st_size for _, status in found)
    if len(found) <= MOST_SNAPSHOT_FILES and total <= MOST_SNAPSHOT_BYTES:
        return
    largest = sorted(found, key=lambda one: -one[1].st_size)[:NAMED]
    named = ", ".join(f"{name} ({status.st_size / 2**20:,.1f} MiB)" for name, status in largest)
    raise WrongInput(
        f"The snapshot of {folder} has {len(found):,} files and {total / 2**20:,.0f} MiB; the maximum is "
        f"{MOST_SNAPSHOT_FILES:,} files and {MOST_SNAPSHOT_BYTES >> 20} MiB. The largest are {named}. Add what is no code to "
        f".gitignore or {NAME}, or run from a smaller folder."
    )
