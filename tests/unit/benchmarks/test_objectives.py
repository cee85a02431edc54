"""The benchmark of the score `weighted`: its table in the manual, and what it measures."""

from itertools import pairwise
from pathlib import Path

from benchmarks.objectives import CLUSTER, LOADS, VARIANTS, decision_ratios, generated, measured
from gpuyard.core.placement.scores import SCORES
from gpuyard.simulator.clusters import parse_cluster
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster

ROOT = Path(__file__).parents[3]


def test_the_loads_differ_only_in_how_fast_jobs_arrive() -> None:
    light, full = (generated(1, LOADS[name], 50) for name in ("light", "full"))
    assert [job._replace(submit=0.0) for job in light] == [job._replace(submit=0.0) for job in full]
    assert light[-1].submit > full[-1].submit
    assert all(one.submit < other.submit for one, other in pairwise(light))


def test_energy_is_saved_and_paid_for_with_time() -> None:
    workload = JobsOnCluster(generated(1, 0.3, 200), parse_cluster(CLUSTER), preemptible=False)
    fast, frugal = (measured(workload, VARIANTS[label]) for label in ("`best_fit`", "… energy 10"))
    assert frugal["task_kwh"] < fast["task_kwh"]
    assert frugal["avg_jct_s"] != fast["avg_jct_s"]
    assert measured(workload, VARIANTS["… time only"]) == fast


def test_every_score_has_its_cpu_time() -> None:
    ratios = decision_ratios(nodes=30, rounds=10)
    assert ratios.keys() == SCORES.keys()
    assert ratios["best_fit"] == 1.0
