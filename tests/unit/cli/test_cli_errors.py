"""Errors go to standard error: one sentence, or one object with --json."""

import io
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gpuyard import cli
from gpuyard.cli.input.instants import past_instant_in
from gpuyard.live.sdk.tokens import store_token
from tests.unit.live.sdk.fake_server import fake_server, refusal

NOBODY = ("--server", "http://127.0.0.1:1")


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUYARD_WAIT_FOR_SCHEDULER", "0")
    for name in ("GPUYARD_SERVER", "GPUYARD_TOKEN", "GPUYARD_CA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def complaint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str, code: int
) -> dict[str, Any]:
    """The one object that is said instead of a sentence."""
    monkeypatch.setattr(sys, "argv", ["gpuyard", *words])
    assert cli.main() == code
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    told: dict[str, Any] = json.loads(said.err)
    assert list(told) == ["error"]
    assert list(told["error"]) == ["code", "message", "field"]
    error: dict[str, Any] = told["error"]
    return error


def test_refusals_of_the_scheduler_are_shown_unchanged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refusal("UnknownTask", "Task seven does not exist.", "id")
    with fake_server(lambda line: line.say(told, 404)) as server:
        assert (
            complaint(monkeypatch, capsys, "show", "seven", "--server", server.url, "--json", code=1) == told["error"]
        )


