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
