"""An unknown command: the message suggests the right one."""

import sys

import pytest

from gpuyard import cli
from gpuyard.cli.input.suggestions import MEANT
from tools.manual.commands import commands

PATHS = [path for path, _ in commands()]


def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["gpuyard", *words])
    assert cli.main() == 2
    told = capsys.readouterr()
    assert told.out == ""
    return told.err


@pytest.mark.parametrize("path", PATHS)
def test_a_typo_suggests_the_nearest_command(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    *group, command = path.split()[1:]
    slip = f"{command}{command[-1]}"

    told = said(monkeypatch, capsys, *group, slip, "x")
    above = " ".join(["gpuyard", *group])
    assert told == f"gpuyard: Unknown command '{slip}'; did you mean '{path}'? See '{above} --help'.\n"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("nodes", "undrain", "n1"), "gpuyard nodes uncordon"),
        (("nodes", "resume", "n1"), "gpuyard nodes uncordon"),
        (("nodes", "list"), "gpuyard nodes"),
        (("tokens", "rm", "3"), "gpuyard tokens revoke"),
        (("lease", "return", "3"), "gpuyard lease release"),
        (("squeue",), "gpuyard ps"),
        (("kill", "3"), "gpuyard cancel"),
        (("qsub", "x.sh"), "gpuyard submit"),
        (("drain", "n1"), "gpuyard nodes drain"),
    ],
)
def test_a_word_of_another_tool_suggests_the_equivalent_command(
    words: tuple[str, ...], meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"; did you mean '{meant}'? See '" in said(monkeypatch, capsys, *words)


def test_an_unrelated_word_lists_the_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = said(monkeypatch, capsys, "nodes", "whatever")
    assert (
        told
        == "gpuyard: Unknown command 'whatever'; available commands: cordon, drain, remove, stop-unknown-attempt, uncordon, unknown-attempts; see 'gpuyard nodes --help'.\n"
    )
    assert said(monkeypatch, capsys, "whatever") == "gpuyard: Unknown command 'whatever'; see 'gpuyard --help'.\n"


def test_every_hint_leads_to_a_command_and_no_command_is_taken_for_another() -> None:
    for above, meanings in MEANT.items():
        assert above == "gpuyard" or above in PATHS
        known = {path.removeprefix(f"{above} ") for path in PATHS if path.startswith(f"{above} ")}
        for meant, words in meanings.items():
            assert not meant or meant.startswith("--") or meant in known or meant == "login --forget"
            assert not known & set(words.split())
