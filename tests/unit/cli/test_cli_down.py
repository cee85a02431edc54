"""`gpuyard down` in a folder where no cluster runs."""

from pathlib import Path

import pytest

from gpuyard.cli.down import down
from tests.unit.live.sdk.fake_server import Answering, fake_server


def behave(line: Answering) -> None:
    line.say({"status": "ok", "version": "1", "message": ""})


def test_nothing_is_claimed_about_tasks_of_a_cluster_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_server(behave) as server:
        monkeypatch.setenv("GPUYARD_SERVER", server.url)
        down(tmp_path, stop_tasks=False, as_json=False)
        first = capsys.readouterr().out
    down(tmp_path, stop_tasks=True, as_json=False)
    second = capsys.readouterr().out
    lines = [
        f"No cluster is running in {tmp_path}.",
        "A cluster that was started with --data-dir needs the same --data-dir here.",
    ]
    assert second.splitlines() == lines
    assert first.splitlines() == [lines[0], f"{lines[1]} A scheduler answers at {server.url}."]
