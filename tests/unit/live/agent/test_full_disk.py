"""A full disk on the node affects no running task."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.live.agent.agent_state import AgentStateFile
from gpuyard.live.agent.supervisor import messages
from gpuyard.live.agent.supervisor.messages import AttemptEnding, ProcessPhase
from tests.unit.live.agent.small_disk import SmallDisk, mounted
from tests.unit.live.agent.supervised import Supervised


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted(tmp_path / "small") as disk:
        yield disk


@pytest.fixture
def supervised(disk: SmallDisk) -> Iterator[Supervised]:
    supervised = Supervised(disk.folder / "work")
    yield supervised
    disk.make_room()
    supervised.clean_up()


def test_a_supervisor_replaced_on_a_full_disk_keeps_exit_codes(
    disk: SmallDisk, supervised: Supervised, tmp_path: Path
) -> None:
    key = supervised.runs("while [ ! -e go ]; do sleep 0.02; done; exit 7", cwd=str(tmp_path))
    before = supervised.pid
    disk.fill()
    supervised.send(messages.Replace())
    with pytest.raises(AssertionError, match="hung up"):
        supervised.hears(messages.NotReplaced)
    supervised.begin()
    assert supervised.pid == before
    (tmp_path / "go").touch()
    assert supervised.end_of(key).exit_code == 7


def test_an_end_on_a_full_disk_is_written_when_there_is_space(disk: SmallDisk, supervised: Supervised) -> None:
    runs, ends = supervised.runs("exec sleep 600"), supervised.runs("exec sleep 600")
    disk.fill()
    supervised.kill()
    assert {held.phase for held in supervised.begin().attempts} == {ProcessPhase.RUNNING}
    supervised.send(messages.StopAttempt(ends))
    assert supervised.end_of(ends).ending == AttemptEnding.STOPPED
    disk.make_room()
    supervised.end_of(supervised.launches("true"))
    supervised.kill()
    held = {held.key: held.end for held in supervised.begin().attempts}
    assert held[runs] is None
    end = held[ends]
    assert isinstance(end, messages.ProcessEnded)
    assert end.ending == AttemptEnding.STOPPED


def test_the_state_of_an_agent_is_written_when_there_is_space(disk: SmallDisk) -> None:
    state_file = AgentStateFile(disk.folder / "node")
    state_file.memory.epoch = 3
    disk.fill()
    state_file.save()
    disk.make_room()
    state_file.save()
    assert AgentStateFile(disk.folder / "node").memory == state_file.memory
