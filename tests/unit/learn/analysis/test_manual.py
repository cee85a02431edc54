"""The examples of the page are what the verb prints today, and its pictures are what it draws."""

import re
import sys
from pathlib import Path

import pytest

from gpuyard import cli
from gpuyard.learn.analysis.drawing import svg
from gpuyard.learn.analysis.reading import analyze

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "manual" / "analysis.md"
SHOWN = re.compile(r"^```\n\$ gpuyard (analyze [^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("words", "shown"), SHOWN.findall(PAGE.read_text(encoding="utf-8")))
def test_an_example_of_the_page_is_what_the_verb_prints(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, shown: str
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.argv", ["gpuyard", *words.split()])
    assert cli.main() == 0
    printed = capsys.readouterr().out.replace(sys.executable, "python")
    assert printed.endswith(shown.removeprefix("…\n"))


@pytest.mark.parametrize(("source", "picture"), [("imagenet/train.py", "imagenet"), ("digits", "digits")])
def test_a_picture_of_the_page_is_what_the_verb_draws(
    monkeypatch: pytest.MonkeyPatch, source: str, picture: str
) -> None:
    monkeypatch.chdir(ROOT)
    drawn = svg(analyze(Path("examples") / source)[0])
    assert drawn == PAGE.with_name(f"analysis_{picture}.svg").read_text(encoding="utf-8")
