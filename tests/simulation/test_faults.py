"""Scenarios of a cluster with faults, under a virtual clock: recorded failures, new seeds, and repeatability.

`benchmarks/faults.py` runs any number of scenarios; the same seed, number of faults and kinds give the same scenario.
"""

from typing import NamedTuple

import pytest

from tests.simulation.faults.scenario import FAULTS, Outcome, run_scenario

SCENARIOS = 10
FAULTS_EACH = 20


class Recorded(NamedTuple):
    """A scenario that failed before a fix."""

    name: str
    seed: int
    faults: int
    only: tuple[str, ...]
    shows: str
    """What was wrong in it."""
    because: str


RECORDED = (
    Recorded(
        "outage", 0, 2, ("scheduler_killed",), "needless",
        "An agent waits up to 30 s between attempts and a successor only 15 s for it: healthy processes are stopped.",
    ),
    Recorded(
        "planned_stop_of_scheduler", 1, 4, ("scheduler_stopped",), "needless",
        "An agent sleeps longer than the patience it was told of lasts: fenced processes end.",
    ),
    Recorded(
        "planned_stop_of_agent", 0, 2, ("agent_stopped",), "needless",
        "An agent that is stopped says nothing: its node counts as lost after 15 s.",
    ),
    Recorded(
        "pause_and_broken_lines", 30, 2, ("scheduler_paused", "line_broken"), "needless",
        "The pause between attempts that an outage has grown is not reset when the agent is let in.",
    ),
    Recorded(
        "numbers_given_out_twice", 0, 2, ("backup_restored",), "foreign",
        "After a backup was restored a new task gets the number, and the end, of another one.",
    ),
    Recorded(
        "output_of_another", 14, 2, ("backup_restored",), "foreign",
        "After a backup was restored the output of a new task begins with that of another one.",
    ),
    Recorded(
        "strays", 3, 2, ("backup_restored",), "gpu_twice",
        "Attempts that the journal does not know take no GPU until the first heartbeat.",
    ),
    Recorded(
        "two_schedulers", 3, 2, ("scheduler_copied",), "gpu_twice",
        "Schedulers on copies of one journal have the same epoch, or raise their own: agents obey both.",
    ),
    Recorded(
        "clock_put_right", 35, 2, ("clock_jumps",), "lost",
        "A clock that was ahead and is put right freezes the engine: a retry after 2 s is due in hours.",
    ),
    Recorded(
        "joined_then_lost", 20, 15, ("disk_slow", "line_cut", "line_broken", "agent_killed"), "node_lost",
        "A node that returns while it is declared lost stays lost although it beats.",
    ),
    Recorded(
        "twins", 2, 2, ("twin_comes",), "overlap",
        "Two agents with one name and a copied folder are both let in, and launch the same tasks.",
    ),
    Recorded(
        "twin_after_a_restart", 5, 3, ("twin_comes", "scheduler_killed"), "overlap",
        "The owner of a name is forgotten at a restart: a duplicate agent that was refused is accepted if it comes first.",
    ),
    Recorded(
        "removed_node_returns", 0, 2, ("node_removed",), "gpu_twice",
        "A node that was removed brings attempts, and they take nothing.",
    ),
    Recorded(
        "part_of_a_gang_given_up", 1, 12, ("line_cut",), "lost",
        "A node that returns is not told to stop its part of a gang that was given up: it holds its GPU for ever.",
    ),
    Recorded(
        "take_over_of_an_equal", 4, 30, (), "node_lost",
        "A node that obeyed another scheduler of the same epoch refuses one that takes over before it can say so.",
    ),
    Recorded(
        "gang_without_its_first", 15, 50, (), "lost",
        "A gang whose first part returns last, and has ended by then, never starts its other parts.",
    ),
    Recorded(
        "lease_of_an_absence", 18, 4, ("agent_stopped", "agent_paused"), "overlap",
        "The lease that covers a planned stop outlives the return: a fenced process runs on beside the next one.",
    ),
    Recorded(
        "registration_on_a_slow_disk", 28, 8, ("disk_slow", "agent_killed"), "needless",
        "An agent gives up a registration that a slow disk delays, and its node counts as lost although it is there.",
    ),
)  # fmt: skip
"""Scenarios that failed once, nearly all of them at commit 3f1196f (benchmarks/README.md). They must not fail again."""


def sentences(outcome: Outcome, faults: int, only: tuple[str, ...] = ()) -> str:
    """What is wrong, and how to see it again."""
    again = f"python benchmarks/faults.py --seeds {outcome.seed} --faults {faults}"
    again += f" --only {','.join(only)}" if only else ""
    return "\n".join([f"{again} --trace", *(f"{it.kind} {it.token}: {it.sentence}" for it in outcome.wrongs[:10])])


@pytest.mark.slow
@pytest.mark.parametrize("it", [pytest.param(it, id=it.name) for it in RECORDED])
def test_a_recorded_failure_stays_fixed(it: Recorded) -> None:
    outcome = run_scenario(it.seed, it.faults, it.only)
    assert not outcome.wrongs, sentences(outcome, it.faults, it.only)


@pytest.mark.parametrize("it", [pytest.param(it, id=it.name) for it in RECORDED[:5]])
def test_a_seed_repeats_byte_for_byte(it: Recorded) -> None:
    first, second = run_scenario(it.seed, it.faults, it.only), run_scenario(it.seed, it.faults, it.only)
    assert first.trace == second.trace


def test_another_seed_gives_another_scenario() -> None:
    assert run_scenario(1, 3).digest != run_scenario(2, 3).digest


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAULTS)
def test_this_kind_of_fault_loses_nothing(kind: str) -> None:
    outcome = run_scenario(1, 8, (kind,))
    assert not outcome.wrongs, sentences(outcome, 8, (kind,))
    assert outcome.faults[kind] >= 8


@pytest.mark.slow
def test_all_kinds_of_faults_together_lose_nothing() -> None:
    failed = [outcome for seed in range(SCENARIOS) if (outcome := run_scenario(seed, FAULTS_EACH)).wrongs]
    assert not failed, "\n".join(sentences(outcome, FAULTS_EACH) for outcome in failed)


@pytest.mark.slow
def test_every_kind_of_fault_occurs() -> None:
    drawn: set[str] = set()
    for seed in range(12):
        drawn |= run_scenario(seed, FAULTS_EACH).faults.keys()
        if drawn == FAULTS.keys():
            break
    assert drawn == FAULTS.keys()
