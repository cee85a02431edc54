"""The contract between agent and supervisor, checked on the real one and on the in-memory one of the fault simulation."""

import asyncio
import os
import random
import signal
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gpuyard.live.agent.supervisor import messages
from gpuyard.live.agent.supervisor.messages import (
    AttemptEnding,
    AttemptKey,
    AttemptList,
    HeldAttempt,
    Launch,
    Launched,
    ProcessEnded,
)
from gpuyard.live.agent.supervisor_client import SupervisorClient
from tests.simulation.faults.event_loop import virtual_loop
from tests.simulation.faults.ledger import Ledger
from tests.simulation.faults.machine import TOKEN, Machine, MemoryProcesses, Work
from tests.simulation.faults.network import Link, Network
from tests.unit.live.agent.supervised import ENV, end_everything_of

E = TypeVar("E", bound=messages.SupervisorMessage)
ONE, TWO = AttemptKey(1, 1), AttemptKey(2, 1)
LONG = 60.0


class Node(ABC):
    """Where attempts run: as processes, or in memory."""

    @abstractmethod
    def run(self, story: Callable[[], Awaitable[None]]) -> None:
        """Let a story happen."""

    @abstractmethod
    def processes(self) -> SupervisorClient:
        """An agent's connection to the supervisor."""

    @abstractmethod
    def launch(self, key: AttemptKey, seconds: float, exit_code: int = 0, **how: Any) -> Launch:
        """The launch of a command that takes so long."""

    @abstractmethod
    def kill(self, supervisor: int) -> None:
        """Kill the supervisor."""


class RealNode(Node):
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, story: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            await story()

        asyncio.run(main())

    def processes(self) -> SupervisorClient:
        return SupervisorClient(self._folder)

    def launch(self, key: AttemptKey, seconds: float, exit_code: int = 0, **how: Any) -> Launch:
        return Launch(key, shell=f"sleep {seconds}; exit {exit_code}", env=ENV, **how)

    def kill(self, supervisor: int) -> None:
        os.kill(supervisor, signal.SIGKILL)


