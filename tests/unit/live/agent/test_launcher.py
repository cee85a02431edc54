"""A hanging file system affects only the attempt that needs it."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gpuyard.live.agent.supervisor import launcher, messages, paths, proc, spawn
from gpuyard.live.agent.supervisor.messages import AttemptEnding, Launch, ProcessPhase
from tests.unit.live.agent.hanging_folder import HangingFolder
from tests.unit.live.agent.supervised import ENV, Supervised, is_alive, until

pytestmark = pytest.mark.slow  # left out of `make quick`


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").rstrip("\n")
    return ""


def starters(supervised: Supervised) -> list[int]:
    """Of this supervisor, launcher included."""
    table = proc.all_processes()
    return [pid for pid in table if table[pid].parent == supervised.pid and _name(pid) == launcher.NAME]


def launcher_of(supervised: Supervised) -> int:
    """Its launcher: the oldest one that has not left the supervisor's session."""
    found = [it for pid in starters(supervised) if (it := proc.process(pid)) and it.session != pid]
    return min(found, key=lambda it: (it.began, it.pid)).pid


def kill_starters(supervised: Supervised, *, but: int = 0) -> None:
    """Until none is left: a launcher may fork one more before it is killed."""

    def are_gone() -> bool:
        pids = [pid for pid in starters(supervised) if pid != but]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids

    until(are_gone)


def test_a_hanging_work_dir_is_given_up_and_everything_else_continues(supervised: Supervised, tmp_path: Path) -> None:
    ends = supervised.runs("sleep 0.5; exit 3")
    times_out = supervised.runs("exec sleep 600", timeout_seconds=0.5)
    to_cancel = supervised.runs("exec sleep 600")
    with HangingFolder(tmp_path / "dead") as dead:
        waits = supervised.launches("touch ../ran", cwd=str(dead.path / "home"), launch_seconds=600.0)
        supervised.send(messages.StopAttempt(to_cancel))
        assert supervised.end_of(to_cancel).ending == AttemptEnding.STOPPED
        assert supervised.end_of(supervised.launches("true")).ending == AttemptEnding.SUCCEEDED
        assert supervised.end_of(ends).exit_code == 3
        assert supervised.end_of(times_out).ending == AttemptEnding.TIMED_OUT
        assert supervised.holds()[waits].end is None, "nothing waited for it"
        stuck = supervised.launches("touch ../ran", cwd=str(dead.path / "home"), launch_seconds=0.5)
        refusal = supervised.hears(messages.NotLaunched, stuck)
        assert "within 0.5 s" in refusal.message
        assert str(dead.path) in refusal.message
        assert supervised.holds()[stuck].end == refusal


@pytest.mark.parametrize("what", ["command", "output", "checkpoint", "interpreter"])
def test_a_hanging_file_is_given_up_too(supervised: Supervised, tmp_path: Path, what: str) -> None:
    with HangingFolder(tmp_path / "dead") as dead:
        more: dict[str, object] = {"launch_seconds": 0.5}
        match what:
            case "command":
                more["argv"] = (str(dead.path / "train"),)
            case "output":
                more["output"] = str(dead.path / "log")
            case "checkpoint":
                more["checkpoint_dir"] = str(dead.path / "lab" / "0" / "7-5")
            case _:
                script = tmp_path / "script"
                script.write_text(f"#!{dead.path}/python\n")
                script.chmod(0o755)
                more["argv"] = (str(script),)
        key = supervised.launches("true", **more)
        assert supervised.end_of(supervised.launches("true")).ending == AttemptEnding.SUCCEEDED
        assert "within 0.5 s" in supervised.hears(messages.NotLaunched, key).message


def test_an_abandoned_launch_does_not_run_when_the_file_system_answers(supervised: Supervised, tmp_path: Path) -> None:
    with HangingFolder(tmp_path / "dead") as dead:
        key = supervised.launches("touch ran", cwd=str(dead.path), launch_seconds=0.3)
        until(lambda: supervised.holds()[key].pid)
        pid = supervised.holds()[key].pid
        supervised.hears(messages.NotLaunched, key)
        dead.answer()
        until(lambda: not is_alive(pid))
    assert not supervised.output(key).read_text()


