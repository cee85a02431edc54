"""A small disk, for tests with a full one."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Until not a byte is left."""
        with self._ballast.open("ab", buffering=0) as ballast:
            for piece in (4096, 1):
                try:
                    while ballast.write(b"x" * piece):
                        pass
                except OSError:
                    continue

    def make_room(self) -> None:
        self._ballast.unlink(missing_ok=True)


@contextmanager
def mounted(folder: Path) -> Iterator[SmallDisk]:
    """A file system of 2 MB; the test is skipped where we may not mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
