"""The agent's connection to its supervisor: found or started, repaired, and nothing lost."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.live.agent.supervisor import messages, paths
from gpuyard.live.agent.supervisor.messages import (
    AttemptEnding,
    AttemptKey,
    AttemptList,
    Launch,
    ProcessEnded,
    SupervisorCommand,
    SupervisorEvent,
)
from gpuyard.live.agent.supervisor_client import SupervisorClient, SupervisorDoesNotStart
from tests.unit.live.agent.supervised import ENV, end_everything_of, is_alive

PATIENCE_SECONDS = 30.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "work"
    yield folder
    end_everything_of(folder)


class Listener:
    """Reads events and keeps those of the batch that were not asked for yet."""

    def __init__(self, processes: SupervisorClient) -> None:
        self._events = processes.events()
        self._kept: list[SupervisorEvent] = []

    async def hears(self, kind: type[SupervisorEvent], key: AttemptKey | None = None) -> SupervisorEvent:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                for index, event in enumerate(self._kept):
                    if isinstance(event, kind) and key in {None, getattr(event, "key", None)}:
                        return self._kept.pop(index)
                self._kept += await anext(self._events)

    async def close(self) -> None:
        await self._events.aclose()  # type: ignore[attr-defined]


def test_a_supervisor_is_started_if_there_is_none_and_receives_commands(folder: Path) -> None:
    async def story() -> None:
        async with SupervisorClient(folder) as processes:
            listener = Listener(processes)
            first = await listener.hears(AttemptList)
            assert isinstance(first, AttemptList)
            assert first.attempts == ()
            processes.send(
                Launch(AttemptKey(1, 1), argv=("true",), env=ENV), Launch(AttemptKey(2, 1), shell="exit 3", env=ENV)
            )
            ends = [await listener.hears(ProcessEnded, AttemptKey(task, 1)) for task in (1, 2)]
            assert [end.exit_code for end in ends if isinstance(end, ProcessEnded)] == [0, 3]
            await listener.close()

    asyncio.run(story())


def test_an_agent_that_reconnects_gets_all_ends(folder: Path) -> None:
    async def first_life() -> int:
        async with SupervisorClient(folder) as processes:
            listener = Listener(processes)
            holding = await listener.hears(AttemptList)
            processes.send(
                *(Launch(AttemptKey(task, 1), shell=f"sleep 0.2; exit {task}", env=ENV) for task in range(1, 6))
            )
            await listener.hears(messages.Launched, AttemptKey(5, 1))
            await listener.close()
            assert isinstance(holding, AttemptList)
            return holding.pid

    async def second_life() -> tuple[int, dict[AttemptKey, int | None]]:
        async with SupervisorClient(folder) as processes:
            listener = Listener(processes)
            holding = await listener.hears(AttemptList)
            assert isinstance(holding, AttemptList)
            codes = {}
            for held in holding.attempts:
                end = held.end or await listener.hears(ProcessEnded, held.key)
                assert isinstance(end, ProcessEnded)
                codes[held.key] = end.exit_code
            await listener.close()
            return holding.pid, codes

    pid = asyncio.run(first_life())
    assert asyncio.run(second_life()) == (pid, {AttemptKey(task, 1): task for task in range(1, 6)})


def test_a_killed_supervisor_is_restarted_and_reports_what_it_found(folder: Path) -> None:
    async def story() -> None:
        async with SupervisorClient(folder) as processes:
            listener = Listener(processes)
            before = await listener.hears(AttemptList)
            assert isinstance(before, AttemptList)
            processes.send(Launch(AttemptKey(1, 1), shell="exec sleep 600", env=ENV))
            await listener.hears(messages.Launched, AttemptKey(1, 1))
            os.kill(before.pid, signal.SIGKILL)
            after = await listener.hears(AttemptList)
            assert isinstance(after, AttemptList)
            assert after.pid != before.pid
            assert [held.key for held in after.attempts] == [AttemptKey(1, 1)]
            processes.send(messages.StopAttempt(AttemptKey(1, 1)))
            end = await listener.hears(ProcessEnded, AttemptKey(1, 1))
            assert isinstance(end, ProcessEnded)
            assert end.ending == AttemptEnding.STOPPED
            await listener.close()

    asyncio.run(story())


def test_a_supervisor_killed_while_it_starts_is_restarted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "killed"
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\n[ -e {killed} ] && exec {sys.executable} "$@"\n: > {killed}\nkill -9 $$\n')
    interpreter.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(interpreter))

    async def story() -> None:
        async with SupervisorClient(folder) as processes:
            listener = Listener(processes)
            await listener.hears(AttemptList)
            await listener.close()

    asyncio.run(story())
    assert killed.exists()


def test_unanswered_commands_are_sent_again(folder: Path) -> None:
    async def story() -> None:
        async with SupervisorClient(folder) as processes:
            listener = Listener(processes)
            before = await listener.hears(AttemptList)
            assert isinstance(before, AttemptList)
            os.kill(before.pid, signal.SIGSTOP)  # so that it hears nothing of what comes now
            processes.send(*(Launch(AttemptKey(task, 1), argv=("true",), env=ENV) for task in range(1, 51)))
            await asyncio.sleep(0)
            os.kill(before.pid, signal.SIGKILL)
            for task in range(1, 51):
                end = await listener.hears(ProcessEnded, AttemptKey(task, 1))
                assert isinstance(end, ProcessEnded)
                assert end.ending == AttemptEnding.SUCCEEDED
            await listener.close()

    asyncio.run(story())


def test_an_unacknowledged_timeout_is_sent_again(folder: Path) -> None:
    async def story() -> None:
        async with SupervisorClient(folder) as processes:
            listener = Listener(processes)
            before = await listener.hears(AttemptList)
            assert isinstance(before, AttemptList)
            processes.send(Launch(AttemptKey(1, 1), shell="exec sleep 600", env=ENV, timeout_seconds=600.0))
            await listener.hears(messages.Launched, AttemptKey(1, 1))
            os.kill(before.pid, signal.SIGSTOP)  # so that it hears nothing of what comes now
            processes.send(messages.Extend(AttemptKey(1, 1), 0.2))
            await asyncio.sleep(0)
            os.kill(before.pid, signal.SIGKILL)
            end = await listener.hears(ProcessEnded, AttemptKey(1, 1))
            assert isinstance(end, ProcessEnded)
            assert end.ending == AttemptEnding.TIMED_OUT
            await listener.close()

    asyncio.run(story())


@pytest.mark.slow
def test_hundreds_of_launches_with_huge_environments_are_delivered(folder: Path) -> None:
    env = ENV | {f"LONG_{number}": "x" * 100_000 for number in range(9)}

    async def story() -> None:
        async with SupervisorClient(folder) as processes:
            listener = Listener(processes)
            processes.send(*(Launch(AttemptKey(task, 1), argv=("true",), env=env) for task in range(1, 301)))
            for task in range(1, 301):
                await listener.hears(ProcessEnded, AttemptKey(task, 1))
            await listener.close()

    asyncio.run(story())


def test_a_launch_whose_end_was_forgotten_is_not_sent_again(folder: Path) -> None:
    key = AttemptKey(1, 1)
    over = messages.HeldAttempt(
        key, messages.ProcessPhase.ENDED, 1.0, end=ProcessEnded(key, AttemptEnding.SUCCEEDED, 0, None, 1.0)
    )
    lives: list[list[SupervisorCommand]] = []
    over_and_gone = asyncio.Semaphore(0)

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A supervisor that says what it holds, answers nothing, and dies of `Replace`."""
        life: list[SupervisorCommand] = []
        lives.append(life)
        writer.write(messages.frame([AttemptList((over,) if len(lives) == 2 else (), 1, "")]))
        frames = messages.Frames()
        while messages.Replace() not in life and (data := await reader.read(1 << 16)):
            life += [command for body in frames.feed(data) for command in messages.decode_commands(body)]
        writer.close()
        await writer.wait_closed()
        over_and_gone.release()

    async def story() -> None:
        folder.mkdir()
        async with await asyncio.start_unix_server(play, folder / paths.SOCKET):
            async with SupervisorClient(folder) as processes:
                listener = Listener(processes)
                for commands in ([Launch(key, argv=("true",), env=ENV)], [messages.ForgetAttempts((key,))], []):
                    await listener.hears(AttemptList)
                    processes.send(*commands, messages.Replace())
                await listener.hears(AttemptList)
                await listener.close()
            for _ in lives:
                await over_and_gone.acquire()

    asyncio.run(story())
    assert [any(isinstance(command, Launch) for command in life) for life in lives] == [True, True, False, False]


