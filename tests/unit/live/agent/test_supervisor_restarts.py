"""Nothing is lost when a supervisor is killed, stopped or replaced, and fenced attempts end whatever happens to it."""

import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuyard.cli.up.remaining_tasks import end_all
from gpuyard.live.agent import supervisor_client
from gpuyard.live.agent.supervisor import attempt_store, messages, paths
from gpuyard.live.agent.supervisor.attempt_record import Attempt
from gpuyard.live.agent.supervisor.attempts import AttemptManager
from gpuyard.live.agent.supervisor.clock import now
from gpuyard.live.agent.supervisor.messages import AttemptEnding, AttemptKey, Launch, ProcessPhase
from tests.unit.live.agent.supervised import ENV, Supervised, is_alive, until

pytestmark = pytest.mark.slow  # supervisors are started, killed and replaced

# --- killed


def test_a_task_of_a_killed_supervisor_and_a_killed_keeper_is_adopted(supervised: Supervised) -> None:
    key = supervised.runs("while [ ! -e go ]; do sleep 0.02; done; echo went on")
    pid = supervised.holds()[key].pid
    supervised.kill_with_keeper()
    holding = supervised.begin()
    (held,) = holding.attempts
    assert (held.key, held.phase, held.pid) == (key, ProcessPhase.RUNNING, pid)
    (supervised.folder / "go").touch()
    end = supervised.end_of(key)
    assert (end.ending, end.exit_code) == (AttemptEnding.LOST, None)
    assert "its exit code is unknown" in end.message
    assert supervised.output(key).read_text() == "went on\n"


def test_ends_that_were_not_forgotten_survive_a_killed_supervisor(supervised: Supervised) -> None:
    good, bad, forgotten = (supervised.launches(line) for line in ("true", "exit 3", "true"))
    ends = {key: supervised.end_of(key) for key in (good, bad, forgotten)}
    supervised.send(messages.ForgetAttempts((forgotten,)))
    supervised.holds()
    supervised.kill()
    held = {held.key: held.end for held in supervised.begin().attempts}
    assert held == {good: ends[good], bad: ends[bad]}


def test_a_task_that_ended_without_supervisor_and_keeper_is_reported_lost(supervised: Supervised) -> None:
    key = supervised.runs("exec sleep 600")
    pid = supervised.holds()[key].pid
    supervised.kill_with_keeper()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_alive(pid))
    (held,) = supervised.begin().attempts
    assert isinstance(held.end, messages.ProcessEnded)
    assert held.end.ending == AttemptEnding.LOST


def test_leftover_processes_of_an_adopted_task_are_ended(supervised: Supervised) -> None:
    key = supervised.runs("setsid -f sh -c 'echo $$; exec sleep 600'; while [ ! -e go ]; do sleep 0.02; done")
    away = supervised.pid_said(key)
    supervised.kill()
    supervised.begin()
    (supervised.folder / "go").touch()
    supervised.end_of(key)
    assert not is_alive(away)


@pytest.mark.parametrize("stop", [False, True])
def test_leftover_processes_of_an_unrecorded_start_are_ended(supervised: Supervised, stop: bool) -> None:
    deaf = "trap : TERM; echo $$; while true; do sleep 0.05; done"
    key = supervised.runs(f"sh -c '{deaf}' & exec sleep 600", grace_seconds=1.0)
    away, pid = supervised.pid_said(key), supervised.holds()[key].pid
    supervised.kill()
    os.kill(pid, signal.SIGKILL)
    log = supervised.folder / paths.LOG
    log.write_bytes(re.sub(rb'"pid":\d+,"born":\[\d+,\d+\],', b"", log.read_bytes()))
    supervised.begin()
    if stop:
        supervised.send(messages.StopAttempt(key))
    assert supervised.end_of(key).ending == AttemptEnding.LOST
    assert not is_alive(away)


