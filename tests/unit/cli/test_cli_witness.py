"""The options of `gpuyard witness`; tests/unit/live/voting has tests of the process."""

import sys
from pathlib import Path

import pytest

from gpuyard import cli
from gpuyard.cli import witness as command
from gpuyard.live.voting import witness
from gpuyard.live.voting.witness import WitnessOptions


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[WitnessOptions]:
    """What witnesses were started with; none of them runs."""
    options: list[WitnessOptions] = []

    async def run(given: WitnessOptions) -> None:
        options.append(given)

    monkeypatch.setattr(witness, "run", run)
    return options


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gpuyard", "witness", *words])
    return cli.main()


def test_schedulers_are_repeated_or_separated_by_commas_and_have_a_default_port(
    started: list[WitnessOptions], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUYARD_JOIN_TOKEN", "secret")
    words = ("--scheduler", "a,b:19092", "--scheduler", "[::1]", "--scheduler", "[::1]:7", "--data-dir", str(tmp_path))
    assert call(monkeypatch, *words) == cli.DONE
    assert started[0].schedulers == ("a:9092", "b:19092", "[::1]:9092", "[::1]:7")
    assert started[0].folder == tmp_path
    assert started[0].join_token() == "secret"
    assert started[0].tls is None


def test_a_token_in_a_file_is_read_again_when_it_is_needed(
    started: list[WitnessOptions], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "join_token"
    file.write_text("first\n")
    assert call(monkeypatch, "--scheduler", "a", "--join-token-file", str(file)) == cli.DONE
    file.write_text("second\n")
    assert started[0].join_token() == "second"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "address of each scheduler"),
        (("--scheduler", "a:b:c", "--join-token", "x"), "--scheduler a:b:c is not an address"),
        (("--scheduler", "a"), "needs the join token"),
        (("--scheduler", "a", "--join-token", "x", "--join-token-file", "y"), "exclude each other"),
        (("--scheduler", "a", "--join-token-file", "/dev/null"), "/dev/null is empty"),
        (("--scheduler", "a", "--join-token", "x", "--tls-cert", "c"), "--tls-cert and --tls-key need each other"),
        (("--scheduler", "a", "--join-token", "x", "--tls-cert", "c", "--tls-key", "k"), "also needs --tls-ca"),
        (("--scheduler", "a", "--join-token", "x", "--tls-ca", "/none.pem"), "--tls-ca: /none.pem does not exist"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(
    words: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GPUYARD_JOIN_TOKEN", raising=False)
    assert call(monkeypatch, *words) == cli.WRONG_USE
    assert sentence in capsys.readouterr().err


def test_the_default_folder_is_not_the_data_folder_of_a_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert command._default_folder() == Path("/data/gpuyard-witness")
