"""The file of alerts, and what the scheduler knows about its commits after a restart."""

import sqlite3
from contextlib import closing
from pathlib import Path

from gpuyard.live.control_plane.alerts.commit_times import WINDOW_SECONDS, CommitTimes
from gpuyard.live.control_plane.alerts.rules.rule import Alert, AlertStatus, Severity
from gpuyard.live.control_plane.alerts.store import AlertStore

ALERT = Alert(
    "gpu_hot", (("node", "n1"),), AlertStatus.FIRING, Severity.WARNING, "It is hot.", 90.0, 0.0, 1.0, 1.0, 1.0
)


def test_a_file_without_figures_is_upgraded_and_keeps_its_alerts(tmp_path: Path) -> None:
    file = tmp_path / "alerts.sqlite"
    store = AlertStore.open(file)
    store.save({ALERT.id: ALERT}, (), {}, 10)
    store.close()
    with closing(sqlite3.connect(file)) as database:
        database.execute("DROP TABLE figures")
        database.execute("PRAGMA user_version = 1")
    store = AlertStore.open(file)
    assert (store.note, store.alerts(), store.figures()) == (None, [ALERT], {})
    store.save({ALERT.id: None}, (), {"evaluated_at": 5.0}, 10)
    assert (store.alerts(), store.figures()) == ([], {"evaluated_at": 5.0})
    store.close()


def test_nothing_is_known_about_commits_before_the_first_one() -> None:
    now = 0.0
    commits = CommitTimes(lambda: now)
    assert commits.mean() is None
    commits.observe(2.0)
    assert commits.mean() == 2.0
    now = WINDOW_SECONDS + 1.0
    assert commits.mean() == 0.0, "a minute without commits is not slow"


def test_the_commits_of_the_last_scheduler_count_for_a_minute() -> None:
    now = 0.0
    commits = CommitTimes(lambda: now)
    commits.resume(2.0, 3)
    commits.observe(6.0)
    assert (commits.mean(), commits.count()) == (3.0, 4)
    now = WINDOW_SECONDS + 1.0
    assert commits.mean() == 0.0
