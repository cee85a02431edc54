"""The benchmark of the journal runs, at a size for tests."""

from pathlib import Path

from benchmarks.common.output import tables
from benchmarks.journal import run
from gpuyard.core.domain.events import Event, TaskEnded
from tests.postgres_server import PostgresServer


def test_it_prints_every_figure_and_applies_what_it_recovers(tmp_path: Path) -> None:
    applied: list[Event] = []

    figures = run(records=500, apply=lambda event, _at: applied.append(event), folder=tmp_path)

    assert set(figures) == {
        "events",
        "events_per_s_single",
        "events_per_s_grouped_100",
        "events_per_s_grouped_1000",
        "naive_events_per_s_single",
        "grouped_100_over_naive",
        "grouped_1000_over_naive",
        "recovery_journal_s",
        "recovery_journal_events_per_s",
        "recovery_snapshot_s",
        "bytes_per_event",
        "sqlite_version",
    }
    assert len(applied) == 500 + 1000
    assert sum(isinstance(event, TaskEnded) for event in applied) == 300
    assert list(tmp_path.iterdir()) == []


def test_it_appends_the_same_events_to_postgres_and_removes_them(tmp_path: Path, postgres: PostgresServer) -> None:
    figures = run(records=100, folder=tmp_path, postgres=postgres.url("unused").partition("?")[0])

    for name in ("sqlite", "postgres"):
        assert all(figures[f"{name}_beside_events_per_s_{group}"] > 0 for group in (1, 100, 1000))
    assert list(tmp_path.iterdir()) == []


def test_figures_of_several_runs_are_columns() -> None:
    single, runs = tables({"runs": [{"gpus": 200, "p50": 2.5}, {"gpus": 1600, "p50": None}], "python": "3.11"})

    assert single == "python  3.11"
    assert runs.splitlines() == ["gpus  200  1,600", "p50   2.5      –"]
