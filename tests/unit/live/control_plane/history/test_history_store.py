"""The file of the history: sealing, rolling up, expiry, damage, cards that come and go."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gpuyard.live.control_plane.history.layout import CLUSTER, GPUS, NODES, TIERS, width
from gpuyard.live.control_plane.history.slots import REST_SECONDS, SPARE_SLOTS, Slots
from gpuyard.live.control_plane.history.store import HistoryStore
from gpuyard.live.control_plane.stores.database import StoreDamaged, StoreError
from tests.unit.live.control_plane.history.story import T0, Reading, opened, sample, series, size_of

MANUAL = Path(__file__).parents[5] / "docs" / "manual" / "history.md"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HistoryStore]:
    store = opened(tmp_path)
    yield store
    store.close()


def counts(store: HistoryStore) -> list[tuple[int, int]]:
    """Open rows and sealed blocks of each tier."""
    with sqlite3.connect(store.path) as database:
        return [
            tuple(
                database.execute(f"SELECT count(*) FROM {table}_{tier}").fetchone()[0] for table in ("rows", "blocks")
            )
            for tier in range(3)
        ]


def record(store: HistoryStore, since: int, until: int, step: int = 1, **cards: Reading) -> None:
    for at in range(since, until, step):
        store.append(sample(at, cards))


def test_every_second_is_there_at_once_and_after_its_minute_is_sealed(store: HistoryStore) -> None:
    for at in range(T0, T0 + 90):
        store.append(sample(at, {"a": Reading(utilization=at % 100), "b": Reading(utilization=7)}))
        assert series(store, "a", at, at + 1, 1)["utilization"] == [at % 100 / 2]
    assert counts(store) == [(30, 1), (1, 0), (0, 0)]
    assert series(store, "a", T0, T0 + 90, 1)["utilization"] == [at % 100 / 2 for at in range(T0, T0 + 90)]
    assert series(store, "b", T0, T0 + 90, 1)["utilization"] == [3.5] * 90


def test_a_step_across_tiers_weighs_every_sample_alike(store: HistoryStore) -> None:
    for number, at in enumerate(range(T0, T0 + 150)):
        store.append(sample(at, {"a": Reading(utilization=number, power=10 * number, task=number % 2)}))
    found = series(store, "a", T0, T0 + 180, 180)
    assert found["utilization"] == [pytest.approx(sum(range(150)) / 150 / 2, abs=0.25)]
    assert (found["utilization_max"], found["power_watts_max"]) == ([74.5], [149.0])
    assert found["allocated"] == [pytest.approx(50, abs=0.5)]


def test_unknown_readings_are_null_and_do_not_count(store: HistoryStore) -> None:
    for at in range(T0, T0 + 61):
        known = at % 3 == 0
        store.append(sample(at, {"a": Reading(utilization=100 if known else None, power=None)}))
    found = series(store, "a", T0, T0 + 60, 60)
    assert (found["utilization"], found["power_watts"], found["power_watts_max"]) == ([50], [None], [None])
    assert series(store, "a", T0, T0 + 4, 1)["utilization"] == [50 if at % 3 == 0 else None for at in range(T0, T0 + 4)]


def test_nodes_and_the_cluster_are_recorded_beside_the_cards(store: HistoryStore) -> None:
    for at in range(T0, T0 + 61):
        store.append(sample(at, {"a": Reading(utilization=250)}, pending=float(at % 2)))
    assert series(store, "a", T0, T0 + 60, 60, NODES)["cpu_percent"] == [2.5]
    found = series(store, "", T0, T0 + 60, 60, CLUSTER)
    assert (found["tasks_pending"], found["tasks_pending_max"]) == ([0.5], [1])


def test_a_restart_in_the_middle_of_a_minute_loses_nothing(tmp_path: Path) -> None:
    for since, until in ((T0, T0 + 25), (T0 + 25, T0 + 40), (T0 + 45, T0 + 70)):
        store = opened(tmp_path)
        record(store, since, until, a=Reading(utilization=20))
        store.close()
    store = opened(tmp_path)
    there = [value is not None for value in series(store, "a", T0, T0 + 70, 1)["utilization"]]
    assert there == [not 40 <= second < 45 for second in range(70)]
    assert series(store, "a", T0, T0 + 60, 60)["utilization"] == [10]
    store.close()


def test_a_long_absence_seals_what_was_open_at_the_next_sample(store: HistoryStore) -> None:
    record(store, T0, T0 + 30, a=Reading(utilization=20))
    later = T0 + 2 * 86_400
    record(store, later, later + 1, a=Reading())
    assert counts(store) == [(1, 0), (0, 1), (0, 1)], "the seconds have expired, minute and hour are sealed"
    assert series(store, "a", T0, T0 + 3600, 3600)["utilization"] == [10]


def test_samples_expire_tier_by_tier(store: HistoryStore) -> None:
    for at in range(T0, T0 + 9 * 86_400, 1800):
        store.append(sample(at, {"a": Reading(utilization=20)}))
    (_, seconds), (_, minutes), (_, hours) = counts(store)
    assert seconds <= 3
    assert minutes <= 7 * 24 + 1
    assert hours == 8
    assert series(store, "a", T0, T0 + 3600, 3600)["utilization"] == [10]
    assert series(store, "a", T0, T0 + 3600, 60)["utilization"] == [None] * 60


def test_the_retention_shortens_every_tier(tmp_path: Path) -> None:
    store = opened(tmp_path, keep_seconds=600)
    assert [tier.keep for tier in store.tiers] == [600, 600, 600]
    for at in range(T0, T0 + 3 * 86_400, 300):
        store.append(sample(at, {"a": Reading()}))
    for (_, blocks), tier in zip(counts(store), TIERS, strict=True):
        assert blocks <= 600 // tier.block + 1
    store.close()
    longer = opened(tmp_path, keep_seconds=2 * 365 * 86_400)
    assert [tier.keep for tier in longer.tiers] == [3600, 7 * 86_400, 2 * 365 * 86_400]
    longer.close()


@pytest.mark.slow
def test_the_file_does_not_grow_once_all_tiers_are_full(tmp_path: Path) -> None:
    store, cards = opened(tmp_path, keep_seconds=7200), {f"n/{number}": Reading() for number in range(20)}
    sizes = []
    for at in range(T0, T0 + 3 * 86_400 + 1, 100):
        store.append(sample(at, cards))
        if at % 86_400 == 0:
            sizes.append(size_of(tmp_path))
    assert sizes[3] <= 1.05 * sizes[2], sizes
    store.close()


def test_a_card_that_has_left_keeps_its_history(store: HistoryStore) -> None:
    record(store, T0, T0 + 70, a=Reading(utilization=10), b=Reading(utilization=20))
    record(store, T0 + 70, T0 + 130, b=Reading(utilization=20), c=Reading(utilization=30))
    assert series(store, "a", T0, T0 + 130, 1)["utilization"] == [5] * 70 + [None] * 60
    assert series(store, "c", T0, T0 + 130, 1)["utilization"] == [None] * 70 + [15] * 60
    assert series(store, "b", T0, T0 + 120, 60)["utilization"] == [10, 10]
    record(store, T0 + 130, T0 + 140, a=Reading(utilization=40))
    assert series(store, "a", T0, T0 + 140, 1)["utilization"] == [5] * 70 + [None] * 60 + [20] * 10
    assert len(store.owners(GPUS, "a")) == 1, "it is back in its own slot"


def test_another_card_at_the_same_place_has_a_slot_of_its_own(store: HistoryStore) -> None:
    store.append(sample(T0, {"a": Reading(utilization=10)}, marks={"a": "uuid-1"}))
    store.append(sample(T0 + 1, {"a": Reading(utilization=20)}, marks={"a": "uuid-2"}))
    assert len(store.owners(GPUS, "a")) == 2
    assert series(store, "a", T0, T0 + 2, 1)["utilization"] == [5, 10]


def test_slots_are_bounded_although_cards_come_and_go() -> None:
    slots, now = Slots(keep_seconds=365 * 86_400), 0
    for number in range(500):
        now += REST_SECONDS
        assigned = slots.assign([(f"card-{number}", "", 1)], now)
        assert assigned.slots != [None]
    assert slots.count <= SPARE_SLOTS + 3
    assert len(slots.named("card-499")) == 1
    assert slots.named("card-0") == [], "its slot was needed"


def test_a_slot_is_not_passed_on_within_the_hour() -> None:
    slots = Slots(keep_seconds=60)
    for number in range(200):
        slots.assign([(f"card-{number}", "", 1)], number)
    assert slots.count == 200
    slots.assign([("new", "", 1)], 200 + REST_SECONDS + 1)
    assert slots.named("new")[0].slot == 0


def test_a_clock_that_goes_back_a_little_leaves_samples_out(store: HistoryStore) -> None:
    record(store, T0, T0 + 50, a=Reading(utilization=20))
    record(store, T0 + 20, T0 + 50, a=Reading(utilization=90))
    assert series(store, "a", T0, T0 + 50, 1)["utilization"] == [10] * 50


def test_a_clock_that_goes_back_far_replaces_that_time(store: HistoryStore) -> None:
    record(store, T0, T0 + 7300, step=10, a=Reading(utilization=20))
    with capture_logs() as logs:
        record(store, T0 + 3700, T0 + 3800, a=Reading(utilization=90), b=Reading())
    assert [line["event"] for line in logs] == ["history_cut"]
    assert series(store, "a", T0 + 3700, T0 + 3800, 1)["utilization"] == [45] * 100
    assert series(store, "a", T0, T0 + 3600, 3600)["utilization"] == [10]
    assert set(series(store, "a", T0 + 3800, T0 + 7300, 1)["utilization"]) == {None}


def test_a_clock_that_goes_forward_keeps_the_past(store: HistoryStore) -> None:
    record(store, T0, T0 + 60, a=Reading(utilization=20))
    later = T0 + 30 * 86_400
    record(store, later, later + 10, a=Reading(utilization=40))
    assert series(store, "a", T0, T0 + 3600, 3600)["utilization"] == [10]
    assert series(store, "a", later, later + 10, 1)["utilization"] == [20] * 10


@pytest.mark.parametrize("damage", [b"", b"no database", b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_replaced_with_a_line_of_the_log(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "history.sqlite").write_bytes(damage)
    with capture_logs() as logs:
        store = opened(tmp_path)
    assert [(line["event"], line["log_level"]) for line in logs] == [("history_replaced", "warning")]
    record(store, T0, T0 + 2, a=Reading(utilization=20))
    assert series(store, "a", T0, T0 + 2, 1)["utilization"] == [10, 10]
    store.close()


def test_damage_found_later_starts_the_history_again(tmp_path: Path) -> None:
    store = opened(tmp_path)
    record(store, T0, T0 + 61, a=Reading(utilization=20))
    with sqlite3.connect(store.path) as database:
        database.execute("UPDATE rows_0 SET gpus = x'0102'")
    database.close()
    with capture_logs() as logs, pytest.raises(StoreDamaged):
        series(store, "a", T0 + 60, T0 + 61, 1)
    assert [line["event"] for line in logs] == ["history_replaced"]
    assert store.owners(GPUS, "a") == []
    record(store, T0 + 61, T0 + 63, a=Reading(utilization=20))
    assert series(store, "a", T0, T0 + 63, 1)["utilization"] == [None] * 61 + [10, 10]
    store.close()


def test_a_file_of_a_newer_version_is_kept_aside(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with sqlite3.connect(tmp_path / "history.sqlite") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with capture_logs() as logs:
        store = opened(tmp_path)
    assert [line["event"] for line in logs] == ["history_set_aside"]
    assert (tmp_path / "history.sqlite.newer").exists()
    store.append(sample(T0, {"a": Reading()}))
    store.close()


def test_a_file_of_the_version_before_is_kept_aside_with_its_last_writes(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with sqlite3.connect(tmp_path / "history.sqlite") as database:
        database.execute("PRAGMA user_version = 1")
    database.close()
    (tmp_path / "history.sqlite-wal").write_bytes(b"")
    with capture_logs() as logs:
        store = opened(tmp_path)
    assert [line["event"] for line in logs] == ["history_set_aside"]
    assert "has version 1, which this gpuyard no longer reads" in logs[0]["message"]
    assert (tmp_path / "history.sqlite.older").exists()
    store.append(sample(T0, {"a": Reading()}))
    store.close()


def test_a_minute_of_readings_does_not_weigh_as_much_as_an_hour(store: HistoryStore) -> None:
    """A column is unknown in most samples of the first hour, while another column is always known."""
    for at in range(T0, T0 + 7300, 10):
        utilization = 200 if at < T0 + 60 else None if at < T0 + 3600 else 0
        store.append(sample(at, {"a": Reading(utilization=utilization, power=100)}))
    found = series(store, "a", T0, T0 + 7200, 7200)
    assert found["utilization"] == [pytest.approx(100 * 6 / (6 + 360), abs=0.26)]
    assert found["power_watts"] == [10.0]


def test_a_closed_history_is_not_opened_again(store: HistoryStore) -> None:
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.append(sample(T0, {"a": Reading()}))


def test_a_cluster_without_cards_has_a_history(store: HistoryStore) -> None:
    record(store, T0, T0 + 3700, step=5)
    assert series(store, "", T0, T0 + 3600, 3600, CLUSTER)["gpus_total"] == [0]
    assert series(store, "", T0, T0 + 3600, 3600, CLUSTER)["power_watts"] == [None]


def test_the_documented_size_of_a_gpu_is_that_of_the_layout() -> None:
    size = sum(width(GPUS.cells[tier.number]) * (tier.keep // tier.step) for tier in TIERS)
    assert f"{size / 1000:.0f} kB for each GPU" in MANUAL.read_text(encoding="utf-8")
