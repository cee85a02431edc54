"""Threads for work outside the loop: a few for each kind, so that no kind waits behind another.

asyncio's own pool is one shared queue. A flood of logins, each of which takes a tenth of a second on purpose, would
block lists, the archive and snapshots there. Logins are the only work that unauthenticated clients can cause, so their
queue is limited, in total and per address: logins beyond it are refused at once. Requests of one user get a part of the
threads only; further ones wait for each other, so that a user with many connections delays others by one request.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from typing import TypeVar

T = TypeVar("T")
calling_user: ContextVar[str | None] = ContextVar("calling_user", default=None)
"""The user whose request is handled; None: work of the scheduler itself."""


class WorkerPoolFull(Exception):
    """Internal to the control plane: too many wait already."""


class WorkerPool:
    """A few dedicated threads."""

    def __init__(self, name: str, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, name)

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Run a function in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(work, *arguments))

    def close(self) -> None:
        """Wait for the work that has begun, and end the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class FairWorkerPool(WorkerPool):
    """A few threads. No user has more than `most_of_one` calls in their queue at a time; the others wait before it."""

    def __init__(self, name: str, threads: int, *, most_of_one: int) -> None:
        super().__init__(name, threads)
        self._most_of_one = most_of_one
        self._open: Counter[str] = Counter()
        self._turns: dict[str, asyncio.Semaphore] = {}
        """Of the users with open calls."""

    async def run(self, work: Callable[..., T], *arguments: object) -> T:
        """Run a function in one of the threads, for the user whose request is handled."""
        user = calling_user.get()
        if user is None:
            return await super().run(work, *arguments)
        turns = self._turns.setdefault(user, asyncio.Semaphore(self._most_of_one))
        self._open[user] += 1
        try:
            async with turns:
                return await super().run(work, *arguments)
        finally:
            self._open[user] -= 1
            if not self._open[user]:
                del self._open[user], self._turns[user]


class BoundedWorkerPool(WorkerPool):
    """A few threads with a limited queue."""

    def __init__(self, name: str, threads: int, *, most: int, most_of_one: int) -> None:
        """`most` calls may run or wait in total, and `most_of_one` per address."""
        super().__init__(name, threads)
        self._most = most
        self._most_of_one = most_of_one
        self._open: Counter[str] = Counter()

    def waiting(self, address: str) -> int:
        """Return how many calls of one address run or wait."""
        return self._open[address]

    async def run_for(self, address: str, work: Callable[..., T], *arguments: object) -> T:
        """Run a function for a client, or raise `WorkerPoolFull` at once."""
        if self._open.total() >= self._most or self._open[address] >= self._most_of_one:
            raise WorkerPoolFull
        self._open[address] += 1
        try:
            return await self.run(work, *arguments)
        finally:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]


class WorkerPools:
    """The thread pools of a scheduler, one for each kind of slow work."""

    def __init__(self) -> None:
        self.logins = BoundedWorkerPool("logins", 2, most=34, most_of_one=18)
        """About 20 logins a second: the last in the queue waits for less than two seconds."""
        self.access = FairWorkerPool("access", 2, most_of_one=1)
        """Changes of users and tokens by authenticated users."""
        self.archive = FairWorkerPool("archive-reader", 4, most_of_one=2)
        self.archive_writer = WorkerPool("archive-writer", 1)
        self.snapshots = WorkerPool("snapshots", 1)
        self.blobs = FairWorkerPool("blobs", 3, most_of_one=2)
        self.journal = FairWorkerPool("journal-reader", 2, most_of_one=1)
        self.history_writer = WorkerPool("history-writer", 1)
        self.history_reader = FairWorkerPool("history-reader", 2, most_of_one=1)
