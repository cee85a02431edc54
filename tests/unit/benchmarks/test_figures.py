"""The benchmark of the journal runs, at a size for tests."""

from pathlib import Path

from benchmarks.common.output import tables
from benchmarks.journal import run
from gpuyard.core.domain.events import Event, TaskEnded


def test_it_prints_every_figure_and_folds_what_it_recovers(tmp_path: Path) -> None:
    folded: list[Event] = []

    figures = run(records=500, fold=lambda fact, _at: folded.append(fact), folder=tmp_path)

    assert set(figures) == {
        "facts",
        "facts_per_s_single",
        "facts_per_s_grouped_100",
        "facts_per_s_grouped_1000",
        "naive_facts_per_s_single",
        "grouped_100_over_naive",
        "grouped_1000_over_naive",
        "recovery_journal_s",
        "recovery_journal_facts_per_s",
        "recovery_snapshot_s",
        "bytes_per_fact",
        "sqlite_version",
    }
    assert len(folded) == 500 + 1000
    assert sum(isinstance(fact, TaskEnded) for fact in folded) == 300
    assert list(tmp_path.iterdir()) == []


def test_figures_of_several_runs_are_columns() -> None:
    single, runs = tables({"runs": [{"gpus": 200, "p50": 2.5}, {"gpus": 1600, "p50": None}], "python": "3.11"})

    assert single == "python  3.11"
    assert runs.splitlines() == ["gpus  200  1,600", "p50   2.5      –"]