def test_a_replaced_supervisor_is_found_again(folder: Path) -> None:
    async def story() -> None:
        async with SupervisorClient(folder) as processes:
            listener = Listener(processes)
            before = await listener.hears(AttemptList)
            assert isinstance(before, AttemptList)
            processes.send(Launch(AttemptKey(1, 1), shell="sleep 0.5; exit 4", env=ENV), messages.Replace())
            after = await listener.hears(AttemptList)
            assert isinstance(after, AttemptList)
            assert after.pid == before.pid
            (held,) = after.attempts
            end = held.end or await listener.hears(ProcessEnded, AttemptKey(1, 1))
            assert isinstance(end, ProcessEnded)
            assert end.exit_code == 4
            await listener.close()

    asyncio.run(story())


def test_the_supervisor_continues_when_the_agent_disconnects(folder: Path) -> None:
    async def story() -> int:
        async with SupervisorClient(folder) as processes:
            listener = Listener(processes)
            holding = await listener.hears(AttemptList)
            processes.send(Launch(AttemptKey(1, 1), shell="exec sleep 600", env=ENV))
            await listener.close()
            assert isinstance(holding, AttemptList)
            return holding.pid

    assert is_alive(asyncio.run(story()))


def test_a_path_that_is_not_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    async def story() -> None:
        async with SupervisorClient(tmp_path / "file"):
            raise AssertionError("it cannot be entered")

    with pytest.raises(SupervisorDoesNotStart, match=r"cannot use the folder .*file"):
        asyncio.run(story())
