"""A daily sweep of equal tasks, which is most of what a cluster runs: `default` lets them end instead of taking turns."""

from pathlib import Path
from random import Random

import pytest

import gpuyard
from gpuyard.simulator import trace_jobs

DAY, HOUR = 86_400, 3_600


def sweeps(path: Path, days: int = 6, each: int = 250) -> Path:
    """250 tasks of an hour each morning on 16 GPUs, and a user who tries things for a minute."""
    draw = Random(0)
    rows = [(day * DAY, HOUR, "sweep") for day in range(days) for _ in range(each)]
    rows += [(draw.randrange(days * DAY), 60, "dev") for _ in range(30 * days)]
    lines = [f"{at},{seconds},1,{user},{user}" for at, seconds, user in sorted(rows)]
    path.write_text("\n".join(["submit_s,duration_s,gpu_num,user,name", *lines]) + "\n")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("preemptible", [0.25, 1.0])
def test_default_is_not_slower_than_fifo_with_backfill_on_a_daily_sweep(tmp_path: Path, preemptible: float) -> None:
    jobs = trace_jobs(sweeps(tmp_path / "jobs.csv"), "2x8", preemptible=preemptible, checkpoints="published", seed=0)
    fifo, default = gpuyard.simulate(jobs, policies=("fifo+backfill", "default"))
    assert default.figures["avg_jct_s"] <= fifo.figures["avg_jct_s"]


def bursts(path: Path, *, called: str, days: int = 3) -> Path:
    """Each day 120 tasks of half an hour to an hour and a half on 1, 2 or 4 of 16 GPUs, and 30 shorter ones of others."""
    draw, drawn_name = Random(1), Random(2)
    rows: list[tuple[float, float, int, str]] = []
    for day in range(days):
        begins = day * DAY + draw.uniform(0, DAY / 2)
        rows += [(begins + each, draw.uniform(1_800, 5_400), draw.choice((1, 2, 4)), "sweep") for each in range(120)]
        rows += [(day * DAY + draw.uniform(0, DAY), draw.uniform(300, 3_600), 1, "dev") for _ in range(30)]
    lines = [
        f"{at:.0f},{seconds:.0f},{gpus},{user},{called.format(user=user, seed=drawn_name.randrange(10_000))}"
        for at, seconds, gpus, user in sorted(rows)
    ]
    path.write_text("\n".join(["submit_s,duration_s,gpu_num,user,name,command", *lines]) + "\n")
    return path


def first_day(path: Path, *, seed: int, tests: int) -> Path:
    """Two users begin a sweep on a new cluster, others try short tasks; before, the administrators ran tests of a minute."""
    draw = Random(seed)
    rows = [(draw.uniform(0, HOUR), draw.uniform(5, 90), 1, f"admin{draw.randrange(3)}") for _ in range(tests)]
    for user, count, longest in (("ann", 70, 2 * HOUR), ("bob", 40, HOUR)):
        begins = 2 * HOUR + draw.uniform(0, HOUR)
        rows += [(begins + each, longest * draw.uniform(0.5, 1), draw.choice((1, 1, 2)), user) for each in range(count)]
    rows += [(draw.uniform(0, DAY), 600 * draw.lognormvariate(0, 1), 1, f"user{draw.randrange(3)}") for _ in range(60)]
    lines = [f"{at:.0f},{seconds:.0f},{gpus},{user},python {user}.py" for at, seconds, gpus, user in sorted(rows)]
    path.write_text("\n".join(["submit_s,duration_s,gpu_num,user,command", *lines]) + "\n")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("tests", [0, 45], ids=["new cluster", "new users"])
def test_sweeps_of_which_nothing_is_known_do_not_take_turns(tmp_path: Path, tests: int) -> None:
    jct = dict[str, float]()
    for seed in range(3):
        jobs = trace_jobs(first_day(tmp_path / "jobs.csv", seed=seed, tests=tests), "2x8", preemptible=1.0, seed=seed)
        for run in gpuyard.simulate(jobs, policies=("fifo+backfill", "default")):
            jct[run.name] = jct.get(run.name, 0.0) + run.figures["avg_jct_s"]
    assert jct["default"] <= 1.02 * jct["fifo+backfill"]


@pytest.mark.slow
def test_tasks_of_a_sweep_without_one_name_end_as_if_they_had_one(tmp_path: Path) -> None:
    jct = dict[str, float]()
    for called in ("{user},", "{user}-seed{seed},", ",python {user}.py --seed {seed}"):
        jobs = trace_jobs(bursts(tmp_path / "jobs.csv", called=called), "2x8", preemptible=1.0, seed=0)
        (default,) = gpuyard.simulate(jobs, policies=("default",))
        jct[called] = default.figures["avg_jct_s"]
    assert max(jct.values()) <= 1.02 * min(jct.values())
