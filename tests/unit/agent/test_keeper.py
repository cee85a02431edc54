"""The death of a supervisor alone costs no exit code: its keeper learns how the tasks end."""

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from gpuyard.agent.processes import Processes
from gpuyard.agent.supervisor import messages as said
from gpuyard.agent.supervisor import place, proc
from gpuyard.agent.supervisor.exits import Exits
from gpuyard.agent.supervisor.messages import Ended, Ending, Holding, Key, Launch
from tests.unit.agent.small_disk import mounted
from tests.unit.agent.supervised import ENV, Supervised, is_alive, name_of, until
from tests.unit.agent.test_processes import folder as folder  # noqa: PLC0414 - a fixture is used by its name

KILLS = 20


def test_a_task_that_ends_after_its_supervisor_was_killed_has_its_exit_code(supervised: Supervised) -> None:
    key = supervised.runs("while [ ! -e go ]; do sleep 0.02; done; exit 7")
    supervised.kill()
    supervised.begin()
    (supervised.folder / "go").touch()
    end = supervised.end_of(key)
    assert (end.ending, end.exit_code, end.message) == (Ending.FAILED, 7, "")


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
    ends = {held.key: held.end for held in supervised.begin().attempts if isinstance(held.end, Ended)}
    assert (ends[good].ending, ends[good].exit_code) == (Ending.SUCCEEDED, 0)
    assert (ends[bad].ending, ends[bad].signal) == (Ending.FAILED, signal.SIGSEGV)


def test_a_task_that_ended_while_its_supervisor_was_stopped_has_its_exit_code(supervised: Supervised) -> None:
    key = supervised.runs("while [ ! -e go ]; do sleep 0.02; done; exit 7")
    pid = supervised.holds()[key].pid
    supervised.kill(signal.SIGSTOP)
    (supervised.folder / "go").touch()
    until(lambda: not is_alive(pid))  # a zombie: nobody has waited for it
    supervised.kill()
    (held,) = supervised.begin().attempts
    if held.end is None:
        assert supervised.end_of(key).exit_code == 7
    else:
        assert isinstance(held.end, Ended)
        assert held.end.exit_code == 7


def test_a_task_outlives_several_supervisors_and_a_replacement(supervised: Supervised) -> None:
    first = supervised.runs("while [ ! -e go ]; do sleep 0.02; done; exit 7")
    supervised.kill()
    supervised.begin()
    second = supervised.runs("while [ ! -e go ]; do sleep 0.02; done; exit 8")
    supervised.send(said.Replace())
    with pytest.raises(AssertionError, match="hung up"):
        supervised.hears(said.NotReplaced)
    supervised.begin()
    supervised.kill()
    supervised.begin()
    (supervised.folder / "go").touch()
    assert supervised.end_of(first).exit_code == 7
    assert supervised.end_of(second).exit_code == 8


def test_what_a_keeper_could_not_write_is_written_when_there_is_room(tmp_path: Path) -> None:
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


def test_a_keeper_ends_when_nothing_is_left_to_hold(supervised: Supervised) -> None:
    keeper = supervised.keeper()
    key = supervised.runs("exec sleep 600")
    supervised.kill()
    supervised.begin()
    assert supervised.keeper() != keeper
    os.kill(keeper, signal.SIGTERM)
    assert is_alive(keeper)
    supervised.send(said.Stop(key))
    supervised.end_of(key)
    until(lambda: not is_alive(keeper))
    assert not (supervised.folder / "exits.log").exists()


def test_a_keeper_is_small(supervised: Supervised) -> None:
    status = Path(f"/proc/{supervised.keeper()}/status").read_text().split()
    assert int(status[status.index("RssAnon:") + 1]) < 6_000
    assert name_of(supervised.keeper()) == "gpuyard-keeper"


def test_what_was_reaped_just_before_the_kill_is_known(tmp_path: Path) -> None:
    before = Exits(tmp_path)
    before.begin()
    before.note(70, (5, 6), exited=True, status=3)
    before.note(71, (5, 6), exited=False, status=9)
    with (tmp_path / place.REAPED).open("ab") as file:
        file.write(b"72 5 0 ")  # torn by the kill
    after = Exits(tmp_path)
    after.begin()
    found = [after.find(pid, (5, 6)) for pid in (70, 71, 72)]
    assert [it and (it.exit_code, it.signal) for it in found] == [(3, None), (None, 9), None]
    assert after.find(70, (7, 8)) is None


async def live(folder: Path) -> tuple[dict[Key, Ended], int]:
    """A stream of short tasks, while the supervisor is killed again and again."""
    ends: dict[Key, Ended] = {}
    supervisor = kills = launched = 0

    async def launch(processes: Processes) -> None:
        nonlocal launched
        while kills < KILLS:
            for _ in range(4):
                launched += 1
                line = (
                    f"echo x >> ran.{launched}; sleep 0.0{launched % 5}; echo x >> over.{launched}; exit {launched % 7}"
                )
                processes.send(Launch(Key(launched, 1), shell=line, env=ENV, cwd=str(folder)))
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

    async with Processes(folder) as processes, asyncio.timeout(100):
        outside = asyncio.gather(launch(processes), kill())
        async for events in processes.events():
            for event in events:
                found = [held.end for held in event.attempts] if isinstance(event, Holding) else [event]
                if isinstance(event, Holding):
                    supervisor = event.pid
                for end in found:
                    if isinstance(end, Ended):
                        assert ends.setdefault(end.key, end) == end, "an end was told in two ways"
            if kills >= KILLS and len(ends) >= launched:
                break
        await outside
    return ends, launched


def test_twenty_kills_under_short_tasks_make_no_finished_task_run_again(folder: Path) -> None:
    ends, launched = asyncio.run(live(folder))
    assert len(ends) == launched
    for key, end in ends.items():
        began, finished = ((folder / f"{name}.{key.task}").exists() for name in ("ran", "over"))
        if end.ending == Ending.LOST:  # it never ran: the scheduler may run it elsewhere
            assert (began, finished) == (False, False), end
        else:
            assert (folder / f"ran.{key.task}").read_text() == "x\n"
            assert (end.exit_code, end.signal) == (key.task % 7, None), end
