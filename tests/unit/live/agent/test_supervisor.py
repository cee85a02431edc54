"""The supervisor: an attempt from its launch to its end."""

import os
import pwd
import shlex
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest

from gpuyard.cli.up.remaining_tasks import end_all
from gpuyard.live.agent import telemetry
from gpuyard.live.agent.inventory import GpuProcess
from gpuyard.live.agent.supervisor import messages, paths
from gpuyard.live.agent.supervisor.cgroup import base_of
from gpuyard.live.agent.supervisor.messages import AttemptEnding, AttemptKey, Launch, ProcessPhase
from tests.unit.live.agent.supervised import ENV, Supervised, is_alive, until

pytestmark = pytest.mark.slow  # left out of `make quick`

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may run tasks as another user")

IGNORES_TERM = "trap '' TERM; echo ready; while true; do sleep 0.05; done"
FORKS_AWAY = """import os, time
ready, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {more}
        print(os.getpid(), flush=True)
        os.write(tell, b"1")
        time.sleep(600)
    os._exit(0)
os.wait()
os.read(ready, 1)
"""


def python(program: str) -> dict[str, object]:
    return {"argv": (sys.executable, "-c", program)}


# --- starts and ends


def test_a_command_that_returns_0_succeeded(supervised: Supervised) -> None:
    end = supervised.end_of(supervised.launches("", argv=("true",)))
    assert (end.ending, end.exit_code, end.signal) == (AttemptEnding.SUCCEEDED, 0, None)


def test_an_exit_code_is_reported(supervised: Supervised) -> None:
    end = supervised.end_of(supervised.launches("exit 37"))
    assert (end.ending, end.exit_code, end.signal) == (AttemptEnding.FAILED, 37, None)


def test_a_signal_is_reported(supervised: Supervised) -> None:
    end = supervised.end_of(supervised.launches("kill -SEGV $$"))
    assert (end.ending, end.exit_code, end.signal) == (AttemptEnding.FAILED, None, signal.SIGSEGV)


def test_arguments_reach_the_command_unchanged(supervised: Supervised) -> None:
    key = supervised.launches("", argv=("printf", "%s|", "a b", "$HOME", "*"))
    supervised.end_of(key)
    assert supervised.output(key).read_text() == "a b|$HOME|*|"


def test_a_shell_line_may_use_shell_syntax(supervised: Supervised) -> None:
    key = supervised.launches("for i in 1 2 3; do echo $i; done | tail -n 1 && echo done")
    supervised.end_of(key)
    assert supervised.output(key).read_text() == "3\ndone\n"


def test_the_environment_is_the_given_one_plus_the_attempt(supervised: Supervised) -> None:
    key = supervised.launches("", argv=("env",), env=ENV | {"COLOUR": "red", "GPUYARD_ATTEMPT": "99"})
    supervised.end_of(key)
    lines = dict(line.split("=", 1) for line in supervised.output(key).read_text().splitlines())
    assert lines.pop("GPUYARD_MARK").endswith(f"/{key.task}/1/0")
    assert lines == ENV | {"COLOUR": "red", "GPUYARD_TASK_ID": str(key.task), "GPUYARD_ATTEMPT": "1"}


def test_a_command_starts_in_its_work_dir(supervised: Supervised, tmp_path: Path) -> None:
    key = supervised.launches("pwd -P", cwd=str(tmp_path))
    supervised.end_of(key)
    assert supervised.output(key).read_text().strip() == str(tmp_path.resolve())


def test_stdout_and_stderr_share_one_file_in_the_order_written(supervised: Supervised) -> None:
    key = supervised.launches("for i in 1 2 3; do echo out $i; echo err $i >&2; done")
    supervised.end_of(key)
    assert supervised.output(key).read_text() == "".join(f"out {i}\nerr {i}\n" for i in (1, 2, 3))


def test_no_descriptor_of_the_supervisor_is_open_in_a_task(supervised: Supervised) -> None:
    key = supervised.launches("readlink /proc/self/fd/0; ls /proc/self/fd; cat")
    assert supervised.end_of(key).exit_code == 0
    assert supervised.output(key).read_text().split() == ["/dev/null", "0", "1", "2", "3"]  # ls itself reads by 3


