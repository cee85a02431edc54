"""An unknown command: the message suggests the right one."""

import sys

import pytest

from gpuyard import cli
from gpuyard.cli.input.suggestions import MEANT, MEANT_OPTIONS
from gpuyard.cli.shell.command_table import command_table
from tools.manual.commands import commands

PATHS = [path for path, _ in commands()]
OPTIONS = {path: [name for one in known.get("options", []) for name in one["names"]] for path, known in command_table().items()}  # fmt: skip


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


@pytest.mark.parametrize("command", [("sleep", "9"), ("./train.sh",), ("/opt/train", "-x"), ("train.py",)])
def test_a_command_behind_lease_is_told_to_follow_two_dashes(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hint = "; to run a command on the leased GPUs, put -- before it: gpuyard lease -g 1 -- "
    assert (
        said(monkeypatch, capsys, "lease", "--timeout", "5m", *command)
        == f"gpuyard: Unknown command '{command[0]}'{hint}{command[0]} …; see 'gpuyard lease --help'.\n"
    )


def test_a_misspelled_command_of_lease_is_still_suggested(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "; did you mean 'gpuyard lease release'? See " in said(monkeypatch, capsys, "lease", "free", "7")
    assert "; did you mean 'gpuyard lease release'? See " in said(monkeypatch, capsys, "lease", "relase", "7")
    assert "; available commands: list, release; see " in said(monkeypatch, capsys, "lease", "qqqq")


def test_every_hint_leads_to_a_command_and_no_command_is_taken_for_another() -> None:
    for above, meanings in MEANT.items():
        assert above == "gpuyard" or above in PATHS
        known = {path.removeprefix(f"{above} ") for path in PATHS if path.startswith(f"{above} ")}
        for meant, words in meanings.items():
            assert not meant or meant.startswith("--") or meant in known or meant == "login --forget"
            assert not known & set(words.split())


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("submit", "-N", "2", "true"), "No such option: -N; did you mean --nodes? See 'gpuyard submit --help'."),
        (("submit", "-c", "4", "true"), "No such option: -c; did you mean --cpus? See "),
        (("submit", "-G1", "true"), "No such option: -G; did you mean --gpus? See "),
        (("submit", "--gres", "gpu:1", "true"), "No such option: --gres; did you mean --gpus? See "),
        (("submit", "--gres=gpu:1", "true"), "No such option: --gres; did you mean --gpus? See "),
        (("submit", "--gpus-per-node", "1", "true"), "; did you mean --gpus? See "),
        (("submit", "--time", "30", "true"), "No such option: --time; did you mean --timeout? See "),
        (("lease", "--time", "30"), "No such option: --time; did you mean --timeout? See "),
        (("submit", "--cpus-per-task", "4", "true"), "; did you mean --cpus? See "),
        (("submit", "--memory", "4G", "true"), "; did you mean --mem? See "),
        (("submit", "--chdir", "/x", "true"), "; did you mean --work-dir? See "),
        (("submit", "--dependency", "7", "true"), "; did you mean --after? See "),
        (("submit", "--account", "x", "true"), "; did you mean --project? See "),
        (("submit", "--constraint", "x", "true"), "; did you mean --label? See "),
        (("submit", "-J", "x", "true"), "; did you mean --name? See "),
        (("run", "-it", "bash"), "No such option: -i; did you mean --pty? See 'gpuyard run --help'."),
        (("run", "-ti", "bash"), "-t is the tenant; `gpuyard run --pty` gives a task your terminal; see "),
        (("run", "--interactive", "bash"), "; did you mean --pty? See "),
        (("submit", "-it", "bash"), "No such option: -i; `gpuyard run --pty` gives a task your terminal; see "),
        (("run", "-d", "true"), "No such option: -d; `gpuyard submit` does not wait for the task, and has no option for it; see "),
        (("submit", "--detach", "true"), "--detach; `gpuyard submit` does not wait for the task, and has no option"),
        (("submit", "--partition", "a100", "true"), "--partition; there are no partitions: -g A100:2 asks for GPUs of a model, --label K=V for nodes; see "),
        (("run", "--rm", "true"), "No such option: --rm; a task leaves nothing that has to be removed, so omit it; see "),
    ],
)  # fmt: skip
def test_an_option_of_another_program_is_answered_with_ours(
    words: tuple[str, ...], hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hint in said(monkeypatch, capsys, *words)


def test_an_option_of_another_program_is_not_suggested_to_a_command_without_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(monkeypatch, capsys, "ps", "-N") == "gpuyard: No such option: -N; see 'gpuyard ps --help'.\n"
    told = "gpuyard: No such option: --rm (Possible options: --name, --sort, --user); see 'gpuyard ps --help'.\n"
    assert said(monkeypatch, capsys, "ps", "--rm") == told
    assert "--timeout); see " in said(monkeypatch, capsys, "submit", "--timeuot", "9", "true")


def test_no_option_of_ours_is_taken_for_one_of_another_program() -> None:
    run = set(OPTIONS["gpuyard run"])
    assert set(MEANT_OPTIONS) <= run
    others = {word for words in MEANT_OPTIONS.values() for word in words.split()}
    assert not others & (run | set(OPTIONS["gpuyard submit"]))
