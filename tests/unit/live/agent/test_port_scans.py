"""Searches for listening ports: shared by those that wait, and few at once."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from gpuyard.live.agent import channels, listening_ports
from gpuyard.live.agent.listening_ports import ListeningPort
from gpuyard.live.agent.supervisor.messages import AttemptKey


class Searches:
    """Takes the place of the kernel's tables: a search lasts until it is let go."""

    def __init__(self) -> None:
        self.begun: list[AttemptKey] = []
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()
        self.may_end = threading.Event()

    def of_attempt(self, mark: str, key: AttemptKey, pid: int) -> list[ListeningPort]:
        assert (mark, pid) == ("mark", key.task)
        with self._lock:
            self.begun.append(key)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            found = [ListeningPort(len(self.begun), "127.0.0.1", pid, "it")]
        assert self.may_end.wait(30)
        with self._lock:
            self.at_once -= 1
        return found


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Searches]:
    made = Searches()
    monkeypatch.setattr(listening_ports, "of_attempt", made.of_attempt)
    yield made
    made.may_end.set()


def test_many_connections_at_once_cost_two_searches_and_never_use_an_old_one(searches: Searches) -> None:
    async def story() -> None:
        scans, key = channels.PortScans("mark"), AttemptKey(7, 1)
        first = asyncio.create_task(scans.of(key, 7))
        while not searches.begun:
            await asyncio.sleep(0.005)
        later = [asyncio.create_task(scans.of(key, 7)) for _ in range(300)]
        await asyncio.sleep(0)
        searches.may_end.set()
        assert (await first)[0].port == 1
        assert {(await one)[0].port for one in later} == {2}, "one search, which began after all of them had asked"
        assert len(searches.begun) == 2

    asyncio.run(story())


def test_few_threads_search_at_once_for_however_many_tasks(searches: Searches) -> None:
    async def story() -> None:
        scans = channels.PortScans("mark")
        asked = [asyncio.create_task(scans.of(AttemptKey(task, 1), task)) for task in range(1, 21)]
        asked[3].cancel()
        while len(searches.begun) < 2:
            await asyncio.sleep(0.005)
        searches.may_end.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert sum(isinstance(answer, list) for answer in answers) == 19
        assert searches.most_at_once <= 2, "heartbeats need threads, too"

    asyncio.run(story())
