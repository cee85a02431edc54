"""The death of a supervisor alone loses no exit code: its keeper learns how the tasks end."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from gpuyard.live.agent.supervisor import launcher, messages, paths, proc
from gpuyard.live.agent.supervisor.exit_records import ExitRecords
from gpuyard.live.agent.supervisor.messages import AttemptEnding, AttemptKey, AttemptList, Launch, ProcessEnded
from gpuyard.live.agent.supervisor.server import DRAIN_SECONDS
from gpuyard.live.agent.supervisor_client import SupervisorClient
from tests.unit.live.agent.small_disk import mounted
from tests.unit.live.agent.supervised import ENV, Supervised, is_alive, name_of, parent_of, until
from tests.unit.live.agent.test_supervisor_client import folder as folder  # noqa: PLC0414 - a fixture is used by its name

pytestmark = pytest.mark.slow  # left out of `make quick`

KILLS = 8


def test_a_task_that_ends_after_its_supervisor_was_killed_has_its_exit_code(supervised: Supervised) -> None:
    key = supervised.runs("while [ ! -e go ]; do sleep 0.02; done; exit 7")
    supervised.kill()
    supervised.begin()
    (supervised.folder / "go").touch()
    end = supervised.end_of(key)
    assert (end.ending, end.exit_code, end.message) == (AttemptEnding.FAILED, 7, "")


@pytest.mark.parametrize("cgroup", [False, True])
def test_a_task_that_ended_while_there_was_no_supervisor_has_its_exit_code(
    supervised: Supervised, cgroup: bool
) -> None:
    good = supervised.runs("while [ ! -e go ]; do sleep 0.02; done", cgroup=cgroup)
    bad = supervised.runs("while [ ! -e go ]; do sleep 0.02; done; kill -SEGV $$", cgroup=cgroup)
    pids = [held.pid for held in supervised.holds().values()]
    supervised.kill()
    (supervised.folder / "go").touch()
    until(lambda: not any(proc.process(pid) for pid in pids))
    ends = {held.key: held.end for held in supervised.begin().attempts if isinstance(held.end, ProcessEnded)}
    assert (ends[good].ending, ends[good].exit_code) == (AttemptEnding.SUCCEEDED, 0)
    assert (ends[bad].ending, ends[bad].signal) == (AttemptEnding.FAILED, signal.SIGSEGV)


def test_a_task_that_ended_while_its_supervisor_was_stopped_has_its_exit_code(supervised: Supervised) -> None:
    key = supervised.runs("while [ ! -e go ]; do sleep 0.02; done; exit 7")
    pid = supervised.holds()[key].pid
    supervised.kill(signal.SIGSTOP)
    (supervised.folder / "go").touch()
    until(lambda: not is_alive(pid))  # a zombie: no process has waited for it
    supervised.kill()
    (held,) = supervised.begin().attempts
    if held.end is None:
        assert supervised.end_of(key).exit_code == 7
    else:
        assert isinstance(held.end, ProcessEnded)
        assert held.end.exit_code == 7


@pytest.mark.parametrize("code", [0, 127])
def test_a_command_with_the_name_of_a_starter_is_known_to_have_run(supervised: Supervised, code: int) -> None:
    wait = "while [ ! -e go ]; do sleep 0.02; done"
    key = supervised.runs(f"printf {launcher.NAME} > /proc/$$/comm; echo x >> ran; {wait}; exit {code}")
    pid = supervised.holds()[key].pid
    until(lambda: name_of(pid) == launcher.NAME)
    supervised.kill()
    (supervised.folder / "go").touch()
    until(lambda: proc.process(pid) is None)
    (held,) = supervised.begin().attempts
    assert isinstance(held.end, ProcessEnded)
    assert (held.end.exit_code, held.end.message) == (code, "")


def test_a_task_survives_several_supervisors_and_a_replacement(supervised: Supervised) -> None:
    first = supervised.runs("while [ ! -e go ]; do sleep 0.02; done; exit 7")
    supervised.kill()
    supervised.begin()
    second = supervised.runs("while [ ! -e go ]; do sleep 0.02; done; exit 8")
    supervised.send(messages.Replace())
    with pytest.raises(AssertionError, match="hung up"):
        supervised.hears(messages.NotReplaced)
    supervised.begin()
    supervised.kill()
    supervised.begin()
    (supervised.folder / "go").touch()
    assert supervised.end_of(first).exit_code == 7
    assert supervised.end_of(second).exit_code == 8


def test_an_exit_code_a_keeper_could_not_write_is_written_when_there_is_space(tmp_path: Path) -> None:
    go = tmp_path / "go"
    with mounted(tmp_path / "disk") as disk:
        supervised = Supervised(disk.folder / "work")
        try:
            key = supervised.runs(f"while [ ! -e {go} ]; do sleep 0.02; done; exit 7")
            pid = supervised.holds()[key].pid
            disk.fill()
            supervised.kill()
            supervised.begin()
            go.touch()
            until(lambda: not is_alive(pid))
            disk.make_room()
            assert supervised.end_of(key).exit_code == 7
        finally:
            supervised.clean_up()


def test_a_keeper_exits_when_nothing_is_left_to_hold(supervised: Supervised) -> None:
    keeper = supervised.keeper()
    key = supervised.runs("exec sleep 600")
    supervised.kill()
    supervised.begin()
    assert supervised.keeper() != keeper
    os.kill(keeper, signal.SIGTERM)
    assert is_alive(keeper)
    supervised.send(messages.StopAttempt(key))
    supervised.end_of(key)
    until(lambda: not is_alive(keeper))
    assert not (supervised.folder / "exits.log").exists()


def is_replaced(supervised: Supervised, dead: int) -> None:
    """Wait until the supervisor has become a keeper, and start the next one, as an agent does."""
    before = supervised.pid
    os.kill(dead, signal.SIGKILL)
    with suppress(AssertionError):  # it hangs up
        supervised.hears(messages.NotReplaced)
    until(lambda: name_of(before) in {"gpuyard-keeper", ""})
    supervised.begin()
    assert supervised.pid != before
    assert supervised.keeper() not in {dead, before}


def test_a_supervisor_whose_keeper_was_killed_gives_its_tasks_a_new_one(supervised: Supervised) -> None:
    first = supervised.runs("while [ ! -e go ]; do sleep 0.02; done; exit 7")
    supervised.send(messages.Ping())
    supervised.hears(messages.Pong)
    is_replaced(supervised, supervised.keeper())
    second = supervised.runs("while [ ! -e go ]; do sleep 0.02; done; exit 8")
    supervised.kill()
    (supervised.folder / "go").touch()
    ends = {held.key: held.end for held in supervised.begin().attempts}
    for key, code in ((first, 7), (second, 8)):
        end = ends[key] or supervised.end_of(key)
        assert isinstance(end, ProcessEnded)
        assert (end.exit_code, end.message) == (code, "")


def test_a_supervisor_whose_keeper_was_killed_continues_until_an_agent_connects(supervised: Supervised) -> None:
    key = supervised.runs("while [ ! -e go ]; do sleep 0.02; done; exit 7")
    os.kill(supervised.keeper(), signal.SIGKILL)
    until(lambda: name_of(parent_of(supervised.pid)) != "gpuyard-keeper")
    other = supervised.runs("exit 3")  # no agent, which would have pinged: it goes on as it is
    assert supervised.end_of(other).exit_code == 3
    supervised.send(messages.Ping())
    before = supervised.pid
    until(lambda: name_of(before) == "gpuyard-keeper")
    supervised.begin()
    (supervised.folder / "go").touch()
    assert supervised.end_of(key).exit_code == 7


def test_a_supervisor_without_a_keeper_continues_while_the_interpreter_is_missing(
    upgraded: Supervised, interpreter: Path, tmp_path: Path
) -> None:
    def used() -> float:
        fields = Path(f"/proc/{upgraded.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    key = upgraded.runs("while [ ! -e go ]; do sleep 0.05; done; exit 7")
    upgraded.send(messages.Ping())
    upgraded.hears(messages.Pong)
    keeper, before, used_before = upgraded.keeper(), upgraded.pid, used()
    away = interpreter.rename(tmp_path / "away")
    os.kill(keeper, signal.SIGKILL)
    until(lambda: parent_of(before) != keeper)
    with pytest.raises(AssertionError, match="no NotReplaced"):
        upgraded.hears(messages.NotReplaced, seconds=DRAIN_SECONDS + 1)
    upgraded.send(messages.Ping())
    upgraded.hears(messages.Pong)
    assert upgraded.end_of(upgraded.launches("exit 3")).exit_code == 3
    assert used() - used_before < 0.5
    away.rename(interpreter)
    until(lambda: name_of(before) == "gpuyard-keeper")
    upgraded.begin()
    (upgraded.folder / "go").touch()
    assert upgraded.end_of(key).exit_code == 7


@pytest.mark.slow
def test_an_agent_whose_supervisor_loses_its_keeper_loses_no_exit_code(folder: Path) -> None:
    """With the agent's own connection: launches continue while keepers are killed, and then the supervisor."""

    async def story() -> dict[AttemptKey, ProcessEnded]:
        ends: dict[AttemptKey, ProcessEnded] = {}
        pid, seen = 0, set[int]()
        async with SupervisorClient(folder) as processes, asyncio.timeout(60):
            for number in range(1, 25):
                wait = "" if number % 4 == 0 else "while [ ! -e go ]; do sleep 0.05; done; "
                line = f"{wait}exit {number % 7}"
                processes.send(Launch(AttemptKey(number, 1), shell=line, env=ENV, cwd=str(folder)))
            async for events in processes.events():
                for event in events:
                    held = event.attempts if isinstance(event, AttemptList) else ()
                    for it in (event, *(one.end for one in held)):
                        if isinstance(it, ProcessEnded):
                            ends[it.key] = it
                    if isinstance(event, AttemptList):
                        pid = event.pid
                        processes.ping()
                    if isinstance(event, messages.Pong) and pid not in seen and len(seen) < 4:
                        seen.add(pid)
                        while name_of(parent_of(pid)) != "gpuyard-keeper":  # its name changes a moment later
                            await asyncio.sleep(0.01)
                        if len(seen) < 4:
                            os.kill(parent_of(pid), signal.SIGKILL)
                        else:
                            os.kill(pid, signal.SIGKILL)
                            (folder / "go").touch()
                if len(ends) == 24:
                    break
        assert len(seen) == 4
        return ends

    for key, end in asyncio.run(story()).items():
        if end.ending != AttemptEnding.LOST:  # it had not begun
            assert (end.exit_code, end.message) == (key.task % 7, "")
        else:
            assert end.message == "Its supervisor was killed while it started."


