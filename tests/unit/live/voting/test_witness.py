"""`gpuyard witness`, as a process."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuyard.core.replication.messages import Canvass, CanvassAnswer
from gpuyard.live.voting.voter_file import BLANK
from tests.unit.live.voting.schedulers import TOKEN, AskingScheduler, asking_scheduler

WITNESS = [sys.executable, "-m", "gpuyard.cli", "witness"]
END_SECONDS = 60


@contextmanager
def witness(folder: Path, *options: str) -> Iterator["subprocess.Popen[str]"]:
    words = [*WITNESS, "--data-dir", str(folder), "--name", "w1", *options]
    environment = {**os.environ, "GPUYARD_JOIN_TOKEN": TOKEN}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=END_SECONDS)
    return process.returncode, out, errors


@pytest.mark.slow
def test_a_witness_votes_until_it_is_stopped_and_remembers_who_it_is(tmp_path: Path) -> None:
    async def answers(a: AskingScheduler) -> CanvassAnswer:
        async with asyncio.timeout(END_SECONDS):
            answer = await a.ask(Canvass("a#1"))
        assert isinstance(answer, CanvassAnswer)
        return answer

    async def story() -> None:
        async with asking_scheduler("a#1") as a:
            names = []
            for _ in range(2):
                with witness(tmp_path / "witness", "--scheduler", a.address) as process:
                    answer = await answers(a)
                    assert answer.accepted == BLANK.accepted
                    names.append(answer.voter)
                    assert a.met[-1].info == {"kind": "witness", "node": "w1"}
                    process.send_signal(signal.SIGTERM)
                    code, out, errors = await asyncio.to_thread(ended, process)
                    assert (code, errors) == (0, "")
                    assert "witness_started" in out
                    assert "witness_stopped" in out
                    await a.left()
            assert names[0] == names[1]
            assert names[0].startswith("w1#")

    asyncio.run(story())


@pytest.mark.slow
def test_a_second_witness_with_the_same_folder_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with asking_scheduler("a#1") as a:
            with witness(tmp_path / "witness", "--scheduler", a.address):
                async with asyncio.timeout(END_SECONDS):
                    await a.connected()
                with witness(tmp_path / "witness", "--scheduler", a.address) as second:
                    code, _, errors = await asyncio.to_thread(ended, second)
                assert code == 1
                assert "Another witness uses" in errors

    asyncio.run(story())
