"""A workload runs live, its journal is simulated, and the two schedules agree.

How near is near enough? The simulated world is told how long every launch and every run took, so it differs from the
live one only where the live scheduler was late: a report that waited for its turn, a back-off that was noticed after its
instant. On a busy machine everything is late together, launches too: each goes from the scheduler to the agent, to the
supervisor, and back. So an instant may be off by 50 ms, which no quiet machine needs, and by the longest launch of this run.
"""

from itertools import combinations
from pathlib import Path

from gpuyard.live.sdk.client import NewTaskFields
from gpuyard.simulator.recorder import TaskTimeline
from gpuyard.simulator.run import simulate_policy
from gpuyard.simulator.workloads.journal import JournalWorkload, read_journal
from tests.acceptance.live import running_cluster
from tests.acceptance.waiting import until

TIE_SECONDS = 0.05
SIZES, SECONDS, PRIORITIES = (1, 2, 1, 4, 1, 3, 2), (0.3, 1.1, 0.5, 0.4, 1.5, 0.7), (20, 50, 80, 50, 35)


def wave(first: int, count: int) -> list[NewTaskFields]:
    """Tasks of mixed sizes, lengths and priorities; one in four says nothing about its length, others are wrong about it."""
    return [
        NewTaskFields(
            command=f"sleep {SECONDS[place % 6]}",
            name=f"task-{place}",
            gpu_count=SIZES[place % 7],
            priority=PRIORITIES[place % 5],
            estimated_seconds=SECONDS[place % 6] * (0.8 + place % 3 / 5) if place % 4 else None,
        )
        for place in range(first, first + count)
    ]


def test_a_live_schedule_is_reproduced_by_the_simulator(tmp_path: Path) -> None:
    with running_cluster(tmp_path, nodes=1, gpus=4) as cluster:
        client = cluster.client()
        first = client.submit_many(wave(0, 14))
        until(lambda: cluster.count("success") >= 4, what="four ends")
        client.submit_many(wave(14, 10))
        # Without GPUs: a back-off that is noticed late must not change who is before whom among the others.
        client.submit('sleep 0.4; test "$GPUYARD_ATTEMPT" -gt 1', name="flaky", gpu_count=0, cpu_count=1, retries=1)
        client.submit("sleep 0.3", name="after", gpu_count=2, depends_on=[first[-1]])
        until(lambda: cluster.count("success") >= 14, what="fourteen ends")
        client.submit_many(wave(24, 4))
        until(lambda: cluster.count("success") == 30, what="all ends")
        while_it_runs = read_journal(tmp_path / "data")
        cluster.stop_server()
    found = read_journal(tmp_path / "data")
    assert (found.tasks, found.still_running, found.still_waiting) == (30, 0, 0)
    assert while_it_runs.came == found.came
    agrees(found)


def agrees(found: JournalWorkload) -> None:
    """The starts are in the same order, ties apart, and starts and ends are at the same instants but for the noise."""
    live, simulated = found.happened.lives, simulate_policy(found, found.same).recorder.lives
    noise = TIE_SECONDS + max(
        arrival.run.start_seconds or 0.0 for _, coming in found.came if isinstance(coming, tuple) for arrival in coming
    )
    off = {
        task: (start(simulated[task]) - start(life), end(simulated[task]) - end(life)) for task, life in live.items()
    }
    assert all(abs(late) <= noise for both in off.values() for late in both), (noise, off)
    for one, other in combinations(sorted(live, key=lambda task: start(live[task])), 2):
        if start(live[one]) + TIE_SECONDS < start(live[other]):
            assert start(simulated[one]) <= start(simulated[other]), (one, other, off)


def start(life: TaskTimeline) -> float:
    assert life.started is not None
    return life.started


def end(life: TaskTimeline) -> float:
    assert life.ended is not None
    return life.ended