def test_a_keeper_is_small(supervised: Supervised) -> None:
    status = Path(f"/proc/{supervised.keeper()}/status").read_text().split()
    assert int(status[status.index("RssAnon:") + 1]) < 6_000
    assert name_of(supervised.keeper()) == "gpuyard-keeper"


def test_an_exit_reaped_just_before_the_kill_is_known(tmp_path: Path) -> None:
    before = ExitRecords(tmp_path)
    before.begin()
    before.note(70, (5, 6), exited=True, status=3)
    before.note(71, (5, 6), exited=False, status=9)
    with (tmp_path / paths.REAPED).open("ab") as file:
        file.write(b"72 5 0 ")  # torn by the kill
    after = ExitRecords(tmp_path)
    after.begin()
    found = [after.find(pid, (5, 6)) for pid in (70, 71, 72)]
    assert [it and (it.exit_code, it.signal) for it in found] == [(3, None), (None, 9), None]
    assert after.find(70, (7, 8)) is None


async def live(folder: Path) -> tuple[dict[AttemptKey, ProcessEnded], int]:
    """A stream of short tasks, while the supervisor is killed again and again."""
    ends: dict[AttemptKey, ProcessEnded] = {}
    supervisor = kills = launched = 0

    async def launch(processes: SupervisorClient) -> None:
        nonlocal launched
        while kills < KILLS:
            for _ in range(4):
                launched += 1
                line = (
                    f"echo x >> ran.{launched}; sleep 0.0{launched % 5}; echo x >> over.{launched}; exit {launched % 7}"
                )
                processes.send(Launch(AttemptKey(launched, 1), shell=line, env=ENV, cwd=str(folder)))
            await asyncio.sleep(0.02)

    async def kill() -> None:
        nonlocal kills
        dead = 0
        while kills < KILLS:
            await asyncio.sleep(0.05 + 0.013 * (kills % 7))
            if supervisor and supervisor != dead:
                with suppress(ProcessLookupError):
                    os.kill(supervisor, signal.SIGKILL)
                    dead = supervisor
                    kills += 1

    async with SupervisorClient(folder) as processes, asyncio.timeout(100):
        outside = asyncio.gather(launch(processes), kill())
        async for events in processes.events():
            for event in events:
                found = [held.end for held in event.attempts] if isinstance(event, AttemptList) else [event]
                if isinstance(event, AttemptList):
                    supervisor = event.pid
                for end in found:
                    if isinstance(end, ProcessEnded):
                        assert ends.setdefault(end.key, end) == end, "an end was told in two ways"
            if kills >= KILLS and len(ends) >= launched:
                break
        await outside
    return ends, launched


@pytest.mark.slow
def test_eight_kills_under_short_tasks_make_no_finished_task_run_again(folder: Path) -> None:
    ends, launched = asyncio.run(live(folder))
    assert len(ends) == launched
    for key, end in ends.items():
        began, finished = ((folder / f"{name}.{key.task}").exists() for name in ("ran", "over"))
        if end.ending == AttemptEnding.LOST:  # it never ran: the scheduler may run it elsewhere
            assert (began, finished) == (False, False), end
        else:
            assert (folder / f"ran.{key.task}").read_text() == "x\n"
            assert (end.exit_code, end.signal) == (key.task % 7, None), end