def test_a_launch_that_waits_for_a_hanging_folder_can_be_stopped(supervised: Supervised, tmp_path: Path) -> None:
    with HangingFolder(tmp_path / "dead") as dead:
        key = supervised.launches("true", cwd=str(dead.path))
        assert supervised.end_of(supervised.launches("true")).ending == AttemptEnding.SUCCEEDED
        supervised.send(messages.StopAttempt(key))
        assert supervised.end_of(key).ending == AttemptEnding.STOPPED


def test_a_launch_that_waits_for_a_hanging_folder_is_fenced(supervised: Supervised, tmp_path: Path) -> None:
    with HangingFolder(tmp_path / "dead") as dead:
        supervised.send(messages.Renew(0.5))
        key = supervised.launches("true", cwd=str(dead.path), fence=True)
        assert supervised.end_of(key).ending == AttemptEnding.FENCED


def test_a_launch_that_waited_for_a_hanging_folder_does_not_run_after_its_supervisor_was_killed(
    supervised: Supervised, tmp_path: Path
) -> None:
    with HangingFolder(tmp_path / "dead") as dead:
        key = supervised.launches("true", cwd=str(dead.path))
        until(lambda: supervised.holds()[key].pid)
        pid = supervised.holds()[key].pid
        supervised.kill()
        (held,) = supervised.begin().attempts
        assert isinstance(held.end, messages.ProcessEnded)
        assert held.end.ending == AttemptEnding.LOST
        until(lambda: not is_alive(pid))


def test_a_replaced_supervisor_still_waits_for_a_hanging_folder(supervised: Supervised, tmp_path: Path) -> None:
    with HangingFolder(tmp_path / "dead") as dead:
        key = supervised.launches("true", cwd=str(dead.path), launch_seconds=4.0)
        until(lambda: supervised.holds()[key].pid)
        supervised.send(messages.Replace())
        with pytest.raises(AssertionError, match="hung up"):
            supervised.hears(messages.NotReplaced)
        (held,) = supervised.begin().attempts
        assert (held.key, held.phase) == (key, ProcessPhase.RUNNING)
        assert "within 4 s" in supervised.hears(messages.NotLaunched, key).message


def test_an_attempt_suspended_before_its_start_is_suspended_when_it_starts(supervised: Supervised) -> None:
    key = supervised.key()
    supervised.send(Launch(key, shell="exec sleep 600", env=ENV), messages.Suspend(key))
    supervised.hears(messages.SuspendedNow, key)
    supervised.send(messages.Resume(key), messages.StopAttempt(key))
    assert supervised.end_of(key).ending == AttemptEnding.STOPPED


def test_a_launcher_and_starters_that_were_killed_are_replaced(supervised: Supervised) -> None:
    supervised.end_of(supervised.launches("true"))
    until(lambda: len(starters(supervised)) > 1)
    for pid in starters(supervised):
        os.kill(pid, signal.SIGKILL)
    for _ in range(10):
        assert supervised.end_of(supervised.launches("exit 3")).exit_code == 3


def test_a_launch_survives_any_number_of_killed_launchers(supervised: Supervised) -> None:
    until_then = time.monotonic() + 1.5
    keys: list[messages.AttemptKey] = []
    while time.monotonic() < until_then:
        for pid in starters(supervised):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if len(keys) < 5:
            keys.append(supervised.launches("exit 3"))
    for key in keys:
        end = supervised.end_of(key)
        assert end.exit_code == 3 or end.signal == signal.SIGKILL  # killed as it became the command


def test_a_launch_waits_for_a_missing_interpreter(upgraded: Supervised, interpreter: Path, tmp_path: Path) -> None:
    away = interpreter.rename(tmp_path / "away")
    kill_starters(upgraded)
    waits = upgraded.launches("exit 3")
    given_up = upgraded.launches("exit 3", launch_seconds=1.0)
    end = upgraded.end_of(given_up)  # the node's fault: no retry of the task is spent
    assert (end.ending, end.exit_code) == (AttemptEnding.LOST, None)
    assert "within 1 s" in end.message
    assert str(interpreter) in end.message
    upgraded.send(messages.ForgetAttempts((given_up,)))
    away.rename(interpreter)
    assert upgraded.end_of(waits).exit_code == 3