@pytest.mark.parametrize("how", ["stop", "timeout", "suspend"])
def test_an_adopted_task_obeys_like_any_other(supervised: Supervised, how: str) -> None:
    key = supervised.runs("exec sleep 600", timeout_seconds=2.0 if how == "timeout" else 0.0)
    supervised.kill()
    (held,) = supervised.begin().attempts
    match how:
        case "stop":
            supervised.send(messages.StopAttempt(key))
            assert supervised.end_of(key).ending == AttemptEnding.STOPPED
        case "timeout":  # on a busy machine it is over before the new supervisor is asked
            end = held.end or supervised.end_of(key)
            assert isinstance(end, messages.ProcessEnded)
            assert end.ending == AttemptEnding.TIMED_OUT
        case _:
            supervised.send(messages.Suspend(key), messages.Resume(key), messages.StopAttempt(key))
            supervised.hears(messages.SuspendedNow, key)
            supervised.hears(messages.ResumedNow, key)
            supervised.end_of(key)


def test_a_part_of_a_gang_that_waited_is_lost_with_its_supervisor(supervised: Supervised) -> None:
    key = supervised.launches("true", wait=True, env=ENV | {"TOKEN": "do-not-write-this-down"})
    supervised.hears(messages.Prepared, key)
    supervised.kill()
    (held,) = supervised.begin().attempts
    assert isinstance(held.end, messages.ProcessEnded)
    assert held.end.ending == AttemptEnding.LOST
    assert "gang" in held.end.message


def test_a_lease_survives_its_supervisor(supervised: Supervised) -> None:
    key = supervised.key()
    supervised.send(Launch(key, lease=True))
    supervised.hears(messages.Launched, key)
    supervised.kill()
    (held,) = supervised.begin().attempts
    assert (held.key, held.phase, held.lease) == (key, ProcessPhase.RUNNING, True)


def test_a_supervisor_killed_in_a_burst_of_launches_knows_every_launch(supervised: Supervised) -> None:
    keys = [supervised.key() for _ in range(120)]
    launches = [
        Launch(key, shell="echo x; exec sleep 600", env=ENV, output=str(supervised.output(key))) for key in keys
    ]
    supervised.send(*launches)
    supervised.hears(messages.Launched, keys[20])
    supervised.kill()
    supervised.begin()
    supervised.send(*launches)
    for key in keys:
        until(lambda key=key: key in supervised.holds())  # type: ignore[misc]
        assert not isinstance(supervised.holds()[key].end, messages.NotLaunched)
    held = supervised.holds()
    for key in (key for key in keys if held[key].end is None):
        supervised.says(key, "x")
    assert {supervised.output(key).read_text() for key in keys if supervised.output(key).exists()} <= {"x\n", ""}
    supervised.send(*(messages.StopAttempt(key, 0) for key in keys))
    until(lambda: all(held.end is not None for held in supervised.holds().values()))


def test_a_torn_line_is_skipped(supervised: Supervised) -> None:
    key = supervised.launches("exit 3")
    supervised.end_of(key)
    supervised.kill()
    with (supervised.folder / paths.LOG).open("ab") as log:
        log.write(b'{"type":"Is","attempt":{"key":[7,')
    assert [held.key for held in supervised.begin().attempts] == [key]


def test_a_line_of_garbage_is_skipped(supervised: Supervised) -> None:
    key = supervised.launches("exit 3")
    supervised.end_of(key)
    supervised.kill()
    with (supervised.folder / paths.LOG).open("ab") as log:
        log.write(b'{"type":"Is","attempt":{"key":[7,1],"at":1.0,"output":"\xff"}}\n\0\0\0\n')
    assert [held.key for held in supervised.begin().attempts] == [key]


@pytest.mark.parametrize("fence", [False, True])
def test_running_attempts_are_found_without_any_records(supervised: Supervised, fence: bool) -> None:
    supervised.send(messages.Renew(600))
    key = supervised.runs("setsid -f sleep 600; exec sleep 600", fence=fence)
    pid = supervised.holds()[key].pid
    supervised.kill()
    (supervised.folder / paths.LOG).unlink()
    (held,) = supervised.begin().attempts
    assert (held.key, held.phase, held.pid, held.fence) == (key, ProcessPhase.RUNNING, pid, fence)
    supervised.send(messages.StopAttempt(key))
    assert supervised.end_of(key).ending == AttemptEnding.STOPPED


