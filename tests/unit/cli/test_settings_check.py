"""`--check-config --json` shows the settings and no secret."""

import json
from pathlib import Path

import pytest

from gpuyard.cli.service.settings_check import show
from gpuyard.live.control_plane.settings import load_server_settings


def test_secrets_of_receivers_are_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "scheduler.yaml"
    path.write_text(
        """
alerts:
  webhooks: [{name: chat, url: "https://hooks.example/T0/s3cret?key=s3cret", token: s3cret}]
  mail: [{name: ops, host: smtp.example, from: a@b.example, to: [c@d.example], username: yard, password: s3cret}]
"""
    )
    show(load_server_settings(path, {}), path, as_json=True)
    text = capsys.readouterr().out
    assert "s3cret" not in text
    alerts = json.loads(text)["alerts"]
    assert alerts["webhooks"][0]["url"] == "https://hooks.example/…"
    assert alerts["mail"][0]["username"] == "yard"
