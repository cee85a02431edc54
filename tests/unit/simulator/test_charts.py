"""Charts of short and long workloads."""

import pytest

from gpuyard.simulator import generated_jobs, simulate, trace_jobs
from gpuyard.simulator.charts import figure_of
from gpuyard.simulator.run import Result


def results(tmp_path_factory: pytest.TempPathFactory, *rows: str) -> list[Result]:
    path = tmp_path_factory.mktemp("trace") / "jobs.csv"
    path.write_text("\n".join(("submit_s,duration_s,gpu_num,user", *rows)) + "\n")
    return [run.result for run in simulate(trace_jobs(path, "1x8"), "fifo")]


@pytest.fixture(scope="module")
def one_job(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    return results(tmp_path_factory, "0,7200,2,ann")


@pytest.fixture(scope="module")
def three_days(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    return results(tmp_path_factory, "0,7200,2,ann", "259200,60,8,bob")


@pytest.mark.parametrize("name", ["jct", "queueing", "fairness"])
def test_a_single_point_has_a_marker_and_a_line_has_none(
    name: str, one_job: list[Result], three_days: list[Result]
) -> None:
    assert [line.get_marker() for line in figure_of(name, one_job).axes[0].lines] == ["o"]
    assert [line.get_marker() for line in figure_of(name, three_days).axes[0].lines] == ["None"]


@pytest.mark.parametrize("name", ["waiting", "in_use"])
def test_the_time_axis_has_hours_below_two_days(name: str, one_job: list[Result], three_days: list[Result]) -> None:
    (hours,), (days,) = figure_of(name, one_job).axes, figure_of(name, three_days).axes
    assert (hours.get_xlabel(), hours.dataLim.x1) == ("hours", 2.0)
    assert (days.get_xlabel(), round(days.dataLim.x1)) == ("days", 3)


@pytest.mark.parametrize("name", ["waiting", "in_use"])
def test_small_counts_have_ticks_at_whole_numbers(name: str, one_job: list[Result]) -> None:
    (axes,) = figure_of(name, one_job).axes
    assert axes.get_yscale() == "linear"
    assert all(tick == round(tick) for tick in axes.get_yticks())


def test_many_waiting_jobs_have_a_logarithmic_axis() -> None:
    runs = simulate(generated_jobs(200, "1x8", seed=1, load=3.0), "fifo")
    (axes,) = figure_of("waiting", [run.result for run in runs]).axes
    assert axes.get_yscale() == "symlog"
