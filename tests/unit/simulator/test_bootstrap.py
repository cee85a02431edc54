"""Intervals from resampled days."""

import json
from pathlib import Path
from random import Random

import pytest

from gpuyard.cli import main
from gpuyard.core.domain.values import TaskId
from gpuyard.simulator import generated_jobs, intervals, simulate
from gpuyard.simulator.bootstrap import DAY, block_intervals
from gpuyard.simulator.recorder import TaskTimelines

WIDE = ("simulate", "--generate", "300:0.1", "--cluster", "1x8", "--policy", "fifo,fifo+backfill")


def lives(*days: float, jobs: int = 20) -> TaskTimelines:
    """Return jobs that all wait the time of their day and then run for 100 s."""
    found = TaskTimelines()
    for day, queued in enumerate(days):
        for place in range(jobs):
            at = day * DAY + place
            row = found.begin(TaskId(day * jobs + place + 1), "ann", at)
            found.start(row, at + queued)
            found.hold(row, 100.0)
            found.end(row, at + queued + 100.0)
    return found


def test_days_that_are_alike_give_an_interval_without_width() -> None:
    (it,) = block_intervals({"fifo": lives(*[50.0] * 9)}, Random(1).random).values()
    assert (it.days, it.block_days) == (9, 3)
    assert it.figures == {"avg_jct_s": (150.0, 150.0), "avg_queue_s": (50.0, 50.0), "p999_queue_s": (50.0, 50.0)}
    assert it.difference is None


def test_a_difference_of_every_day_is_sure_although_the_days_differ() -> None:
    days = [10.0, 500.0, 20.0, 900.0, 30.0, 1.0, 700.0, 5.0]
    found = block_intervals({"fifo": lives(*days), "best": lives(*[day / 2 for day in days])}, Random(1).random)
    assert found["fifo"].figures["avg_jct_s"].low < found["best"].figures["avg_jct_s"].high
    assert found["best"].difference is not None
    assert found["best"].difference["avg_jct_s"].high < 0


def test_the_ratio_is_taken_within_each_draw_and_so_is_never_negative() -> None:
    """Nearly all of the base is one bad day: a draw without it, or with it twice, has another base."""
    days = [0.0, 0.0, 0.0, 90_000.0, 0.0, 0.0, 0.0, 0.0]
    found = block_intervals({"fifo": lives(*days), "best": lives(*[day / 10 for day in days])}, Random(1).random)
    best, whole = found["best"], (sum(days) / len(days)) + 100
    assert best.ratio is not None
    assert best.difference is not None
    assert found["fifo"].ratio is None
    assert best.difference["avg_jct_s"].low / whole < -1  # what a difference over the whole base would claim
    assert 0.1 < best.ratio["avg_jct_s"].low < 0.11
    assert best.ratio["avg_jct_s"].high == 1.0  # draws without the bad day
    assert best.ratio.keys() == {"avg_jct_s"}  # some draws have no wait to divide by


def test_a_constant_ratio_has_an_interval_without_width() -> None:
    days = [100.0, 500.0, 200.0, 900.0, 300.0, 100.0]
    half = block_intervals({"fifo": lives(*days), "half": lives(*[day / 2 for day in days])}, Random(1).random)["half"]
    assert half.ratio is not None
    assert list(half.ratio["avg_queue_s"]) == pytest.approx([0.5, 0.5])


def test_the_interval_contains_the_mean_of_the_population_about_as_often_as_promised() -> None:
    """Days drawn alone from a uniform distribution; with blocks of 3 of 27 days the intervals are somewhat too narrow."""
    draw, inside = Random(7), 0
    for _ in range(60):
        days = [draw.uniform(0, 1000) for _ in range(27)]
        (it,) = block_intervals({"fifo": lives(*days, jobs=1)}, draw.random, draws=300).values()
        inside += it.figures["avg_queue_s"].low <= 500 <= it.figures["avg_queue_s"].high
    assert 48 <= inside <= 60


def test_a_workload_of_four_days_has_no_interval() -> None:
    assert block_intervals({"fifo": lives(1.0, 2.0, 3.0, 4.0)}, Random(1).random) == {}


def few_jobs(*seconds: float) -> TaskTimelines:
    """Return jobs that start at once and run this long, one every 13.5 days."""
    found = TaskTimelines()
    for place, runs in enumerate(seconds):
        at = 13.5 * DAY * place
        row = found.begin(TaskId(place + 1), "ann", at)
        found.start(row, at)
        found.hold(row, runs)
        found.end(row, at + runs)
    return found


def test_draws_without_jobs_are_left_out() -> None:
    found = block_intervals(
        {"fifo": few_jobs(60.0, 600.0, 1830.0), "slow": few_jobs(120.0, 1200.0, 3660.0)}, Random(1).random
    )
    assert found["fifo"].figures["avg_jct_s"].low >= 60.0
    assert found["slow"].figures["avg_jct_s"].low >= 120.0
    assert found["slow"].difference is not None
    assert found["slow"].difference["avg_jct_s"].low >= 60.0
    assert found["slow"].ratio is not None
    assert found["slow"].ratio["avg_jct_s"] == (2.0, 2.0)


def test_a_policy_under_which_no_job_ends_has_no_interval() -> None:
    assert block_intervals({"fifo": few_jobs(60.0, 600.0), "none": TaskTimelines()}, Random(1).random) == {}


def test_the_same_seed_gives_the_same_intervals() -> None:
    runs = list(simulate(generated_jobs(300, "1x8", seed=2, load=0.1), "fifo,fifo+backfill"))
    assert intervals(runs) == intervals(runs, seed=0) != intervals(runs, seed=1)


def test_intervals_are_printed_as_a_table_as_json_and_in_the_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["gpuyard", *WIDE])
    assert main() == 0
    printed = capsys.readouterr().out
    assert "AVG JCT − fifo" in printed
    assert "95 % intervals from blocks of" in printed
    monkeypatch.setattr("sys.argv", ["gpuyard", *WIDE, "--json", "--report", str(tmp_path / "page.html")])
    assert main() == 0
    policies = json.loads(capsys.readouterr().out)["policies"]
    assert "difference" not in policies["fifo"]["intervals"]
    low, high = policies["fifo+backfill"]["intervals"]["difference"]["avg_jct_s"]
    assert low <= high
    low, high = policies["fifo+backfill"]["intervals"]["ratio"]["avg_jct_s"]
    assert 0 < low <= high
    page = (tmp_path / "page.html").read_text()
    assert "<h2>95 % intervals</h2>" in page
    assert "No job may be preempted" in page