def test_tasks_have_default_signal_handlers(supervised: Supervised) -> None:
    key = supervised.launches("grep -E 'SigIgn|SigBlk' /proc/self/status")
    supervised.end_of(key)
    sets = [int(line.split()[1], 16) for line in supervised.output(key).read_text().splitlines()]
    of_the_c_library = 0b11 << 31  # signals 32 and 33, which posix_spawn itself leaves ignored
    assert [signals & ~of_the_c_library for signals in sets] == [0, 0]


# --- commands that cannot be started


def test_a_missing_command_is_named(supervised: Supervised) -> None:
    key = supervised.launches("", argv=("no-such-command-here",))
    said_no = supervised.hears(messages.NotLaunched, key)
    assert "'no-such-command-here' was not found on this node" in said_no.message
    assert supervised.holds()[key].end == said_no


def test_a_very_long_command_is_named_in_one_sentence(supervised: Supervised) -> None:
    key = supervised.launches("", argv=("x" * 500_000,))
    assert len(supervised.hears(messages.NotLaunched, key).message) < 500


def test_a_missing_work_dir_is_named(supervised: Supervised) -> None:
    key = supervised.launches("true", cwd="/no/such/folder")
    assert "The work dir /no/such/folder does not exist" in supervised.hears(messages.NotLaunched, key).message


