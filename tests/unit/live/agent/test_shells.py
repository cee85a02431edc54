"""Shells beside attempts, started by a real supervisor: once, not too many, as the user of the task."""

import os
import signal
from pathlib import Path

import pytest

from gpuyard.live.agent.supervisor import messages, paths, proc, process_tag, shells
from gpuyard.live.agent.supervisor.attempt_record import Attempt
from gpuyard.live.agent.supervisor.messages import AttemptKey, LaunchConsole, OpenShell, ShellOpened
from tests.unit.live.agent.supervised import Supervised, is_alive, until

pytestmark = pytest.mark.slow

STAYS = "exec sleep 600"


def shell(supervised: Supervised, key: AttemptKey, session: str, line: str, **more: object) -> OpenShell:
    folder = supervised.folder / "shells"
    console = LaunchConsole(
        str(folder / f"{session}.sock"), linger_seconds=900.0, record=str(folder / f"{session}.json")
    )
    return OpenShell(key, session, console, ("sh", "-c", line), **more)  # type: ignore[arg-type]


def holders(supervised: Supervised, key: AttemptKey) -> list[int]:
    """The processes that hold a shell of an attempt."""
    mark, command = paths.mark_of(supervised.folder), supervised.holds()[key].pid
    return [
        pid
        for pid in proc.all_processes()
        if pid != command and is_alive(pid) and shells._is_holder(pid) and process_tag.owner(mark, pid) == key
    ]


def test_a_shell_that_is_asked_for_again_runs_once_whoever_asks(supervised: Supervised, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    key = supervised.runs(STAYS)
    asked = shell(supervised, key, "first001", f"echo ran >> {runs}; {STAYS}")
    supervised.send(asked, asked)
    assert [supervised.hears(ShellOpened, key).message for _ in range(2)] == ["", ""]
    until(lambda: runs.exists() and len(holders(supervised, key)) == 1)
    supervised.kill()
    supervised.begin()
    supervised.send(asked)
    assert supervised.hears(ShellOpened, key).message == ""
    until(lambda: len(holders(supervised, key)) == 1)
    other = shell(supervised, key, "second02", f"echo other >> {runs}; {STAYS}")
    supervised.send(other)
    until(lambda: "other" in runs.read_text())
    assert runs.read_text() == "ran\nother\n"


def test_too_many_shells_are_refused_with_the_way_out(supervised: Supervised) -> None:
    first, second = supervised.runs(STAYS), supervised.runs(STAYS)

    def opened(key: AttemptKey, session: str) -> ShellOpened:
        supervised.send(shell(supervised, key, session, STAYS, most_of_attempt=2, most=3))
        return supervised.hears(ShellOpened, key)

    assert [opened(first, f"session{number}").code for number in range(2)] == ["", ""]
    refused = opened(first, "session2")
    assert refused.code == "TooManyShells"
    assert "task-1 has 2 shells open, the maximum for one task (executor.max_shells_per_task" in refused.message
    assert "End one of them (exit), or wait" in refused.message
    assert opened(second, "session3").code == ""
    refused = opened(second, "session4")
    assert refused.code == "TooManyShells"
    assert "only a task without a shell gets one now" in refused.message
    third = supervised.runs(STAYS)
    assert opened(third, "session5").code == "", "the first shell of a task is not kept out by others"
    until(lambda: len(holders(supervised, first)) == 2)
    supervised.kill()
    supervised.begin()
    assert opened(first, "session6").code == "TooManyShells", "the next supervisor counts those of the last one"
    os.kill(holders(supervised, first)[0], signal.SIGKILL)
    until(lambda: len(holders(supervised, first)) == 1)
    assert opened(first, "session8").code == "TooManyShells", "the node is full"
    supervised.send(messages.StopAttempt(third, 0.0))
    supervised.end_of(third)
    assert opened(first, "session9").code == ""


def test_a_shell_cannot_claim_to_belong_to_another_task(supervised: Supervised) -> None:
    mine, other = supervised.runs(STAYS), supervised.runs(STAYS)
    mark = process_tag.value(paths.mark_of(supervised.folder), other)
    seen = supervised.folder / "seen"
    line = f"echo $GPUYARD_MARK $GPUYARD_TASK_ID $OWN > {seen}.new; mv {seen}.new {seen}; {STAYS}"
    env = {"GPUYARD_MARK": mark, "GPUYARD_TASK_ID": "99", "OWN": "word"}
    supervised.send(shell(supervised, mine, "spoofed1", line, env=env))
    assert supervised.hears(ShellOpened, mine).message == ""
    until(seen.exists)
    assert seen.read_text().split() == [
        process_tag.value(paths.mark_of(supervised.folder), mine), str(mine.task), "word",
    ]  # fmt: skip
    (holder,) = holders(supervised, mine)
    supervised.send(messages.StopAttempt(mine, 1.0))
    supervised.end_of(mine)
    until(lambda: not is_alive(holder))


def test_the_mark_of_a_shell_does_not_come_from_a_process_that_can_change_it(supervised: Supervised) -> None:
    other = supervised.runs(STAYS)
    false = process_tag.value(paths.mark_of(supervised.folder), other)
    mine = supervised.runs("", argv=("env", f"GPUYARD_MARK={false}", "sleep", "600"))
    until(lambda: supervised.holds()[mine].pid and b"sleep" in proc.command_line(supervised.holds()[mine].pid))
    supervised.send(shell(supervised, mine, "marked01", STAYS))
    assert supervised.hears(ShellOpened, mine).message == ""
    until(lambda: len(holders(supervised, mine)) == 1)
    assert holders(supervised, other) == []


def test_no_shell_is_opened_beside_a_command_that_has_become_another_user() -> None:
    attempt = Attempt(AttemptKey(7, 1), 0.0, uid=1000, gid=1000, groups=(1000,))
    same = "Uid:\t1000\t1000\t1000\t1000\nGid:\t0\t0\t0\t0\nGroups:\t0 27\n"
    assert shells._owner_of(attempt, same) == (1000, 1000, (1000,)), "the groups are those of the launch"
    for uids in ("0\t0\t0\t0", "1000\t0\t0\t0", "1000\t1000\t0\t0"):
        with pytest.raises(shells.ShellNotStarted, match="runs as another user now") as refused:
            shells._owner_of(attempt, f"Uid:\t{uids}\nGid:\t0\t0\t0\t0\n")
        assert refused.value.code == "OtherUser"
