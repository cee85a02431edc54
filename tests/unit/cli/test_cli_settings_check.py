"""`server` and `agent` with `--check-config`: valid settings are shown without secrets, invalid ones are one sentence."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuyard import cli
from gpuyard.cli.service.event_loop import protect_settings
from tests.unit.certificates import certificate, needs_openssl

CONFIGS = Path(__file__).parents[3] / "configs"


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gpuyard", *words])
    return cli.main()


@pytest.mark.parametrize(("verb", "file"), [("server", "scheduler.yaml"), ("agent", "agent.yaml")])
def test_the_shipped_settings_files_are_valid(
    verb: str, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, verb, "--config", str(CONFIGS / file), "--check-config") == 0
    assert capsys.readouterr().out == f"{CONFIGS / file}: the settings are valid.\n"


@needs_openssl
@pytest.mark.parametrize(
    ("verb", "file", "told"),
    [
        ("server", "scheduler_pair_first.yaml", {"role": "master", "peer": "sched2:9092"}),
        ("server", "scheduler_pair_second.yaml", {"role": "standby", "peer": "sched1:9092"}),
        ("server", "scheduler_postgres.yaml", {"role": "master", "peer": ""}),
        ("agent", "agent_two_schedulers.yaml", {}),
    ],
)
def test_the_shipped_files_for_two_schedulers_are_valid(
    verb: str,
    file: str,
    told: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    certificate(tmp_path, "scheduler")
    certificate(tmp_path, "ca")
    settings = tmp_path / file
    settings.write_text((CONFIGS / file).read_text().replace("/etc/gpuyard", str(tmp_path)))
    monkeypatch.setenv("GPUYARD_AUTH__JOIN_TOKEN" if verb == "server" else "GPUYARD_AGENT__JOIN_TOKEN", "f" * 64)
    if verb == "server":
        monkeypatch.setenv("GPUYARD_USERS", "[{username: ada, password: a long one, role: admin}]")

    assert call(monkeypatch, verb, "--config", str(settings), "--check-config", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    if told:
        assert (shown["scheduler"]["role"], shown["replication"]["peer_address"]) == (told["role"], told["peer"])
    else:
        assert (shown["scheduler"]["master_address"], shown["scheduler"]["standby_address"]) == (
            "sched1:9090",
            "sched2:9090",
        )


def _effective_lines(file: Path) -> list[str]:
    return [line.split(" #")[0].rstrip() for line in file.read_text().splitlines() if line and not line.startswith("#")]


@pytest.mark.parametrize("file", ["scheduler_pair_first.yaml", "scheduler_postgres.yaml", "agent_two_schedulers.yaml"])
def test_the_guide_shows_the_shipped_files(file: str) -> None:
    guide = (CONFIGS.parent / "docs" / "howto" / "two_schedulers.md").read_text()
    blocks = [block.split("```")[0].splitlines() for block in guide.split("```yaml\n")[1:]]
    assert _effective_lines(CONFIGS / file) in [[line.split(" #")[0].rstrip() for line in block] for block in blocks]


def test_settings_are_shown_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(
        "auth: {enabled: true, join_token: hush}\nusers: [{username: a, password: hush-hush, role: admin}]\n"
    )
    monkeypatch.setenv("GPUYARD_GPU__DETECTION_METHOD", "virtual")  # the agent's, on the same machine

    assert call(monkeypatch, "server", "--config", str(file), "--check-config", "--json") == 0
    text = capsys.readouterr().out
    shown = json.loads(text)
    assert "hush" not in text
    assert shown["users"][0]["username"] == "a"
    assert shown["auth"]["enabled"] is True
    assert shown["scheduler"]["snapshot_interval"] == 30.0


def test_omitted_settings_are_shown_with_their_effective_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(text: str) -> dict[str, Any]:
        file = tmp_path / "scheduler.yaml"
        file.write_text(text)
        assert call(monkeypatch, "server", "--config", str(file), "--check-config", "--json") == 0
        told: dict[str, Any] = json.loads(capsys.readouterr().out)
        return told

    told = shown("system: {port: 8081}\n")
    assert told["server"]["http_address"] == "127.0.0.1:8081"
    assert (told["system"]["host"], told["logging"]["level"], told["logging"]["output"]) == (
        "127.0.0.1",
        "info",
        "stdout",
    )
    assert (told["scheduler"]["schedule_interval"], told["scheduler"]["interval"]) == (5.0, 5.0)
    assert told["quota"]["mode"] == "none"
    assert told["storage"]["snapshot_dir"] == "/var/lib/gpuyard/snapshots"
    nulls = {
        f"{section}.{key}"
        for section, keys in told.items()
        if isinstance(keys, dict)
        for key, value in keys.items()
        if value is None
    }
    assert nulls == {"quota.online_percent", "quota.batch_percent", "monitor.http_port"}

    assert shown("quota: {batch_percent: 0.4}\n")["quota"] == {
        "online_percent": 0.6,
        "batch_percent": 0.4,
        "mode": "strict",
    }


@pytest.mark.parametrize("verb", ["server", "agent"])
def test_an_invalid_file_is_one_sentence_with_the_place(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("logging:\n  levle: info\n")

    assert call(monkeypatch, verb, "--config", str(file), "--check-config") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"gpuyard: {file}, line 2: ")
    assert "level" in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--http-address", "nowhere"),
        ("--grpc-address", "http://x:1"),
        ("--virtual-gpus", "four"),
        ("--virtual-gpus", "1:"),
        ("--virtual-gpus", "1600"),
    ],
)
def test_wrong_options_of_up_are_named(
    option: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "up", "--data-dir", str(tmp_path / "data"), option, value) == 2
    said = capsys.readouterr()
    assert said.err.startswith((f"gpuyard: {option}: ", f"gpuyard: {option} is "))
    assert said.err.count("\n") == 1
    assert not (tmp_path / "data").exists()


def test_a_file_with_a_join_token_is_made_private(tmp_path: Path) -> None:
    for before, after in ((0o644, 0o640), (0o640, 0o640), (0o600, 0o600)):
        path = tmp_path / "agent.yaml"
        path.touch()
        path.chmod(before)
        protect_settings(path)
        assert path.stat().st_mode & 0o777 == after
