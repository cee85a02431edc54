"""Random faults: supervisors are killed, stopped and replaced under load, and nothing is lost or run twice."""

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from gpuyard.live.agent.supervisor import messages, paths, proc, process_tag
from gpuyard.live.agent.supervisor.messages import AttemptEnding, AttemptKey, AttemptList, Launch, ProcessEnded
from gpuyard.live.agent.supervisor_client import SupervisorClient
from tests.unit.live.agent.supervised import ENV, is_alive
from tests.unit.live.agent.test_supervisor_client import folder as folder  # noqa: PLC0414 - a fixture is used by its name

pytestmark = pytest.mark.slow  # supervisors fail at random instants

TASKS = 120
FAULTS = 6


async def live(folder: Path, seed: int) -> dict[AttemptKey, ProcessEnded]:
    chance = random.Random(seed)
    ends: dict[AttemptKey, ProcessEnded] = {}
    supervisor = 0

    async def break_things(processes: SupervisorClient) -> None:
        for _ in range(FAULTS):
            await asyncio.sleep(chance.uniform(0.02, 0.3))
            if not is_alive(supervisor):
                continue
            match chance.choice(["kill", "kill", "stop", "replace"]):
                case "kill":
                    os.kill(supervisor, signal.SIGKILL)
                case "stop":
                    os.kill(supervisor, signal.SIGSTOP)
                    await asyncio.sleep(chance.uniform(0.02, 0.2))
                    os.kill(supervisor, signal.SIGCONT)
                case _:
                    processes.send(messages.Replace())

    async def launch(processes: SupervisorClient) -> None:
        """Some at a time, as a scheduler would."""
        for first in range(0, TASKS, 10):
            for task in range(first, first + 10):
                leaves = chance.choice(["", "sleep 60 & ", "setsid -f sleep 60; "])
                line = f"echo x >> ran.{task}; {leaves}sleep {chance.uniform(0, 0.2):.2f}"
                processes.send(Launch(AttemptKey(task, 1), shell=line, env=ENV, cwd=str(folder)))
            await asyncio.sleep(chance.uniform(0.02, 0.2))

    async with SupervisorClient(folder) as processes, asyncio.timeout(60):
        outside = asyncio.gather(launch(processes), break_things(processes))
        async for events in processes.events():
            told: set[AttemptKey] = set()
            for event in events:
                found = [held.end for held in event.attempts] if isinstance(event, AttemptList) else [event]
                if isinstance(event, AttemptList):
                    supervisor = event.pid
                for end in found:
                    if isinstance(end, ProcessEnded):
                        assert ends.setdefault(end.key, end) == end, f"seed {seed}: an end was told in two ways"
                        told.add(end.key)
            left = process_tag.owners(paths.mark_of(folder), proc.all_processes())
            assert not {key for key in told if any(map(is_alive, left.get(key, ())))}, f"seed {seed}: it lives on"
            if len(ends) == TASKS:
                break
        await outside
    return ends


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_attempt_ends_once_and_runs_once_whatever_happens_to_the_supervisor(folder: Path, seed: int) -> None:
    ends = asyncio.run(live(folder, seed))
    assert len(ends) == TASKS
    for key, end in ends.items():
        trace = folder / f"ran.{key.task}"
        times = len(trace.read_text().split()) if trace.exists() else 0
        assert end.ending in {AttemptEnding.SUCCEEDED, AttemptEnding.LOST}, (seed, end)
        assert times == 1 or (times == 0 and end.ending == AttemptEnding.LOST), (seed, end, times)