def test_a_failing_interpreter_is_not_retried_all_the_time(
    upgraded: Supervised, interpreter: Path, tmp_path: Path
) -> None:
    away, tries = interpreter.rename(tmp_path / "away"), tmp_path / "tries"
    interpreter.write_text(f"#!/bin/sh\necho x >> {tries}\nexit 1\n")
    interpreter.chmod(0o755)
    kill_starters(upgraded)
    waits = upgraded.launches("exit 3")
    assert upgraded.end_of(upgraded.launches("true", launch_seconds=2.5)).ending == AttemptEnding.LOST
    assert 2 <= len(tries.read_text().split()) <= 4
    interpreter.unlink()
    away.rename(interpreter)
    assert upgraded.end_of(waits).exit_code == 3


def test_a_launcher_that_hangs_is_replaced(supervised: Supervised) -> None:
    supervised.end_of(supervised.launches("true"))
    until(lambda: len(starters(supervised)) > 1)
    stopped = launcher_of(supervised)
    os.kill(stopped, signal.SIGSTOP)
    kill_starters(supervised, but=stopped)
    waits = supervised.launches("exit 3")
    assert supervised.end_of(supervised.launches("true", launch_seconds=1.0)).ending == AttemptEnding.LOST
    assert supervised.end_of(waits).exit_code == 3
    assert not is_alive(stopped)


def test_a_process_with_the_name_of_a_starter_ends_with_its_task(supervised: Supervised) -> None:
    copy = supervised.folder / launcher.NAME
    copy.write_bytes(Path("/bin/sleep").resolve().read_bytes())
    copy.chmod(0o755)
    key = supervised.runs(f"setsid {copy} 600 > /dev/null & echo $!; sleep 0.2", grace_seconds=0.2)
    pid = supervised.pid_said(key)
    assert supervised.end_of(key).message == "Its command left 1 running, which were ended."
    assert not is_alive(pid)


def test_a_process_with_the_command_line_of_a_starter_ends_with_its_task(supervised: Supervised) -> None:
    """Not even its environment identifies it."""
    words = f"{launcher.__file__} 5 {paths.mark_of(supervised.folder)}"
    line = f"env -i setsid /bin/sh -c '/bin/sleep 600 & echo $!; wait' {words} & sleep 0.3"
    key = supervised.runs(line, grace_seconds=0.2)
    pid = supervised.pid_said(key)
    assert supervised.end_of(key).ending == AttemptEnding.SUCCEEDED
    assert not is_alive(pid)
    assert supervised.end_of(supervised.launches("exit 3")).exit_code == 3


def test_no_task_is_reported_to_have_left_a_starter_behind(supervised: Supervised) -> None:
    """Starters are made, killed and replaced with their launcher while tasks end."""
    ends = []
    for number in range(60):
        keys = [supervised.launches("true") for _ in range(4)]
        if number % 20 == 10:
            with suppress(ProcessLookupError, ValueError):
                os.kill(launcher_of(supervised), signal.SIGKILL)
        ends += [supervised.end_of(key) for key in keys]
    assert {(end.ending, end.message) for end in ends} == {(AttemptEnding.SUCCEEDED, "")}


def test_a_long_environment_reaches_the_command(supervised: Supervised) -> None:
    env = ENV | {f"LONG_{number}": "x" * 100_000 for number in range(15)}
    key = supervised.launches("echo ${#LONG_14}", env=env)
    assert supervised.end_of(key).exit_code == 0
    assert supervised.output(key).read_text() == "100000\n"


def test_tasks_start_even_if_the_launcher_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "can_clone", lambda: False)
    starter = spawn._fork()
    output = tmp_path / "output"
    starter.order(
        spawn.order_of(
            Launch(messages.AttemptKey(1, 1), shell="echo $HELLO", output=str(output)), {"HELLO": "hi"}, None
        )
    )
    until(lambda: starter.answer() == launcher.ABOUT_TO_BEGIN)
    assert os.waitpid(starter.pid, 0)[1] == 0
    starter.close()
    assert output.read_text() == "hi\n"


def test_the_oom_killer_spares_the_supervisor_and_not_the_tasks(supervised: Supervised) -> None:
    def score(pid: int) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    key = supervised.runs("exec sleep 600")
    assert score(supervised.holds()[key].pid) == max(0, score(os.getpid()))
    allowed = subprocess.run(
        ["/bin/sh", "-c", "echo -900 > /proc/self/oom_score_adj"], capture_output=True, check=False
    )
    if allowed.returncode == 0:
        assert score(supervised.pid) == proc.OOM_SCORE