def test_a_file_is_no_work_dir(supervised: Supervised, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    key = supervised.launches("true", cwd=str(tmp_path / "file"))
    assert "does not exist" in supervised.hears(messages.NotLaunched, key).message


def test_a_file_that_is_not_executable_is_named(supervised: Supervised, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    (tmp_path / "text").chmod(0o644)
    key = supervised.launches("", argv=(str(tmp_path / "text"),))
    assert "may not be executed" in supervised.hears(messages.NotLaunched, key).message
    (tmp_path / "text").chmod(0o755)
    key = supervised.launches("", argv=(str(tmp_path / "text"),))
    assert "begins with #!" in supervised.hears(messages.NotLaunched, key).message


def test_a_command_with_invalid_characters_is_refused(supervised: Supervised) -> None:
    key = supervised.launches("", argv=("echo", "a\0b"))
    assert "text that cannot be passed to a process" in supervised.hears(messages.NotLaunched, key).message


def test_an_empty_command_is_refused(supervised: Supervised) -> None:
    assert "no command" in supervised.hears(messages.NotLaunched, supervised.launches("")).message


# --- other users


@as_root
def test_root_runs_a_task_as_another_user(supervised: Supervised) -> None:
    nobody = pwd.getpwnam("nobody")
    key = supervised.launches("id -u; id -g; umask", uid=nobody.pw_uid, gid=nobody.pw_gid, cwd="/")
    assert supervised.end_of(key).exit_code == 0
    assert supervised.output(key).read_text().split() == [str(nobody.pw_uid), str(nobody.pw_gid), "0022"]
    assert supervised.output(key).stat().st_uid == nobody.pw_uid


@as_root
def test_a_work_dir_is_entered_with_the_users_own_rights(supervised: Supervised, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    nobody = pwd.getpwnam("nobody")
    env = ENV | {"USER": "nobody"}
    key = supervised.launches("true", uid=nobody.pw_uid, gid=nobody.pw_gid, cwd=str(closed), env=env)
    assert "may not be entered by user nobody" in supervised.hears(messages.NotLaunched, key).message
    assert supervised.end_of(supervised.launches("id -u")).exit_code == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may")
def test_only_root_runs_tasks_as_another_user(supervised: Supervised) -> None:
    key = supervised.launches("true", uid=os.getuid() + 1, cwd="/")
    assert "is not root" in supervised.hears(messages.NotLaunched, key).message


# --- checkpoint folders


def test_a_second_attempt_finds_the_checkpoint_folder_of_the_first(supervised: Supervised, tmp_path: Path) -> None:
    folder = tmp_path / "all" / "lab" / "0" / "7-5"
    (tmp_path / "all").mkdir()
    first = supervised.launches(f"echo 41 > {folder}/step", checkpoint_dir=str(folder))
    assert supervised.end_of(first).exit_code == 0
    second = supervised.launches(f"cat {folder}/step", checkpoint_dir=str(folder))
    assert supervised.end_of(second).exit_code == 0
    assert supervised.output(second).read_text() == "41\n"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert folder.parent.stat().st_mode & 0o777 == 0o711


@as_root
def test_the_checkpoint_folder_belongs_to_the_user_of_the_task(supervised: Supervised, tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    folder = tmp_path / "all" / "lab" / "0" / "7-5"
    (tmp_path / "all").mkdir()
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    key = supervised.launches(
        f"touch {folder}/state", uid=nobody.pw_uid, gid=nobody.pw_gid, cwd="/", checkpoint_dir=str(folder)
    )
    assert supervised.end_of(key).exit_code == 0
    assert (folder.stat().st_uid, folder.stat().st_gid) == (nobody.pw_uid, nobody.pw_gid)
    assert folder.parent.stat().st_uid == os.geteuid()


def test_a_task_whose_checkpoint_folder_cannot_be_made_is_not_launched(supervised: Supervised, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    folder = tmp_path / "file" / "lab" / "0" / "7-5"
    key = supervised.launches("true", checkpoint_dir=str(folder))
    message = supervised.hears(messages.NotLaunched, key).message
    assert message == (
        f"Its checkpoint folder {folder} cannot be made on this node: Not a directory. Check "
        "executor.checkpoint_dir there."
    )


# --- stopping


def test_a_stopped_task_may_clean_up(supervised: Supervised) -> None:
    key = supervised.runs("trap 'echo bye; exit 5' TERM; echo ready; while true; do sleep 0.05; done")
    supervised.says(key, "ready")
    supervised.send(messages.StopAttempt(key))
    end = supervised.end_of(key)
    assert (end.ending, end.exit_code) == (AttemptEnding.STOPPED, 5)
    assert "bye" in supervised.output(key).read_text()


def test_a_task_that_ignores_sigterm_is_killed_after_the_grace_period(supervised: Supervised) -> None:
    key = supervised.runs(IGNORES_TERM)
    supervised.says(key, "ready")
    began = time.monotonic()
    supervised.send(messages.StopAttempt(key, grace_seconds=0.4))
    end = supervised.end_of(key)
    assert (end.ending, end.signal) == (AttemptEnding.STOPPED, signal.SIGKILL)
    assert time.monotonic() - began >= 0.4


def test_a_stop_without_a_grace_period_has_that_of_the_launch(supervised: Supervised) -> None:
    key = supervised.launches(IGNORES_TERM, grace_seconds=0.4)
    supervised.says(key, "ready")
    began = time.monotonic()
    supervised.send(messages.StopAttempt(key))
    end = supervised.end_of(key)
    assert (end.ending, end.signal) == (AttemptEnding.STOPPED, signal.SIGKILL)
    assert 0.4 <= time.monotonic() - began < messages.DEFAULT_GRACE_SECONDS


def test_a_task_that_ends_within_its_grace_period_is_not_waited_for(supervised: Supervised) -> None:
    key = supervised.launches("trap 'exit 0' TERM; echo ready; while true; do sleep 0.05; done", grace_seconds=600)
    supervised.says(key, "ready")
    supervised.send(messages.StopAttempt(key))
    assert (end := supervised.end_of(key)).ending == AttemptEnding.STOPPED
    assert end.exit_code == 0


def test_a_program_in_a_shell_has_the_whole_grace_period_although_the_shell_ends_at_once(
    supervised: Supervised,
) -> None:
    saves = "trap 'sleep 0.3; echo saved; exit' TERM; echo ready; while true; do sleep 0.05; done"
    key = supervised.launches(f"sh -c {shlex.quote(saves)}; echo never", grace_seconds=600)
    supervised.says(key, "ready")
    supervised.send(messages.StopAttempt(key))
    assert supervised.end_of(key).ending == AttemptEnding.STOPPED
    said = supervised.output(key).read_text().split()
    assert "saved" in said
    assert "never" not in said


def test_the_end_of_all_tasks_waits_for_the_grace_period_of_each(supervised: Supervised) -> None:
    """As `gpuyard down --stop-tasks` does while the scheduler is down."""
    deaf = supervised.launches(IGNORES_TERM, grace_seconds=0.5)
    polite = supervised.launches("trap 'exit 0' TERM; echo ready; while true; do sleep 0.05; done", grace_seconds=600)
    for key in (deaf, polite):
        supervised.says(key, "ready")
    began = time.monotonic()
    assert end_all(supervised.folder) == 2
    assert 0.5 <= time.monotonic() - began < 60
    assert supervised.end_of(deaf).signal == signal.SIGKILL
    assert supervised.end_of(polite).exit_code == 0


def test_a_second_stop_can_shorten_the_grace_period(supervised: Supervised) -> None:
    key = supervised.runs(IGNORES_TERM)
    supervised.says(key, "ready")
    supervised.send(messages.StopAttempt(key, grace_seconds=600))
    supervised.send(messages.StopAttempt(key, grace_seconds=0))
    assert supervised.end_of(key).ending == AttemptEnding.STOPPED


def test_a_timeout_also_ends_a_task_that_ignores_sigterm(supervised: Supervised) -> None:
    key = supervised.launches(IGNORES_TERM, timeout_seconds=0.3, grace_seconds=0.2)
    end = supervised.end_of(key)
    assert (end.ending, end.signal) == (AttemptEnding.TIMED_OUT, signal.SIGKILL)


def test_stopping_a_launch_in_progress_needs_no_grace_period(supervised: Supervised) -> None:
    first = supervised.runs("exec sleep 600")
    second = supervised.key()
    supervised.send(
        messages.StopAttempt(first, 600),
        Launch(second, argv=("sleep", "600"), env=ENV),
        messages.StopAttempt(second, 600),
    )
    assert supervised.end_of(first).signal == signal.SIGTERM
    assert supervised.end_of(second).ending == AttemptEnding.STOPPED  # before it began, or by TERM


def test_stopping_an_unknown_attempt_says_so(supervised: Supervised) -> None:
    supervised.send(
        messages.StopAttempt(AttemptKey(99, 1)),
        messages.Start(AttemptKey(98, 1)),
        messages.Suspend(AttemptKey(97, 1)),
        messages.Resume(AttemptKey(96, 1)),
    )
    for task in (99, 98, 97, 96):
        supervised.hears(messages.NotHeld, AttemptKey(task, 1))


# --- leftover processes


def test_a_background_child_is_ended_before_the_end_is_reported(supervised: Supervised) -> None:
    key = supervised.launches("sleep 600 & echo $!")
    end = supervised.end_of(key)
    assert (end.ending, end.exit_code) == (AttemptEnding.SUCCEEDED, 0)
    assert "left 1" in end.message
    assert not is_alive(supervised.pid_said(key))


def test_a_process_that_forked_twice_and_left_the_session_is_ended_too(supervised: Supervised) -> None:
    key = supervised.launches("", **python(FORKS_AWAY.format(more="pass")))
    supervised.end_of(key)
    assert not is_alive(supervised.pid_said(key))


def test_a_leftover_process_that_ignores_sigterm_is_killed(supervised: Supervised) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    key = supervised.launches("", grace_seconds=0.3, **python(FORKS_AWAY.format(more=deaf)))
    supervised.end_of(key)
    assert not is_alive(supervised.pid_said(key))


def test_a_process_that_cleared_its_tag_is_ended_too(supervised: Supervised) -> None:
    key = supervised.launches("setsid -f env -i sh -c 'echo $$; exec sleep 600'; sleep 0.3")
    supervised.end_of(key)
    assert not is_alive(supervised.pid_said(key))


def test_the_daemon_of_one_task_does_not_disturb_another(supervised: Supervised) -> None:
    first = supervised.runs("setsid -f sh -c 'echo $$; exec sleep 600'; exec sleep 600")
    daemon = supervised.pid_said(first)
    for _ in range(3):
        assert supervised.end_of(supervised.launches("true")).ending == AttemptEnding.SUCCEEDED
    assert is_alive(daemon)
    supervised.send(messages.StopAttempt(first))
    supervised.end_of(first)
    assert not is_alive(daemon)


# --- control groups


def groups_of(supervised: Supervised) -> list[str]:
    """The groups that the supervisor has made for attempts."""
    base = base_of(paths.mark_of(supervised.folder))
    if base is None or not os.access(base.parent / "cgroup.procs", os.W_OK):
        pytest.skip("this machine lets us make no control groups")
    return [path.name for path in base.glob("*.*") if path.is_dir()]


def test_an_attempt_in_a_control_group_ends_with_all_its_processes(supervised: Supervised) -> None:
    assert groups_of(supervised) == []
    bystander = supervised.runs("setsid -f env -i sh -c 'echo $$; exec sleep 600'; exec sleep 600", cgroup=True)
    daemon = supervised.pid_said(bystander)
    assert groups_of(supervised) == [f"{bystander.task}.1.0"]
    assert telemetry.owner(GpuProcess(daemon, 100, False), {}, paths.mark_of(supervised.folder)) == bystander
    key = supervised.launches("setsid -f env -i sh -c 'echo $$; exec sleep 600'; sleep 0.2; exit 3", cgroup=True)
    end = supervised.end_of(key)
    assert end.exit_code == 3
    assert not is_alive(supervised.pid_said(key))
    supervised.send(messages.StopAttempt(bystander, 0))
    supervised.end_of(bystander)
    assert not is_alive(daemon)
    assert groups_of(supervised) == []
    assert supervised.end_of(supervised.launches("true")).ending == AttemptEnding.SUCCEEDED


def test_a_command_that_cannot_start_leaves_no_control_group(supervised: Supervised) -> None:
    assert groups_of(supervised) == []
    supervised.hears(messages.NotLaunched, supervised.launches("", argv=("no-such-command",), cgroup=True))
    until(lambda: groups_of(supervised) == [])


# --- suspending


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_all_processes_of_a_suspended_attempt_are_stopped(supervised: Supervised) -> None:
    key = supervised.runs("setsid -f sh -c 'echo $$; while true; do sleep 0.02; done'; while true; do sleep 0.02; done")
    away = supervised.pid_said(key)
    supervised.send(messages.Suspend(key))
    supervised.hears(messages.SuspendedNow, key)
    held = supervised.holds()[key]
    assert held.phase == ProcessPhase.SUSPENDED
    # D: a shell that was stopped in the middle of starting something waits for a child that is stopped.
    until(lambda: {state_of(held.pid), state_of(away)} <= {"T", "D"})
    supervised.send(messages.Resume(key))
    supervised.hears(messages.ResumedNow, key)
    until(lambda: "T" not in {state_of(held.pid), state_of(away)})
    assert supervised.holds()[key].phase == ProcessPhase.RUNNING


def test_a_suspended_attempt_can_be_stopped(supervised: Supervised) -> None:
    key = supervised.runs("trap 'exit 5' TERM; echo ready; while true; do sleep 0.05; done")
    supervised.says(key, "ready")
    supervised.send(messages.Suspend(key), messages.StopAttempt(key))
    assert supervised.end_of(key).exit_code == 5


def test_time_in_suspension_does_not_count_for_the_timeout(supervised: Supervised) -> None:
    key = supervised.runs("exec sleep 600", timeout_seconds=1.0)
    supervised.send(messages.Suspend(key))
    supervised.hears(messages.SuspendedNow, key)
    with pytest.raises(AssertionError, match="no ProcessEnded came"):
        supervised.end_of(key, seconds=1.5)
    supervised.send(messages.Resume(key))
    assert supervised.end_of(key).ending == AttemptEnding.TIMED_OUT


# --- leases, gangs, repeats


def test_a_lease_is_held_without_a_process_until_it_is_stopped(supervised: Supervised) -> None:
    key = supervised.key()
    supervised.send(Launch(key, lease=True))
    assert supervised.hears(messages.Launched, key).pid == 0
    assert supervised.holds()[key].lease
    supervised.send(messages.StopAttempt(key))
    assert supervised.end_of(key).ending == AttemptEnding.STOPPED


def test_a_lease_ends_at_its_timeout(supervised: Supervised) -> None:
    key = supervised.key()
    supervised.send(Launch(key, lease=True, timeout_seconds=0.2))
    assert supervised.end_of(key).ending == AttemptEnding.TIMED_OUT


def test_a_timeout_can_be_moved_and_removed_during_the_run(supervised: Supervised) -> None:
    sooner, never = (
        supervised.launches("sleep 60", timeout_seconds=60.0),
        supervised.launches("sleep 1", timeout_seconds=0.4),
    )
    supervised.hears(messages.Launched, never)
    supervised.send(messages.Extend(sooner, 0.2), messages.Extend(never, 0.0))
    assert supervised.end_of(sooner).ending == AttemptEnding.TIMED_OUT
    assert supervised.end_of(never).ending == AttemptEnding.SUCCEEDED


def test_a_part_of_a_gang_waits_for_its_start(supervised: Supervised) -> None:
    key = supervised.launches(
        "echo $RANK of $WORLD_SIZE in $COLOUR", wait=True, env=ENV | {"COLOUR": "red", "RANK": "?"}
    )
    assert 1024 <= supervised.hears(messages.Prepared, key).port < 65536
    assert supervised.holds()[key].phase == ProcessPhase.WAITING
    supervised.send(messages.Start(key, {"RANK": "3", "WORLD_SIZE": "8"}))
    supervised.hears(messages.Launched, key)
    assert supervised.end_of(key).ending == AttemptEnding.SUCCEEDED
    assert supervised.output(key).read_text() == "3 of 8 in red\n"


def test_a_part_of_a_gang_can_be_stopped_while_it_waits(supervised: Supervised) -> None:
    key = supervised.launches("true", wait=True)
    supervised.hears(messages.Prepared, key)
    supervised.send(messages.StopAttempt(key))
    assert supervised.end_of(key).ending == AttemptEnding.STOPPED


def test_a_repeated_launch_runs_once(supervised: Supervised) -> None:
    key = supervised.key()
    launch = Launch(key, shell="echo once; sleep 0.3", env=ENV, output=str(supervised.output(key)))
    supervised.send(launch, launch)
    first = supervised.hears(messages.Launched, key)
    supervised.send(launch)
    assert supervised.hears(messages.Launched, key).pid == first.pid
    supervised.end_of(key)
    supervised.send(launch)
    supervised.end_of(key)
    assert supervised.output(key).read_text() == "once\n"


def test_an_end_is_kept_until_it_is_forgotten(supervised: Supervised) -> None:
    over, runs = supervised.launches("true"), supervised.runs("exec sleep 600")
    end = supervised.end_of(over)
    assert supervised.holds()[over].end == end
    supervised.send(messages.ForgetAttempts((over, runs)))
    assert set(supervised.holds()) == {runs}


# --- output


def test_trimmed_output_keeps_its_newest_part(supervised: Supervised) -> None:
    limit = 256 * 1024
    key = supervised.launches("seq 1 2000000", output_limit_bytes=limit)
    supervised.end_of(key)
    output = supervised.output(key)
    content = output.read_bytes()
    assert content.endswith(b"1999999\n2000000\n")
    assert output.stat().st_blocks * 512 <= 2 * limit


def test_a_task_that_floods_its_output_is_trimmed_during_the_run(supervised: Supervised) -> None:
    limit = 1024 * 1024
    key = supervised.runs("head -c 30000000 /dev/urandom; echo full; exec sleep 600", output_limit_bytes=limit)
    until(lambda: supervised.output(key).stat().st_size > 30_000_000)
    until(lambda: supervised.output(key).stat().st_blocks * 512 <= 2 * limit)
    assert supervised.output(key).read_bytes().endswith(b"full\n")


# --- many


def test_a_burst_of_launches_ends_completely(supervised: Supervised) -> None:
    keys = [supervised.key() for _ in range(200)]
    supervised.send(*(Launch(key, argv=("true",), env=ENV) for key in keys))
    assert {supervised.end_of(key).ending for key in keys} == {AttemptEnding.SUCCEEDED}


def test_garbage_on_the_socket_costs_only_that_message(supervised: Supervised) -> None:
    key = supervised.runs("exec sleep 600")
    other = Supervised(supervised.folder)
    assert other._line is not None
    other._line.sendall(b"\0\0\0\5hello")
    with pytest.raises(AssertionError, match="hung up"):
        other.hears(messages.AttemptList)
    other.hang_up()
    assert supervised.holds()[key].phase == ProcessPhase.RUNNING


def test_an_unknown_message_of_a_newer_agent_is_skipped_and_the_others_are_handled(supervised: Supervised) -> None:
    words = msgspec.msgpack.encode(
        [{"type": "Juggle", "key": [1, 1]}, Launch(AttemptKey(1, 1), argv=("true",), env=ENV)]
    )
    assert supervised._line is not None
    supervised._line.sendall(len(words).to_bytes(4, "big") + words)
    assert supervised.end_of(AttemptKey(1, 1)).ending == AttemptEnding.SUCCEEDED


def test_an_unknown_message_of_a_newer_supervisor_is_skipped_too() -> None:
    words = msgspec.msgpack.encode([{"type": "Juggled", "key": [1, 1]}, messages.NotHeld(AttemptKey(1, 1))])
    assert messages.decode_events(words) == [messages.NotHeld(AttemptKey(1, 1))]