def test_more_attempts_are_adopted_than_there_are_descriptors(supervised: Supervised) -> None:
    keys = [supervised.launches("exec sleep 600") for _ in range(80)]
    for key in keys:
        supervised.hears(messages.Launched, key)
    supervised.kill()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
    try:
        holding = supervised.begin()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert {held.phase for held in holding.attempts} == {ProcessPhase.RUNNING}
    for held in holding.attempts:
        os.kill(held.pid, signal.SIGKILL)
    assert {supervised.end_of(key).signal for key in keys} == {signal.SIGKILL}


def test_neither_environment_nor_command_is_written_to_disk(supervised: Supervised) -> None:
    supervised.runs("exec sleep 600 # the-command", env=ENV | {"TOKEN": "do-not-write-this-down"})
    written = b"".join(path.read_bytes() for path in supervised.folder.iterdir() if path.is_file())
    assert b"do-not-write-this-down" not in written
    assert b"the-command" not in written


def test_the_records_do_not_grow_forever(supervised: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_store, "COMPACT_BYTES", 4096)
    kept = attempt_store.AttemptStore(supervised.folder / "other.log")
    one = {AttemptKey(1, 1): Attempt(AttemptKey(1, 1), at=1.0)}
    kept.begin(one)
    for task in range(2, 500):
        kept.note(Attempt(AttemptKey(task, 1), at=1.0))
        kept.forget((AttemptKey(task, 1),))
        kept.write()
        kept.compact(one)
    assert (supervised.folder / "other.log").stat().st_size < 3 * 4096
    assert kept.read() == (one, True)


# --- one at a time


def test_a_second_supervisor_does_not_start_beside_the_first(supervised: Supervised) -> None:
    supervisor_client.start(supervised.folder)
    other = Supervised(supervised.folder)
    other.hang_up()
    assert other.pid == supervised.pid


def test_a_folder_with_a_long_name_works(tmp_path: Path) -> None:
    supervised = Supervised(tmp_path / ("deep" * 30))
    try:
        assert supervised.end_of(supervised.launches("true")).ending == AttemptEnding.SUCCEEDED
    finally:
        supervised.clean_up()


def test_an_unusable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(supervisor_client.SupervisorDoesNotStart, match=r"cannot use the folder .*file/work"):
        supervisor_client.start(tmp_path / "file" / "work")


# --- replaced


def test_replacing_keeps_pid_children_and_exit_codes(supervised: Supervised) -> None:
    runs = supervised.runs("while [ ! -e go ]; do sleep 0.02; done; exit 7")
    waits = supervised.launches("echo $COLOUR; exit 8", wait=True, env=ENV | {"COLOUR": "red"})
    over = supervised.launches("exit 9")
    supervised.end_of(over)
    before = supervised.pid
    supervised.send(messages.Replace())
    with pytest.raises(AssertionError, match="hung up"):
        supervised.hears(messages.NotReplaced)
    assert {held.key for held in supervised.begin().attempts} == {runs, waits, over}
    assert supervised.pid == before
    (supervised.folder / "go").touch()
    supervised.send(messages.Start(waits))
    assert supervised.end_of(runs).exit_code == 7
    assert supervised.end_of(waits).exit_code == 8
    assert supervised.output(waits).read_text() == "red\n"


HANDS_OVER_RUBBISH = """
import sys
from gpuyard.live.agent.supervisor import __main__, attempts

attempts.AttemptManager.handover = lambda self: ([{"key": "no attempt"}], [], [], [])
raise SystemExit(__main__.main(["--folder", sys.argv[1]]))
"""


