"""What all commands have in common: exit codes and messages."""

import json
import subprocess
import sys

import pytest
import typer

from gpuyard import cli
from gpuyard.cli.input.options import JsonOption
from gpuyard.core.domain.errors import JournalLocked
from tools.manual.commands import commands


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gpuyard", *words])
    return cli.main()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """The command line with a command that fails as configured."""
    app = typer.Typer(rich_markup_mode=None)
    monkeypatch.setattr(cli, "app", app)

    @app.callback()
    def nothing() -> None:
        pass

    @app.command()
    def fail(how: str, as_json: JsonOption = False) -> None:  # noqa: ARG001 - main asks whether it was said
        raise {"locked": JournalLocked(), "stop": KeyboardInterrupt(), "disk": OSError(28, "No space left", "/data")}[
            how
        ]

    return app


@pytest.mark.usefixtures("failing")
def test_an_error_is_one_sentence_and_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "fail", "locked") == 1
    assert capsys.readouterr().err == "gpuyard: Another process writes this journal. Stop it first.\n"


@pytest.mark.usefixtures("failing")
def test_a_system_error_is_one_sentence_and_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "fail", "disk") == 1
    assert capsys.readouterr().err == "gpuyard: /data: No space left.\n"


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        ("locked", "JournalLocked", "Another process writes this journal. Stop it first."),
        ("disk", "OSError", "/data: No space left."),
    ],
)
def test_with_json_an_error_is_an_object_with_the_same_code(
    how: str, code: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "fail", "--json", how) == 1
    assert json.loads(capsys.readouterr().err) == {"error": {"code": code, "message": message, "field": None}}


@pytest.mark.usefixtures("failing")
def test_an_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "fail", "stop") == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "generate", "chain", "0", "1"),
        ("plan", "generate", "chain", "many", "1"),
        ("simulate", "--colour"),
        ("predict",),
        ("dance",),
    ],
)
def test_wrong_use_is_one_sentence_and_code_2(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("gpuyard: ")
    assert said.err.endswith(" --help'.\n")
    assert said.err.count("\n") == 1


def test_without_a_command_the_help_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch) == 2
    assert "simulate" in capsys.readouterr().out


NUMBERS = [
    (path, parameter.opts[0])
    for path, command in commands()
    for parameter in command.params
    if "float" in parameter.type.name.lower()
]
"""Options that are numbers and need not be whole."""


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(("path", "option"), NUMBERS)
def test_invalid_numbers_are_refused_before_anything_is_done(
    path: str, option: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *path.split()[1:], f"{option}={value}") == 2
    said = capsys.readouterr()
    assert (said.out, len(said.err.splitlines())) == ("", 1)
    assert option in said.err
    assert f"{value} is " in said.err


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_the_help_lists_commands_with_whole_sentences(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert call(monkeypatch, option) == 0
    listed = capsys.readouterr().out.partition("Commands:")[2]
    assert all(f"\n  {name} " in listed for name in cli.COMMANDS)
    assert "..." not in listed
    assert "live; press ? there for the keys" in " ".join(listed.split())
    assert call(monkeypatch, "nodes", option) == 0
    assert "drain " in capsys.readouterr().out.partition("Commands:")[2]


def test_no_command_loads_textual_but_top() -> None:
    look = "import sys; from gpuyard.cli import app; print(*(name for name in sys.modules if name.split('.')[0] in ('textual', 'rich')))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []
