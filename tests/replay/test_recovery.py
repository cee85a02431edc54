"""A restarted scheduler recovers exactly its previous state, in either way and in any process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard.core.domain.events import AttemptResuming, TaskPlaced
from gpuyard.core.engine import invariants, snapshot
from gpuyard.core.engine.engine import Engine
from gpuyard.core.journal.records import JournalEntry, Snapshot
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from tests.replay.random_scenario import RandomScenario
from tests.replay.recovery import document, recovered, replayed

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", range(8))
def test_a_scenario_read_back_from_its_journal_is_identical_byte_for_byte(seed: int, tmp_path: Path) -> None:
    scenario = RandomScenario(seed)
    journal = SqliteJournal.open(tmp_path, segment_events=50)
    written = 0

    def write() -> None:
        nonlocal written
        fresh = scenario.story.events[written:]
        journal.append([JournalEntry(at, event) for at, event in fresh])
        written += len(fresh)

    scenario.takes_steps(30, write)
    journal.save_snapshot(Snapshot(journal.head, snapshot.dump(scenario.story.state)))
    scenario.takes_steps(30, write)
    journal.close()

    scenario.story.state.now = last = scenario.story.events[-1][
        0
    ]  # a journal knows of events, not of time that passed without
    lived = document(scenario.story.state)
    journal = SqliteJournal.open(tmp_path, segment_events=50)
    assert journal.head.seq == len(scenario.story.events)
    for state in (replayed(journal.read()), recovered(journal)):
        assert document(state) == lived
        starts = [event for event in Engine(state).decide(last) if isinstance(event, TaskPlaced | AttemptResuming)]
        assert starts == [], "a scheduler that comes back starts what the old one had not"
        invariants.check(state)
    journal.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_same_life_makes_the_same_events_in_every_process(seed: int) -> None:
    assert len({_told(seed, hash_seed) for hash_seed in ("0", "1", "4242")}) == 1


def _told(seed: int, hash_seed: str) -> str:
    """The fingerprint of a scenario in another process, where sets and hashes of strings have another order."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.replay.random_scenario", str(seed), "60"],
        check=True, capture_output=True, text=True, timeout=60, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )  # fmt: skip
    events, state = done.stdout.split()
    assert len(events) == len(state) == 64
    return done.stdout