def test_a_supervisor_stays_if_the_installed_code_cannot_take_over_its_attempts(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", HANDS_OVER_RUBBISH, str(tmp_path / "work")], check=True)
    supervised = Supervised(tmp_path / "work")
    try:
        key = supervised.runs("while [ ! -e go ]; do sleep 0.02; done; exit 7")
        supervised.send(messages.Replace())
        assert "cannot take over" in supervised.hears(messages.NotReplaced).message
        (supervised.folder / "go").touch()
        assert supervised.end_of(key).exit_code == 7
    finally:
        supervised.clean_up()


def test_an_end_during_the_replacement_is_not_missed(supervised: Supervised) -> None:
    keys = [supervised.launches(f"sleep 0.{i}; exit {i}") for i in range(10)]
    supervised.send(messages.Replace())
    with pytest.raises(AssertionError, match="hung up"):
        supervised.hears(messages.NotReplaced)
    supervised.begin()
    until(lambda: all(held.end is not None for held in supervised.holds().values()))
    codes = [held.end.exit_code for held in supervised.holds().values() if isinstance(held.end, messages.ProcessEnded)]
    assert sorted(code for code in codes if code is not None) == list(range(10))
    assert len(keys) == 10


ENDS_BEFORE_ANYBODY_LISTENS = """
import os, sys
from pathlib import Path
from gpuyard.live.agent.supervisor import __main__, paths, proc
from gpuyard.live.agent.supervisor.attempt_record import Attempt
from gpuyard.live.agent.supervisor.attempts import AttemptManager
from gpuyard.live.agent.supervisor.messages import AttemptKey
from gpuyard.live.agent.supervisor.server import SupervisorServer

folder = Path(sys.argv[1])
ready, go = os.pipe()
before = proc.tick()
pid = os.fork()
if pid == 0:
    os.close(go)
    os.read(ready, 1)
    os._exit(7)
holder = AttemptManager(folder)
holder.continue_from([Attempt(AttemptKey(1, 1), 1.0, pid=pid, born=(before, proc.tick()))], [], 0)
os.close(go)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
listener = __main__._listen(folder)
print("up", flush=True)
SupervisorServer(folder, os.open(folder / paths.LOCK, os.O_CREAT), listener, holder, os.getppid()).run()
"""


def test_an_end_while_the_new_code_initializes_is_not_missed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDS_BEFORE_ANYBODY_LISTENS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as resumed:
        assert resumed.stdout is not None
        resumed.stdout.readline()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line, paths.socket_address(tmp_path) as address:
            line.connect(address)
            line.settimeout(10.0)
            line.sendall(messages.frame([messages.Subscribe()]))
            events: list[messages.SupervisorEvent] = []
            frames = messages.Frames()
            try:
                while not any(isinstance(event, messages.ProcessEnded) for event in [*events, *_ends_in(events)]):
                    for body in frames.feed(line.recv(1 << 16)):
                        events += messages.decode_events(body)
            finally:
                resumed.kill()


def _ends_in(events: list[messages.SupervisorEvent]) -> list[messages.ProcessEnded | messages.NotLaunched | None]:
    return [held.end for event in events if isinstance(event, messages.AttemptList) for held in event.attempts]


# --- fenced


def fenced(supervised: Supervised, lease_seconds: float, line: str = "exec sleep 600") -> tuple[AttemptKey, int]:
    supervised.send(messages.Renew(lease_seconds))
    key = supervised.runs(line, fence=True)
    return key, supervised.holds()[key].pid


def test_a_fenced_attempt_ends_when_its_lease_runs_out(supervised: Supervised) -> None:
    other = supervised.runs("exec sleep 600")
    key, _ = fenced(supervised, 0.5, "trap '' TERM; sleep 600")
    assert supervised.end_of(key).ending == AttemptEnding.FENCED
    assert supervised.holds()[other].phase == ProcessPhase.RUNNING


def test_a_renewed_lease_continues(supervised: Supervised) -> None:
    key, pid = fenced(supervised, 0.5)
    supervised.send(messages.Renew(600), messages.Renew(0.1))
    with pytest.raises(AssertionError, match="no ProcessEnded"):
        supervised.end_of(key, seconds=1.0)
    assert is_alive(pid)


def test_no_fenced_attempt_starts_without_a_lease(supervised: Supervised) -> None:
    key = supervised.launches("true", fence=True)
    end = supervised.end_of(key)
    assert (end.ending, "lease" in end.message) == (AttemptEnding.FENCED, True)


def test_a_delayed_old_renewal_renews_nothing(supervised: Supervised) -> None:
    supervised.send(messages.Renew(12.0, made_at=now() - 60.0))
    key = supervised.launches("true", fence=True)
    end = supervised.end_of(key)
    assert (end.ending, "lease" in end.message) == (AttemptEnding.FENCED, True)


def test_a_waiting_part_of_a_gang_is_fenced_too(supervised: Supervised) -> None:
    supervised.send(messages.Renew(0.3))
    key = supervised.launches("true", fence=True, wait=True)
    assert supervised.end_of(key).ending == AttemptEnding.FENCED


def test_the_fence_holds_while_the_supervisor_is_stopped(supervised: Supervised) -> None:
    key, pid = fenced(supervised, 1.0)
    supervised.kill(signal.SIGSTOP)
    try:
        until(lambda: not is_alive(pid))
    finally:
        supervised.kill(signal.SIGCONT)
    assert supervised.end_of(key).ending == AttemptEnding.FENCED


def test_the_fence_holds_after_the_supervisor_was_killed(supervised: Supervised) -> None:
    key, pid = fenced(supervised, 1.0, "setsid -f sh -c 'echo $$; exec sleep 600'; sleep 600")
    away, watcher = supervised.pid_said(key), supervised.watcher()
    supervised.kill()
    until(lambda: not is_alive(pid) and not is_alive(away))
    until(lambda: not is_alive(watcher))
    (held,) = supervised.begin().attempts
    assert isinstance(held.end, messages.ProcessEnded)
    assert held.end.ending == AttemptEnding.FENCED


def test_the_fence_holds_for_processes_that_outlive_their_command_and_supervisor(supervised: Supervised) -> None:
    key, pid = fenced(supervised, 2.0, "setsid -f sh -c 'echo $$; exec sleep 600'; exec sleep 600")
    away, watcher = supervised.pid_said(key), supervised.watcher()
    supervised.kill()
    os.kill(pid, signal.SIGKILL)
    until(lambda: not is_alive(away))
    until(lambda: not is_alive(watcher))


def test_a_new_supervisor_renews_what_a_killed_one_fenced(supervised: Supervised) -> None:
    key, pid = fenced(supervised, 3.0)
    old_watcher = supervised.watcher()
    supervised.kill()
    supervised.begin()
    supervised.send(messages.Renew(600))
    supervised.holds()
    until(lambda: not is_alive(old_watcher))
    assert is_alive(supervised.watcher())
    began = time.monotonic()
    until(lambda: time.monotonic() > began + 3.0)
    assert is_alive(pid)
    assert supervised.holds()[key].phase == ProcessPhase.RUNNING


def test_replacing_keeps_the_fence(supervised: Supervised) -> None:
    key, pid = fenced(supervised, 600)
    old_watcher = supervised.watcher()
    supervised.send(messages.Replace())
    with pytest.raises(AssertionError, match="hung up"):
        supervised.hears(messages.NotReplaced)
    supervised.begin()
    assert supervised.watcher() != old_watcher
    assert not is_alive(old_watcher)
    assert supervised.holds()[key].pid == pid


def test_a_watcher_that_was_killed_is_replaced(supervised: Supervised) -> None:
    key, _ = fenced(supervised, 600)
    first = supervised.watcher()
    os.kill(first, signal.SIGKILL)
    until(lambda: supervised.watchers() and first not in supervised.watchers())
    assert supervised.holds()[key].phase == ProcessPhase.RUNNING


def test_a_part_of_a_gang_does_not_start_after_its_lease(tmp_path: Path) -> None:
    holder = AttemptManager(tmp_path)
    holder.begin()
    key = AttemptKey(1, 1)
    holder.handle([messages.Renew(0.05), Launch(key, shell="true", env=ENV, fence=True, wait=True)])
    lease_end = now() + 0.05
    until(lambda: now() > lease_end)
    holder.handle([messages.Start(key)])
    prepared, end = holder.end_turn()
    holder.close()
    assert isinstance(prepared, messages.Prepared)
    assert isinstance(end, messages.ProcessEnded)
    assert (end.ending, "lease" in end.message) == (AttemptEnding.FENCED, True)


def begin_with_slots(folder: Path, slots: int) -> None:
    """Start a supervisor that can fence only so many."""
    program = (
        "from gpuyard.live.agent.supervisor import __main__, fence; "
        f"fence.SLOTS = {slots}; raise SystemExit(__main__.main(['--folder', {str(folder)!r}]))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_attempts_beyond_the_fence_limit_are_refused_and_all_fenced_ones_are_taken_over(tmp_path: Path) -> None:
    begin_with_slots(tmp_path / "work", 4)
    supervised = Supervised(tmp_path / "work")
    try:
        keys = [supervised.key() for _ in range(6)]
        launches = (Launch(key, shell="exec sleep 600", env=ENV, fence=True) for key in keys)
        supervised.send(messages.Renew(600), *launches)
        for key in keys[4:]:
            assert "cannot fence more" in supervised.hears(messages.NotLaunched, key).message
        supervised.kill()
        begin_with_slots(tmp_path / "work", 4)
        phases = {held.key: held.phase for held in supervised.begin().attempts}
        assert [phases[key] for key in keys[:4]] == [ProcessPhase.RUNNING] * 4
    finally:
        supervised.clean_up()


def test_without_fenced_attempts_there_is_no_watcher(supervised: Supervised) -> None:
    supervised.end_of(supervised.launches("true"))
    assert supervised.watchers() == []


# --- itself


def test_everything_is_ended_even_if_the_list_is_long(supervised: Supervised) -> None:
    key = supervised.runs("exec sleep 600")
    supervised.send(
        *(Launch(AttemptKey(task, 1)) for task in range(1000, 6000))
    )  # they have no command, and their ends stay
    supervised.hears(messages.NotLaunched, AttemptKey(5999, 1))
    assert end_all(supervised.folder) == 1
    assert supervised.end_of(key).ending == AttemptEnding.STOPPED


def test_the_supervisor_imports_nothing_heavy() -> None:
    program = "import sys, gpuyard.live.agent.supervisor.__main__; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    others = {name for name in loaded if name not in sys.stdlib_module_names and not name.startswith("_")}
    assert others <= {"gpuyard", "msgspec", "typing_extensions"}  # the last is msgspec's own choice
    assert not {"asyncio", "grpc", "psutil", "ssl", "yaml"} & set(loaded)


def test_a_terminated_supervisor_leaves_its_tasks_to_the_next(supervised: Supervised) -> None:
    key = supervised.runs("exec sleep 600")
    before = supervised.pid
    supervised.kill(signal.SIGTERM)
    until(lambda: not is_alive(before))
    assert [held.key for held in supervised.begin().attempts] == [key]
    assert supervised.pid != before


def test_an_idle_supervisor_exits_if_no_agent_connects(supervised: Supervised) -> None:
    key = supervised.launches("true")
    supervised.end_of(key)
    supervised.send(messages.ForgetAttempts((key,)))
    supervised.holds()
    supervised.hang_up()
    until(lambda: not is_alive(supervised.pid))


def test_a_full_disk_loses_no_later_line(tmp_path: Path) -> None:
    kept = attempt_store.AttemptStore(tmp_path / "log")
    kept.begin({})
    size = (tmp_path / "log").stat().st_size
    attempts = {AttemptKey(task, 1): Attempt(AttemptKey(task, 1), at=1.0) for task in (1, 2)}
    kept.note(attempts[AttemptKey(1, 1)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            kept.write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    kept.note(attempts[AttemptKey(2, 1)])
    kept.write()
    assert kept.read() == (attempts, True)


def test_a_supervisor_on_a_copied_folder_leaves_the_tasks_of_the_original_alone(tmp_path: Path) -> None:
    first = Supervised(tmp_path / "work")
    second = None
    try:
        first.send(messages.Renew(600.0))
        key = first.runs("exec sleep 600", fence=True)
        shutil.copytree(first.folder, tmp_path / "copy", ignore=lambda *_: [paths.SOCKET])
        second = Supervised(tmp_path / "copy")
        assert second.begin().attempts == ()
        assert paths.mark_of(second.folder) != paths.mark_of(first.folder)
        (held,) = first.begin().attempts
        assert (held.key, held.phase) == (key, messages.ProcessPhase.RUNNING)
    finally:
        if second is not None:
            second.clean_up()
        first.clean_up()
