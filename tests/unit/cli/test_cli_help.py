"""`gpuyard help`, the manual pages, and the table that they are made from."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard import cli
from gpuyard.cli.shell.command_table import command_table
from gpuyard.cli.shell.man_pages import pages, write_pages
from tools.manual.command_table import PLACE
from tools.manual.command_table import command_table as table_of_the_code

ROOT = Path(__file__).parents[3]


def test_the_table_matches_the_commands() -> None:
    written = (ROOT / PLACE).read_text(encoding="utf-8")
    assert written == table_of_the_code(), f"{PLACE} is not what the code says now; run `make docs`."


def test_every_command_is_in_a_page_and_every_page_is_valid_roff(tmp_path: Path) -> None:
    made = pages(command_table(), "1.2")
    assert {f"gpuyard-{name}.1" for name in cli.COMMANDS} | {"gpuyard.1"} == set(made)
    assert "--preemption" in made["gpuyard-submit.1"].replace("\\-", "-")
    assert "gpuyard nodes drain" in made["gpuyard-nodes.1"].replace("\\-", "-")
    assert {Path(path).name for path in write_pages(str(tmp_path), "1.2")} == set(made)
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("this machine has no groff")
    paths = [tmp_path / name for name in ("gpuyard.1", "gpuyard-submit.1", "gpuyard-nodes.1")]
    done = subprocess.run([groff, "-man", "-Tascii", "-ww", "-z", *paths], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_help_prints_the_page_of_a_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "help", *words])
        assert cli.main() == 0
        return capsys.readouterr().out

    assert "--force\n        Also move suspended tasks away" in told("nodes", "drain")
    assert "gpuyard cancel\n        Cancel tasks" in told()
    assert json.loads(told("--json", "cancel"))["command"] == "gpuyard cancel"
    monkeypatch.setattr(sys, "argv", ["gpuyard", "help", "cansel"])
    assert cli.main() == 2
    assert "did you mean 'gpuyard help cancel'?" in capsys.readouterr().err
