"""Tries a division of a script: its parts must leave the files that the script itself leaves, in two orders.

The script and its parts run in copies of its folder, with small data that the user chooses by arguments and variables.
Parts run once in the order of the code and once late ones first, with the iterations of a loop backwards.
"""

import math
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Literal

from msgspec import Struct

from gpuyard.learn.analysis.graph import SubmitRequest, TaskGraph

MOST_FILES, MOST_BYTES = 10_000, 2**30
"""A larger folder is not copied."""
TOLERANCE = 1e-6
"""Relative difference up to which two numbers are the same result."""
NUMBER = re.compile(rb"[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?")
NOT_COPIED = shutil.ignore_patterns("__pycache__", ".git", ".venv")


class Trial(Struct, frozen=True, kw_only=True):
    """Whether the parts of a script did in every order what the script does."""

    outcome: Literal["equal", "different", "not possible", "not tried", "not divided"]
    says: str


NOT_TRIED = Trial(
    outcome="not tried",
    says="The division was not tried: --trial-args or --trial-env try it with small data, --trial as it is.",
)


def try_division(
    graph: TaskGraph, small: TaskGraph, variables: Mapping[str, str] = MappingProxyType({}), seconds: float = 300
) -> Trial:
    """Run a script and its parts with small data; `small` is its analysis with those arguments."""
    assert graph.whole is not None
    assert small.whole is not None
    source = Path(graph.whole.work_dir)
    obstacle = _obstacle(graph, small, source)
    if obstacle is not None:
        return _not_possible(obstacle)
    deadline = time.monotonic() + seconds
    with TemporaryDirectory(prefix="gpuyard-trial-") as scratch:
        folders = [Path(scratch, name) for name in ("script", "parts", "backwards")]
        try:
            for folder in folders:
                shutil.copytree(source, folder, ignore=NOT_COPIED, ignore_dangling_symlinks=True)
        except (OSError, shutil.Error):
            return _not_possible("its folder cannot be copied")
        before = _times(folders[0])
        failed = _run(small.whole, folders[0], variables, deadline)
        expected = _files(folders[0])
        if failed is not None or _times(folders[0]) == before:
            return _not_possible(f"the script {failed or 'wrote no file that could be compared'}")
        for folder, requests in zip(folders[1:], (list(small.requests), _late_first(small)), strict=True):
            for request, index in _processes(requests, backwards=folder is folders[2]):
                failed = _run(request, folder, {**variables, **index}, deadline)
                if failed is not None:
                    return _wrong(f"the part {request.name} {failed}")
            found = _files(folder)
            for path in sorted(expected.keys() | found.keys()):
                if not _are_equal(path, expected.get(path), found.get(path)):
                    return _wrong(f"its parts left another {path} than the script")
    return Trial(outcome="equal", says="The division was tried: its parts left the files of the script in both orders.")


def _not_possible(why: str) -> Trial:
    return Trial(outcome="not possible", says=f"The division could not be tried: {why}.")


def _wrong(why: str) -> Trial:
    return Trial(outcome="different", says=f"The division failed its trial: {why}.")


def _obstacle(graph: TaskGraph, small: TaskGraph, source: Path) -> str | None:
    """Return why a trial is not possible, or None."""
    if [_shape(request) for request in small.requests] != [_shape(request) for request in graph.requests]:
        return "with the arguments of the trial the script is divided differently"
    outside = [path for task in small.tasks for path in task.writes if re.match(r"[/~*]|\.\.", path)]
    if outside:
        return f"the script may write outside of its folder ({outside[0]})"
    sizes = [path.stat().st_size for path in source.rglob("*") if path.is_file()]
    if len(sizes) > MOST_FILES or sum(sizes) > MOST_BYTES:
        return f"its folder has more than {MOST_FILES:,} files or 1 GiB"
    return None


def _shape(request: SubmitRequest) -> tuple[object, ...]:
    command = request.command
    return (
        request.name,
        request.after,
        request.array is None,
        command[: command.index("--") if "--" in command else None],
    )


def _late_first(graph: TaskGraph) -> list[SubmitRequest]:
    """Return the requests in the order that is farthest from that of the code and respects their dependencies."""
    waiting = {request.name: request for request in graph.requests}
    ordered = []
    while waiting:
        ready = [request for request in waiting.values() if not set(request.after) & waiting.keys()]
        ordered.append(waiting.pop(ready[-1].name))
    return ordered


def _processes(requests: Sequence[SubmitRequest], *, backwards: bool) -> Iterator[tuple[SubmitRequest, dict[str, str]]]:
    for request in requests:
        indices = range(request.array or 0)
        for index in reversed(indices) if backwards else indices:
            yield request, {"GPUYARD_ARRAY_INDEX": str(index)}
        if request.array is None:
            yield request, {}


def _run(request: SubmitRequest, folder: Path, variables: Mapping[str, str], deadline: float) -> str | None:
    """Run one process; return how it failed, or None."""
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables}
    try:
        process = subprocess.Popen(  # noqa: S603 - this is what it is for
            request.command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return f"cannot be started ({error.strerror}: {request.command[0]})"
    with process:
        try:
            _, said = process.communicate(timeout=max(deadline - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return "took longer than the trial may take"
    lines = said.decode(errors="replace").strip().splitlines()
    last = f" ({lines[-1]})" if lines else ""
    return f"ended with exit status {process.returncode}{last}" if process.returncode else None


def _times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _are_equal(path: str, one: bytes | None, other: bytes | None) -> bool:
    """Return whether two files have the same content, or the same numbers up to rounding."""
    if one == other or one is None or other is None:
        return one == other
    if path.endswith((".json", ".csv", ".tsv", ".txt")):
        pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=False)
        return NUMBER.sub(b"0", one) == NUMBER.sub(b"0", other) and all(
            math.isclose(float(left), float(right), rel_tol=TOLERANCE) for left, right in pairs
        )
    return False