def test_an_unreachable_scheduler_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = complaint(monkeypatch, capsys, "ps", *NOBODY, "--json", code=1)

    assert (error["code"], error["field"]) == ("Unreachable", None)
    assert error["message"].startswith("No scheduler answers at http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("submit", "--json", "-g", "two", "true"), "--gpus"),
        (("submit", "--json", "--timeout", "soon", "true"), "--timeout"),
        (("submit", "--json", "--colour", "true"), "--colour"),
        (("explain", "--json"), "task_id"),
        (("show", "--json"), "TASK"),
        (("nodes", "--json", "drain", "n1"), "--json"),
        (("ps", "--json", "-n"), "-n"),
        (("up", "--json", "--data-dir"), "--data-dir"),
        (("server", "--check-config", "--json", "--confg", "x"), "--confg"),
        (("dance", "--json"), None),
    ],
)
def test_wrong_use_names_the_option(
    words: tuple[str, ...], field: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = complaint(monkeypatch, capsys, *words, code=2)

    assert (error["code"], error["field"]) == ("WrongUse", field)


def test_json_after_the_command_belongs_to_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (("run", *NOBODY, "python", "x.py", "--json"), ("submit", *NOBODY, "--", "program", "--json")):
        monkeypatch.setattr(sys, "argv", ["gpuyard", *words])
        assert cli.main() == 1
        assert capsys.readouterr().err.startswith("gpuyard: No scheduler answers")


def test_each_task_that_cannot_be_cancelled_is_its_own_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_server(lambda line: line.say(refusal("UnknownTask", "There is no such task."), 404)) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "cancel", "--server", server.url, "--json", "7", "8"])
        assert cli.main() == 1
    said = capsys.readouterr().err.splitlines()
    assert [json.loads(line)["error"]["code"] for line in said] == ["UnknownTask", "UnknownTask"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("submit", "--nodes", "two", "true"), "'two' is not a whole number; see 'gpuyard submit --help'."),
        (
            ("plan", "generate", "chain", "9", "0"),
            "0 is too small; it must be at least 1; see 'gpuyard plan generate --help'.",
        ),
        (("ps", "-n", "5000"), "5000 is not between 1 and 1000; see 'gpuyard ps --help'."),
        (("quota", "--online", "half"), "'half' is not a number; see 'gpuyard quota --help'."),
        (("explain", "7", "8", "9"), "Too many words: 8 9; see 'gpuyard explain --help'."),
        (("ps", "-n"), "Option '-n' requires an argument; see 'gpuyard ps --help'."),
    ],
)
def test_wrong_use_is_reported_in_plain_words(
    words: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpuyard", *words])
    assert cli.main() == 2
    assert capsys.readouterr().err.endswith(f"{sentence}\n")


@pytest.mark.parametrize(
    ("words", "field", "message", "sentence"),
    [
        ("submit --cpus -1 true", "cpu_count", "cpu_count is -1; it must be more.", "--cpus is -1; it must be more."),
        ("submit --array 0 true", "array.count", "array.count is 0.", "--array is 0."),
        ("submit --after 7 true", "depends_on[0]", 'depends_on[0] is "x".', '--after is "x".'),
        ("submit --on-lost x true", "on_lost", 'on_lost is "x".', '--on-lost is "x".'),
        ("submit --cpus 0 true", None, "Give gpu_count or cpu_count.", "Give --gpus or --cpus."),
        ("lease --fraction 3", "gpu_fraction", "gpu_fraction is 3.", "--fraction is 3."),
        ("quota --online 0.5 --mode x", "mode", 'mode is "x".', '--mode is "x".'),
        ("tenants set x --period 3", None, "gpu_hours_period needs gpu_hours.", "--period needs --gpu-hours."),
        ("tokens create", "username", "username is missing.", "--user is missing."),
        ("users remove a%b", "username", 'username is "a%b".', 'username is "a%b".'),
    ],
)
def test_a_field_of_the_api_is_called_by_its_option(
    words: str,
    field: str | None,
    message: str,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with fake_server(lambda line: line.say(refusal("OutOfRange", message, field), 400)) as server:
        monkeypatch.setenv("GPUYARD_SERVER", server.url)
        monkeypatch.setattr(sys, "argv", ["gpuyard", *words.split()])
        assert cli.main() == 1
    assert capsys.readouterr().err == f"gpuyard: {sentence}\n"


@pytest.mark.parametrize("command", ["ps", "usage", "logs 7"])
@pytest.mark.parametrize("since", ["2h ago", "-5x", "0", "tomorrow"])
def test_since_is_an_instant_of_the_past(
    command: str, since: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpuyard", *command.split(), "--since", since, *NOBODY])
    assert cli.main() == 2
    assert f"'--since': '{since}' is not such a time: it " in capsys.readouterr().err


@pytest.mark.parametrize("command", ["ps", "usage"])
@pytest.mark.parametrize(
    ("since", "seconds"), [("yesterday", None), ("2h", 7200.0), ("2026-01-31T12:00:00Z", None), ("now-10m", 600.0)]
)
def test_since_has_the_same_forms_in_all_commands(
    command: str, since: str, seconds: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now().astimezone()
    with fake_server(lambda line: line.say(refusal("Enough", "Enough.", None), 400)) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", command, "--since", since, "--server", server.url])
        assert cli.main() == 1
    asked = next(asked for asked in server.asked if "since=" in asked.path)
    sent = datetime.fromisoformat(parse_qs(urlsplit(asked.path).query)["since"][0])
    meant = past_instant_in(since, now.replace(tzinfo=None))
    assert abs((sent - meant).total_seconds()) < 60
    if seconds is not None:
        assert abs((now - sent).total_seconds() - seconds) < 60


def test_a_period_of_usage_may_end_in_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_server(lambda line: line.say(refusal("Enough", "Enough.", None), 400)) as server:
        words = ["gpuyard", "usage", "--until", "2999-01-01", "--server", server.url]
        monkeypatch.setattr(sys, "argv", words)
        assert cli.main() == 1
    assert any("until=2999-01-01T00" in asked.path for asked in server.asked)


def test_a_login_prompt_without_a_terminal_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.setattr(sys, "argv", ["gpuyard", "login"])
    assert cli.main() == 2
    assert "there is no terminal to prompt on" in capsys.readouterr().err


def test_up_names_the_option_of_a_wrong_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpuyard", "up", "--data-dir", str(tmp_path / "data"), "--http-address", "foo"])
    assert cli.main() == 2
    assert capsys.readouterr().err.startswith('gpuyard: --http-address is "foo"; ')


def test_up_names_the_keys_of_a_settings_file_as_they_are_written_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("server:\n  htp_address: 127.0.0.1:0\n", encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["gpuyard", "up", "--data-dir", str(tmp_path / "data"), "--config", str(file)])
    assert cli.main() == 2
    told = capsys.readouterr().err
    assert 'did you mean "http_address"?' in told
    assert "--http-address" not in told


def test_login_forget_says_whether_something_was_stored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store_token("http://127.0.0.1:1", "a token")
    monkeypatch.setattr(sys, "argv", ["gpuyard", "login", "--forget", *NOBODY])
    assert (cli.main(), cli.main()) == (0, 0)
    assert capsys.readouterr().out.splitlines() == [
        "What was stored for http://127.0.0.1:1 is deleted.",
        "Nothing was stored for http://127.0.0.1:1.",
    ]


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_an_error_in_a_task_file_names_its_keys_and_no_options(
    more: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "tasks.yaml"
    file.write_text("tasks:\n  - {name: prepare, command: a}\n  - {name: train, command: b, depends_on: prepar}\n")
    nothing = {"tasks": [], "total": 0, "next_cursor": None}
    with fake_server(lambda line: line.say(nothing)) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "submit", "--server", server.url, *more, str(file)])
        assert cli.main() == 2
    assert "line 3: tasks[1].depends_on: there is no task 'prepar'; did you mean 'prepare'?" in capsys.readouterr().err
