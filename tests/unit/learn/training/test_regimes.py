"""Workloads that advisers learn from."""

from random import Random

from gpuyard.learn.training.regimes import GAVEL, GAVEL_NODES, TRAINED, Regime
from gpuyard.simulator.workloads.job import Job

DRAW = Random(1)
TRACE = [Job(60.0 * place, DRAW.uniform(10, 5000), DRAW.choice((1, 2, 4, 64)), f"u{place % 5}") for place in range(900)]


def jobs_of(regime: Regime, seed: int) -> list[Job]:
    return list(regime.workload(seed, {"recorded": TRACE}).jobs)


def test_the_same_seed_gives_the_same_jobs_and_another_others() -> None:
    for regime in (TRAINED[0], Regime("recorded", GAVEL_NODES, 0.5, GAVEL, jobs=50, trace="recorded")):
        assert jobs_of(regime, 1) == jobs_of(regime, 1)
        assert jobs_of(regime, 1) != jobs_of(regime, 2)


def test_jobs_of_a_trace_come_in_order_at_the_wanted_load_and_fit() -> None:
    regime = Regime("recorded", GAVEL_NODES, 0.5, GAVEL, jobs=50, trace="recorded")
    jobs = jobs_of(regime, 1)
    assert [job.submit for job in jobs] == sorted(job.submit for job in jobs)
    assert abs(sum(job.gpus * job.seconds for job in jobs) / (48 * jobs[-1].submit) - 0.5) < 0.01
    assert max(job.gpus for job in jobs) <= 4


def test_a_program_is_equally_fast_whenever_it_runs() -> None:
    speeds: dict[tuple[str, str, int], set[object]] = {}
    for job in jobs_of(TRAINED[1], 1):
        speeds.setdefault((job.user, job.name, job.gpus), set()).add(job.speeds)
        for model, speed in job.speeds:
            assert GAVEL[model][0] <= speed <= GAVEL[model][1]
    assert {len(each) for each in speeds.values()} == {1}
