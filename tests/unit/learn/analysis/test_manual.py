"""The examples of the manual pages are what the commands print today."""

import re
import sys
from pathlib import Path

import pytest

from gpuyard import cli
from gpuyard.learn.analysis import analyze
from gpuyard.learn.analysis.mermaid import mermaid

ROOT = Path(__file__).parents[4]
MANUAL = ROOT / "docs" / "manual"
PAGE = (MANUAL / "analysis.md").read_text(encoding="utf-8")
SHOWN = re.compile(r"^```\n\$ gpuyard ((?:analyze|partition) [^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "shown"), SHOWN.findall(PAGE + (MANUAL / "partition.md").read_text(encoding="utf-8"))
)
def test_an_example_of_the_page_is_the_output_of_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, shown: str
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.argv", ["gpuyard", *words.split()])
    assert cli.main() == 0
    printed = capsys.readouterr().out.replace(sys.executable, "/home/alice/.venv/bin/python")
    assert printed.endswith(shown.removeprefix("…\n"))


def test_the_diagram_of_the_page_is_the_output_of_the_command() -> None:
    assert f"```mermaid\n{mermaid(analyze(ROOT / 'examples/imagenet/train.py'))}```" in PAGE