class MemoryNode(Node):
    def __init__(self, folder: Path) -> None:
        self._loop = virtual_loop()
        self._works: dict[str, Work] = {}
        link = Link(Network(self._loop, random.Random(0)))
        ledger = Ledger(self._loop.time, lambda _: None)
        works = self._works.__getitem__
        self.machine = Machine(self._loop, "node-1", 2, link, (), folder, ledger, works, random.Random(0))

    def run(self, story: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            await story()

        self._loop.run(main())

    def processes(self) -> SupervisorClient:
        return MemoryProcesses(self.machine)

    def launch(self, key: AttemptKey, seconds: float, exit_code: int = 0, **how: Any) -> Launch:
        self._works[str(key)] = Work(seconds, exit_code, 0.05)
        return Launch(key, shell="work", env={TOKEN: str(key), "CUDA_VISIBLE_DEVICES": "0"}, **how)

    def kill(self, supervisor: int) -> None:  # noqa: ARG002
        self.machine.kill_supervisor()


@pytest.fixture(params=["real", "memory"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    folder = tmp_path / "work"
    if request.param == "memory":
        yield MemoryNode(folder)
        return
    yield RealNode(folder)
    end_everything_of(folder)


class Listener:
    """Reads events, and keeps those that were not asked for yet."""

    def __init__(self, processes: SupervisorClient) -> None:
        self._events = processes.events()
        self._kept: list[messages.SupervisorEvent] = []

    async def hears(self, kind: type[E], key: AttemptKey | None = None) -> E:
        async with asyncio.timeout(30.0):
            while True:
                for index, event in enumerate(self._kept):
                    if isinstance(event, kind) and key in {None, getattr(event, "key", None)}:
                        del self._kept[index]
                        return event
                self._kept += await anext(self._events)

    async def holds(self, processes: SupervisorClient) -> dict[AttemptKey, HeldAttempt]:
        """What the supervisor says it holds."""
        processes.send(messages.ListAttempts())
        return {held.key: held for held in (await self.hears(AttemptList)).attempts}

    async def close(self) -> None:
        await self._events.aclose()  # type: ignore[attr-defined]


Story = Callable[[Node, SupervisorClient, Listener, AttemptList], Awaitable[None]]


def play(node: Node, story: Story) -> None:
    async def whole() -> None:
        async with node.processes() as processes:
            listener = Listener(processes)
            await story(node, processes, listener, await listener.hears(AttemptList))
            await listener.close()

    node.run(whole)


def test_a_process_starts_and_its_exit_code_is_reported(node: Node) -> None:
    async def story(node: Node, processes: SupervisorClient, listener: Listener, first: AttemptList) -> None:
        assert first.attempts == ()
        processes.send(node.launch(ONE, 0.05), node.launch(TWO, 0.05, exit_code=3))
        assert (await listener.hears(Launched, ONE)).pid > 0
        assert (await listener.hears(ProcessEnded, ONE)).ending is AttemptEnding.SUCCEEDED
        end = await listener.hears(ProcessEnded, TWO)
        assert (end.ending, end.exit_code) == (AttemptEnding.FAILED, 3)

    play(node, story)


def test_a_repeated_launch_starts_nothing(node: Node) -> None:
    async def story(node: Node, processes: SupervisorClient, listener: Listener, _: AttemptList) -> None:
        processes.send(node.launch(ONE, LONG))
        first = await listener.hears(Launched, ONE)
        processes.send(node.launch(ONE, LONG))
        assert await listener.hears(Launched, ONE) == first
        processes.send(messages.StopAttempt(ONE, 0.0))
        end = await listener.hears(ProcessEnded, ONE)
        processes.send(node.launch(ONE, LONG))
        assert await listener.hears(ProcessEnded, ONE) == end

    play(node, story)


def test_a_command_is_resent_until_it_is_answered(node: Node) -> None:
    async def story(node: Node, processes: SupervisorClient, listener: Listener, _: AttemptList) -> None:
        processes.send(node.launch(ONE, LONG))
        assert processes.awaits(ONE)
        await listener.hears(Launched, ONE)
        assert not processes.awaits(ONE)
        processes.send(messages.StopAttempt(ONE, 0.0))
        await listener.hears(ProcessEnded, ONE)

    play(node, story)


def test_a_process_that_is_asked_to_stop_ends_as_stopped(node: Node) -> None:
    async def story(node: Node, processes: SupervisorClient, listener: Listener, _: AttemptList) -> None:
        processes.send(node.launch(ONE, LONG))
        await listener.hears(Launched, ONE)
        processes.send(messages.StopAttempt(ONE, 5.0))
        assert (await listener.hears(ProcessEnded, ONE)).ending is AttemptEnding.STOPPED

    play(node, story)


def test_an_end_is_kept_until_it_is_forgotten(node: Node) -> None:
    async def story(node: Node, processes: SupervisorClient, listener: Listener, _: AttemptList) -> None:
        processes.send(node.launch(ONE, 0.05))
        end = await listener.hears(ProcessEnded, ONE)
        assert (await listener.holds(processes))[ONE].end == end
        processes.send(messages.ForgetAttempts((ONE,)))
        assert await listener.holds(processes) == {}
        processes.send(messages.StopAttempt(ONE))
        await listener.hears(messages.NotHeld, ONE)

    play(node, story)


def test_a_part_of_a_gang_waits_for_its_start(node: Node) -> None:
    async def story(node: Node, processes: SupervisorClient, listener: Listener, _: AttemptList) -> None:
        processes.send(node.launch(ONE, LONG, wait=True))
        assert (await listener.hears(messages.Prepared, ONE)).port > 0
        assert (await listener.holds(processes))[ONE].phase is messages.ProcessPhase.WAITING
        processes.send(messages.Start(ONE, {"RANK": "0"}))
        await listener.hears(Launched, ONE)
        processes.send(messages.StopAttempt(ONE, 0.0))
        await listener.hears(ProcessEnded, ONE)

    play(node, story)


def test_a_suspended_process_continues_when_it_is_resumed(node: Node) -> None:
    async def story(node: Node, processes: SupervisorClient, listener: Listener, _: AttemptList) -> None:
        processes.send(node.launch(ONE, LONG))
        await listener.hears(Launched, ONE)
        processes.send(messages.Suspend(ONE))
        await listener.hears(messages.SuspendedNow, ONE)
        assert (await listener.holds(processes))[ONE].phase is messages.ProcessPhase.SUSPENDED
        processes.send(messages.Resume(ONE))
        await listener.hears(messages.ResumedNow, ONE)
        assert (await listener.holds(processes))[ONE].phase is messages.ProcessPhase.RUNNING
        processes.send(messages.StopAttempt(ONE, 0.0))
        await listener.hears(ProcessEnded, ONE)

    play(node, story)


def test_no_fenced_process_runs_without_a_lease(node: Node) -> None:
    async def story(node: Node, processes: SupervisorClient, listener: Listener, _: AttemptList) -> None:
        processes.send(node.launch(ONE, LONG, fence=True))
        assert (await listener.hears(ProcessEnded, ONE)).ending is AttemptEnding.FENCED
        processes.send(messages.Renew(1.0), node.launch(TWO, LONG, fence=True))
        await listener.hears(Launched, TWO)
        assert (await listener.hears(ProcessEnded, TWO)).ending is AttemptEnding.FENCED

    play(node, story)


def test_a_long_lease_can_be_shortened(node: Node) -> None:
    """Also by words that overtake the renewal: the agent that made that one is gone."""

    async def story(node: Node, processes: SupervisorClient, listener: Listener, _: AttemptList) -> None:
        processes.send(messages.Renew(600.0), node.launch(ONE, LONG, fence=True))
        await listener.hears(Launched, ONE)
        renewed = messages.Renew(600.0, made_at=0.0)
        processes.send(messages.Shorten(0.3), renewed)
        assert (await listener.hears(ProcessEnded, ONE)).ending is AttemptEnding.FENCED
        processes.send(messages.Shorten(600.0), node.launch(TWO, LONG, fence=True))
        assert (await listener.hears(ProcessEnded, TWO)).ending is AttemptEnding.FENCED, "it was not renewed"

    play(node, story)


def test_a_timeout_ends_a_process(node: Node) -> None:
    async def story(node: Node, processes: SupervisorClient, listener: Listener, _: AttemptList) -> None:
        processes.send(node.launch(ONE, LONG, timeout_seconds=0.2, grace_seconds=1.0))
        assert (await listener.hears(ProcessEnded, ONE)).ending is AttemptEnding.TIMED_OUT

    play(node, story)


def test_an_agent_that_reconnects_is_told_everything(node: Node) -> None:
    async def leaves() -> None:
        async with node.processes() as processes:
            listener = Listener(processes)
            await listener.hears(AttemptList)
            processes.send(node.launch(ONE, 0.05, exit_code=4), node.launch(TWO, LONG))
            await listener.hears(Launched, TWO)
            await listener.hears(ProcessEnded, ONE)
            await listener.close()

    async def story(_: Node, processes: SupervisorClient, listener: Listener, first: AttemptList) -> None:
        held = {it.key: it for it in first.attempts}
        end = held[ONE].end
        assert isinstance(end, ProcessEnded)
        assert end.exit_code == 4
        assert held[TWO].phase is messages.ProcessPhase.RUNNING
        processes.send(messages.StopAttempt(TWO, 0.0))
        await listener.hears(ProcessEnded, TWO)

    node.run(leaves)
    play(node, story)


def test_a_client_survives_a_killed_supervisor(node: Node) -> None:
    async def story(node: Node, processes: SupervisorClient, listener: Listener, first: AttemptList) -> None:
        processes.send(node.launch(ONE, 0.05, exit_code=4), node.launch(TWO, LONG))
        await listener.hears(Launched, TWO)
        await listener.hears(ProcessEnded, ONE)
        node.kill(first.pid)
        held = {it.key: it for it in (await listener.hears(AttemptList)).attempts}
        assert isinstance(held[ONE].end, ProcessEnded)
        assert held[TWO].phase is messages.ProcessPhase.RUNNING
        processes.send(node.launch(TWO, LONG))
        await listener.hears(Launched, TWO)
        processes.send(messages.StopAttempt(TWO, 0.0))
        assert (await listener.hears(ProcessEnded, TWO)).ending is AttemptEnding.STOPPED

    play(node, story)
