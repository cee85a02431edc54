"""A file system that hangs: FUSE without a daemon. Every access waits until `answer`."""

import ctypes
import os
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


class HangingFolder:
    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.path = path
        try:
            self._fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            pytest.skip("this machine has no FUSE")
        options = f"fd={self._fuse},rootmode=40000,user_id=0,group_id=0".encode()
        if _libc.mount(b"dead", bytes(path), b"fuse.dead", 0, options):
            os.close(self._fuse)
            pytest.skip("we may mount nothing here")

    def __enter__(self) -> Self:
        return self

    def answer(self) -> None:
        """Everything that waits gets an error."""
        if self._fuse >= 0:
            os.close(self._fuse)
            self._fuse = -1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.answer()
        _libc.umount2(bytes(self.path), _DETACH)
