"""The file of attempts: what `write` returns from is on disk, whole."""

import os
from pathlib import Path

import pytest

from gpuyard.live.agent.supervisor.attempt_store import AttemptStore
from gpuyard.live.agent.supervisor.messages import AttemptKey


def test_a_line_that_the_disk_takes_in_small_pieces_is_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = AttemptStore(tmp_path / "attempts")
    store.begin({})
    store.forget(tuple(AttemptKey(task, 1) for task in range(20)))
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:7]))
    store.write()
    monkeypatch.undo()

    assert (tmp_path / "attempts").read_bytes().endswith(b"]}\n")
    assert not store.has_pending
