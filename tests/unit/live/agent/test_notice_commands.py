"""Commands that tell of a task: as its user, and bounded in time, output and number."""

import asyncio
import ctypes
import os
import signal
from pathlib import Path

import pytest

from gpuyard.live.agent import notice_commands
from gpuyard.live.agent.notice_commands import NoticeCommand, NoticeCommands
from tests.acceptance.waiting import until

ENV = {"PATH": os.defpath}
HANDLERS: list[object] = []
"""Kept: the C library calls them at each fork of this process."""


def result(shell: str, folder: Path, *, seconds: float = 30.0, uid: int | None = None) -> str:
    command = NoticeCommand(shell, ENV, str(folder), seconds, uid)

    async def story() -> str:
        async with asyncio.timeout(60):
            return await NoticeCommands().run(command)

    return asyncio.run(story())


def test_a_command_runs_in_the_folder_of_the_task_with_nothing_but_its_variables(tmp_path: Path) -> None:
    assert result("pwd > here; env > variables; readlink /proc/self/fd/0 > input", tmp_path) == ""
    assert (tmp_path / "here").read_text() == f"{tmp_path}\n"
    assert {line.partition("=")[0] for line in (tmp_path / "variables").read_text().splitlines()} <= {
        "PATH", "PWD", "OLDPWD", "SHLVL", "_",
    }  # fmt: skip
    assert (tmp_path / "input").read_text() == "/dev/null\n"


def test_a_missing_folder_does_not_keep_the_command_from_running(tmp_path: Path) -> None:
    assert result(f"pwd > {tmp_path}/here", tmp_path / "gone") == ""
    assert (tmp_path / "here").read_text() == "/\n"


@pytest.mark.parametrize(
    ("shell", "said"),
    [
        ("echo some words; echo and more >&2; exit 4", "The command ended with exit code 4: some words and more."),
        ("exit 1", "The command ended with exit code 1."),
        ("nonsense-command", "not found"),
    ],
)
def test_a_failure_is_told_with_the_end_of_the_output(tmp_path: Path, shell: str, said: str) -> None:
    assert said in result(shell, tmp_path)


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice_commands, "KILL_SECONDS", 0.2)
    assert result("trap '' TERM; while :; do sleep 0.05; done", tmp_path, seconds=0.3) == (
        "The command was ended after 0.3 s."
    )


def test_a_command_that_writes_without_end_is_ended(tmp_path: Path) -> None:
    assert result("yes", tmp_path) == "The command wrote more than 1 MiB, so it was ended."


def test_what_a_command_leaves_behind_is_ended_and_not_waited_for(tmp_path: Path) -> None:
    assert result("sleep 300 & echo $! > pid", tmp_path) == ""
    pid = int((tmp_path / "pid").read_text())
    until(lambda: is_over(pid), what="the process that was left behind has ended")


def is_over(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("seconds", [30.0, 0.7], ids=["after-its-end", "after-its-time"])
def test_a_process_that_has_left_its_session_and_its_variables_does_not_outlive_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(notice_commands, "KILL_SECONDS", 0.5)
    wait = "while [ ! -s pid ]; do sleep 0.02; done" + ("; sleep 60" if seconds < 1 else "")
    shell = f"(setsid env -i sh -c 'echo $$ > part; mv part pid; sleep 300; :' &) ; {wait}"
    assert result(shell, tmp_path, seconds=seconds) == ("" if seconds > 1 else "The command was ended after 0.7 s.")
    pid = int((tmp_path / "pid").read_text())
    try:
        assert is_over(pid)
    finally:
        if not is_over(pid):
            os.killpg(pid, signal.SIGKILL)


def test_no_fork_handler_of_the_agent_runs(tmp_path: Path) -> None:
    """Handlers of libraries with threads, such as those of gRPC, can crash the child before it has executed anything."""
    forks = ctypes.CDLL(None)
    handler = ctypes.CFUNCTYPE(None)(lambda: ran.append(1))
    ran: list[int] = []
    assert forks.__register_atfork(handler, None, None, None) == 0
    HANDLERS.append(handler)
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert ran == [1], "the handler sees a fork"
    assert result("touch it", tmp_path, uid=os.geteuid()) == ""
    assert (tmp_path / "it").exists()
    assert ran == [1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_variables_of_a_user_change_nothing_in_the_process_that_is_root(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    env = ENV | {"LD_PRELOAD": "/nothing.so", "PYTHONPATH": str(tmp_path), "PYTHONVERBOSE": "1"}
    command = NoticeCommand("tr '\\0' '\\n' < /proc/$PPID/environ > of_parent; true", env, str(tmp_path), 30.0, 0)
    assert asyncio.run(NoticeCommands().run(command)) == ""
    assert "LD_PRELOAD=/nothing.so" not in (tmp_path / "of_parent").read_text().splitlines()


def test_a_command_that_closes_its_output_is_waited_for(tmp_path: Path) -> None:
    assert result("exec >&- 2>&-; sleep 0.4; exit 5", tmp_path) == "The command ended with exit code 5."


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_command_runs_as_the_user_of_the_task(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert result("id -u; id -G; exit 1", tmp_path, uid=12345).endswith("exit code 1: 12345 12345.")


def test_an_agent_that_is_not_root_runs_no_command_as_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    assert result("touch ran", tmp_path, uid=12345) == (
        "The agent of this node is not root, so it cannot run commands as uid 12345."
    )
    assert not (tmp_path / "ran").exists()
