"""Names for completions: how they are asked of the scheduler, and to whom a token is sent."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpuyard.cli.shell.live_names import live_names
from gpuyard.live.wire import loopback_peer
from tests.unit.live.sdk.fake_server import Answering, fake_server

WORDS = {"kind": "task", "words": [{"word": "task-7", "hint": "train\x1b[2J"}, {"word": "bad\x1b"}]}


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GPUYARD_TOKEN", "GPUYARD_SERVER_USER", "GPUYARD_CA", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def says(line: Answering) -> None:
    line.say(WORDS)


def asked(monkeypatch: pytest.MonkeyPatch, prefix: str = "t") -> tuple[list[tuple[str, str]], list[Any]]:
    with fake_server(says) as server:
        monkeypatch.setenv("GPUYARD_SERVER", server.url)
        return live_names("task", prefix), server.asked


def test_names_are_asked_with_their_prefix_and_shown_without_control_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names, requests = asked(monkeypatch, "a b&limit=9")
    assert names == [("task-7", "train [2J")]
    assert [one.path for one in requests] == ["/api/v1/completions?kind=task&limit=50&prefix=a%20b%26limit%3D9"]
    assert "Authorization" not in requests[0].headers


def test_a_stored_token_is_sent_to_a_scheduler_of_this_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gpuyard").mkdir()
    with fake_server(says) as server:
        (tmp_path / "gpuyard" / "tokens").write_text(json.dumps({server.url.lower(): "stored"}))
        monkeypatch.setenv("GPUYARD_SERVER", f"{server.url}/,http://other:8080")
        assert live_names("task", "") == [("task-7", "train [2J")]
        monkeypatch.setenv("GPUYARD_TOKEN", "mine")
        live_names("task", "")
    assert [one.headers["Authorization"] for one in server.asked] == ["Bearer stored", "Bearer mine"]


def test_a_token_is_not_sent_to_a_scheduler_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_TOKEN", "mine")
    monkeypatch.setattr(loopback_peer, "owner_of_server", lambda *_: 4242)
    monkeypatch.setattr(loopback_peer, "trusted_uids", lambda: frozenset({0}))
    assert asked(monkeypatch) == ([], [])
    monkeypatch.setenv("GPUYARD_SERVER_USER", "any")
    assert asked(monkeypatch)[0] == [("task-7", "train [2J")]


def test_the_same_question_is_asked_once_in_two_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with fake_server(says) as server:
        monkeypatch.setenv("GPUYARD_SERVER", server.url)
        assert live_names("task", "t") == live_names("task", "t")
        assert len(server.asked) == 1
        live_names("node", "t")
        assert len(server.asked) == 2
    kept = tmp_path / "gpuyard-completion.json"
    assert kept.stat().st_mode & 0o777 == 0o600
