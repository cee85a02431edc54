"""Reading jobs of Gavel: valid rows are read, invalid ones are named with their line."""

from pathlib import Path

import pytest

from gpuyard.simulator.clusters import parse_cluster
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.run import simulate_policy
from gpuyard.simulator.workloads.gavel import read_gavel
from gpuyard.simulator.workloads.job import Job
from gpuyard.simulator.workloads.on_cluster import JobsOnCluster, fits
from gpuyard.simulator.workloads.trace import WrongTrace

JOBS = "job_type,total_steps,scale_factor,priority_weight,arrival_s\n"
SPEEDS = "gpu_type,model,num_gpus,iters_per_s\n"
TABLE = SPEEDS + "k80,LM,1,2\nv100,LM,1,10\nk80,LM,2,0\nv100,LM,2,16\n"


def written(folder: Path, jobs: str, table: str = TABLE) -> tuple[Path, Path]:
    paths = folder / "jobs.csv", folder / "table.csv"
    paths[0].write_text(jobs)
    paths[1].write_text(table)
    return paths


def test_a_job_has_the_length_on_its_fastest_gpu_and_runs_where_it_makes_steps(tmp_path: Path) -> None:
    read = read_gavel(*written(tmp_path, JOBS + "LM,100,1,1,5\nLM,320,2,1,7\n"))
    assert read.jobs == [
        Job(5.0, 10.0, 1, name="LM", models=("k80", "v100"), speeds=(("k80", 2.0), ("v100", 10.0))),
        Job(7.0, 20.0, 2, name="LM", models=("v100",), speeds=(("v100", 16.0),)),
    ]


def test_unordered_jobs_are_sorted_and_counted(tmp_path: Path) -> None:
    read = read_gavel(*written(tmp_path, JOBS + "LM,100,1,1,5\nLM,100,1,1,3\n"))
    assert ([job.submit for job in read.jobs], read.sorted_rows) == ([3.0, 5.0], 1)


def test_a_job_fits_only_where_it_makes_steps(tmp_path: Path) -> None:
    [job] = read_gavel(*written(tmp_path, JOBS + "LM,320,2,1,7\n")).jobs
    assert fits(job, parse_cluster("1x2:v100"))
    assert not fits(job, parse_cluster("1x1:v100+9x8:k80"))


def test_jobs_run_at_the_speed_of_the_table_even_without_their_own(tmp_path: Path) -> None:
    jobs = read_gavel(*written(tmp_path, JOBS + "LM,100,1,1,0\nLM,100,1,1,0\n")).jobs
    cluster = parse_cluster("1x2:v100+1x1:k80")
    for say_speeds, longest in ((True, 10.0), (False, 50.0)):
        played = simulate_policy(JobsOnCluster(jobs, cluster, say_speeds=say_speeds), policy_variant("fifo"))
        assert max(life.jct for life in played.recorder.lives.values()) == longest


@pytest.mark.parametrize(
    ("jobs", "table", "sentence"),
    [
        ("job_type,total_steps\n", TABLE, "jobs.csv, line 1: column scale_factor is missing; the file has: job_type, total_steps."),
        (JOBS, TABLE, "jobs.csv: the file contains no jobs."),
        (JOBS + "LM,100,1,1,0\nLM,100,8,1,0\n", TABLE, "table.csv has no speed of LM on 8 GPUs."),
        (JOBS + "LM,100,0,1,0\n", TABLE, "jobs.csv, line 2: scale_factor is '0'; it must be a whole number above zero."),
        (JOBS + "LM,100,1.5,1,0\n", TABLE, "jobs.csv, line 2: scale_factor is '1.5'; it must be a whole number above zero."),
        (JOBS + "LM,-1,1,1,0\n", TABLE, "jobs.csv, line 2: total_steps is -1; it must be between 0 and 1e+15."),
        (JOBS + "LM,100,1,1,soon\n", TABLE, "jobs.csv, line 2: arrival_s is 'soon'; it must be a number."),
        (JOBS + "LM,1,1,1,0\n", SPEEDS + "k80,LM,1,nan\n", "table.csv, line 2: iters_per_s is nan; it must be between 0 and 1e+06."),
        (JOBS + "LM,1,1,1,0\n", SPEEDS + "k80,LM,1,1\nk80,LM,1,2\n", "table.csv, line 3: LM on 1 GPUs of k80 occurs twice."),
        (JOBS + "LM,1,1,1,0\n", SPEEDS + ",LM,1,1\n", "table.csv, line 2: gpu_type is empty."),
        (JOBS + "LM,1,1,1,0\n", SPEEDS + "k80,LM,1,0\n", "table.csv has no speed of LM on 1 GPUs."),
        (JOBS + "LM,1,1,1,0\n", SPEEDS + "k80,LM,1,1e-9\n", "table.csv, line 2: iters_per_s is 1e-9; it must be 0, or at least 1e-06."),
        (JOBS + "LM,1e15,1,1,0\n", TABLE, "jobs.csv, line 2: its 1e15 steps would take longer than 1e+09 seconds."),
    ],
)  # fmt: skip
def test_invalid_rows_are_an_error_with_the_line(tmp_path: Path, jobs: str, table: str, sentence: str) -> None:
    with pytest.raises(WrongTrace) as wrong:
        read_gavel(*written(tmp_path, jobs, table))
    assert str(wrong.value).endswith(sentence)
