"""Workloads that advisors are trained on."""

from dataclasses import replace
from random import Random

import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.learn.training.regimes import GAVEL, GAVEL_NODES, TRAINED, Regime, of_trace
from gpuyard.simulator.workloads.job import Job

DRAW = Random(1)
TRACE = [Job(60.0 * place, DRAW.uniform(10, 5000), DRAW.choice((1, 2, 4, 64)), f"u{place % 5}") for place in range(900)]


def jobs_of(regime: Regime, seed: int) -> list[Job]:
    return list(regime.workload(seed, {"recorded": TRACE}).jobs)


def test_the_same_seed_gives_the_same_jobs_and_another_others() -> None:
    for regime in (TRAINED[0], Regime("recorded", GAVEL_NODES, 0.5, GAVEL, jobs=50, trace="recorded")):
        assert jobs_of(regime, 1) == jobs_of(regime, 1)
        assert jobs_of(regime, 1) != jobs_of(regime, 2)


def test_jobs_of_a_trace_arrive_in_order_at_the_requested_load_and_fit() -> None:
    regime = Regime("recorded", GAVEL_NODES, 0.5, GAVEL, jobs=50, trace="recorded")
    jobs = jobs_of(regime, 1)
    assert [job.submit for job in jobs] == sorted(job.submit for job in jobs)
    assert abs(sum(job.gpus * job.seconds for job in jobs) / (48 * jobs[-1].submit) - 0.5) < 0.01
    assert max(job.gpus for job in jobs) <= 4


def test_a_program_has_the_same_speed_whenever_it_runs() -> None:
    speeds: dict[tuple[str, str, int], set[object]] = {}
    for job in jobs_of(TRAINED[1], 1):
        speeds.setdefault((job.user, job.name, job.gpus), set()).add(job.speeds)
        for model, speed in job.speeds:
            assert GAVEL[model][0] <= speed <= GAVEL[model][1]
    assert {len(each) for each in speeds.values()} == {1}


def test_a_trace_without_a_job_that_fits_is_refused() -> None:
    large = [Job(60.0 * place, 100.0, 64, "u") for place in range(20)]
    with pytest.raises(WrongInput, match="No job of the trace recorded fits on the nodes 2x4:v100"):
        of_trace("recorded").workload(1, {"recorded": large})


def test_a_trace_of_one_job_is_a_workload() -> None:
    (job,) = of_trace("recorded").workload(1, {"recorded": [Job(50.0, 100.0, 1, "u")]}).jobs
    assert (job.submit, job.seconds) == (0.0, 100.0)


def test_a_trace_shorter_than_requested_is_used_as_a_whole() -> None:
    regime = replace(of_trace("recorded"), jobs=5_000)
    assert len(jobs_of(regime, 1)) == sum(job.gpus <= 4 for job in TRACE)


def test_jobs_of_a_trace_with_no_duration_run_for_a_second() -> None:
    instant = [Job(10.0 * place, 0.0, 1, "u") for place in range(20)]
    jobs = of_trace("recorded").workload(1, {"recorded": instant}).jobs
    assert {job.seconds for job in jobs} == {1.0}


@pytest.mark.parametrize("load", [0.2, 0.9])
def test_a_regime_has_the_load_it_states(load: float) -> None:
    regime = Regime("even", "2x4", load, jobs=600)
    jobs = jobs_of(regime, 3)
    assert sum(job.gpus * job.seconds for job in jobs) / (8 * jobs[-1].submit) == pytest.approx(load, rel=0.35)


def test_if_all_gpus_are_alike_jobs_have_no_speeds() -> None:
    assert {job.speeds for job in jobs_of(Regime("even", "2x4", 0.5, jobs=20), 1)} == {()}


@pytest.mark.parametrize("preemptible", [False, True])
def test_jobs_are_preemptible_if_the_regime_says_so(preemptible: bool) -> None:
    workload = Regime("even", "2x4", 0.5, jobs=5, preemptible=preemptible).workload(1, {})
    assert workload.preemptible is preemptible


def test_names_of_regimes_are_unique() -> None:
    assert len({regime.name for regime in TRAINED}) == len(TRAINED)
