"""Threads for work outside the loop: one user does not keep them from others."""

import asyncio
import threading

from gpuyard.live.control_plane.worker_threads import FairWorkerPool, calling_user


def test_a_user_with_many_calls_leaves_threads_to_others() -> None:
    async def story() -> None:
        pool, gate = FairWorkerPool("test", 2, most_of_one=1), threading.Event()

        async def call(user: str | None, work: object) -> object:
            calling_user.set(user)
            return await pool.run(work)  # type: ignore[arg-type]

        greedy = [asyncio.create_task(call("eve", gate.wait)) for _ in range(12)]
        assert await asyncio.create_task(call("bob", lambda: 7)) == 7
        assert await asyncio.create_task(call(None, lambda: 8)) == 8
        assert not any(task.done() for task in greedy)
        gate.set()
        assert all(await asyncio.gather(*greedy))
        assert not pool._turns
        pool.close()

    asyncio.run(story())
