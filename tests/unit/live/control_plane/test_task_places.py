"""A page from anywhere in a list of open and ended tasks equals that part of the sorted whole."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from gpuyard.core.domain.task import Resources, TaskSpec
from gpuyard.core.domain.values import ENDED, TaskId, TaskStatus, TenantId
from gpuyard.live.control_plane import task_places
from gpuyard.live.control_plane.stores.archive import Archive, Filters, Order, SortKey
from gpuyard.live.control_plane.stores.archiver import archive_row
from gpuyard.live.control_plane.task_places import OpenTasks, find_places
from gpuyard.live.control_plane.views import TaskView, searched_text

OPEN = (TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.SUSPENDED)
COUNT = 600
ORDERS = [Order(by, way) for by in get_args(SortKey) for way in (True, False)]
FILTERS = some.builds(
    Filters,
    some.lists(some.sampled_from(list(TaskStatus)), max_size=3, unique=True).map(tuple),
    some.none() | some.sampled_from([TenantId("a"), TenantId("b")]),
    some.none() | some.sampled_from([20, 80]),
    some.none() | some.sampled_from(["u", "v"]),
    some.none() | some.sampled_from(["p"]),
    some.none() | some.sampled_from(["x", "y"]),
    some.none() | some.sampled_from([3.0]),
    some.none() | some.sampled_from(["task-1", "u", "seed 5"]),
)


def task(number: int, chance: random.Random) -> TaskView:
    status = chance.choice((*OPEN, *ENDED))
    spec = TaskSpec(
        TenantId(chance.choice("ab")),
        Resources(gpus=1),
        command=f"python run.py --seed {number % 7}",
        name=chance.choice(["", "x", "y"]),
        user=chance.choice("uv"),
        project=chance.choice(["", "p"]),
    )
    started = chance.choice([None, float(chance.randrange(50))])
    finished = float(chance.randrange(50)) if status in ENDED else None
    return TaskView(
        TaskId(number),
        spec,
        float(chance.randrange(6)),
        status=status,
        priority=chance.choice([20, 80]),
        started_at=started,
        finished_at=finished,
    )


def opened(views: list[TaskView]) -> OpenTasks:
    texts = {view.id: text_of(view) for view in views}
    over = {view.id for view in views if view.status in ENDED}
    return OpenTasks({view.id: view for view in views}, texts, over)


def text_of(view: TaskView) -> str:
    return searched_text(view.id, view.spec.name, view.spec.user, view.spec.command)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[TaskView], OpenTasks, Archive]:
    """Every third task that has ended is still in memory; half of these are in the archive, too."""
    chance = random.Random(5)
    everything = [task(number, chance) for number in range(1, COUNT + 1)]
    ended = [view for view in everything if view.status in ENDED]
    here = [view for view in everything if view.status not in ENDED] + ended[::3]
    archive = Archive.open(tmp_path_factory.mktemp("places") / "archive.sqlite")
    archive.add([archive_row(view) for place, view in enumerate(ended) if place % 3 or place % 2], seq=1)
    return everything, opened(sorted(here, key=lambda view: view.id)), archive


@pytest.fixture(autouse=True, scope="module")
def _small_steps() -> Any:
    """With so few tasks nothing would be bisected or sorted in pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_places, "WINDOW", 4)
        patch.setattr(task_places, "SORTED_AT_ONCE", 16)
        yield


@pytest.mark.slow
@settings(max_examples=400, deadline=None, database=None)
@given(FILTERS, some.sampled_from(ORDERS), some.integers(0, COUNT + 50), some.integers(1, 200))
def test_a_page_equals_a_part_of_the_sorted_whole(
    cluster: tuple[list[TaskView], OpenTasks, Archive], filters: Filters, order: Order, offset: int, limit: int
) -> None:
    check(cluster, filters, order, offset, limit)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("offset", [0, 1, 150, 299, 550, 600, 700])
def test_a_page_of_all_tasks_is_right_in_every_order(
    cluster: tuple[list[TaskView], OpenTasks, Archive], order: Order, offset: int
) -> None:
    check(cluster, Filters(), order, offset, 40)


def check(
    cluster: tuple[list[TaskView], OpenTasks, Archive], filters: Filters, order: Order, offset: int, limit: int
) -> None:
    everything, here, archive = cluster
    wanted = sorted((view for view in everything if passes(view, filters)), key=lambda one: sort_key(one, order))
    expected = [view.id for view in (reversed(wanted) if order.descending else wanted)]
    with archive.listed(filters, order) as ended:
        found = find_places(here, ended, filters, order, offset, limit)
    assert found.tasks == expected[offset : offset + limit]
    assert found.total == len(expected)


def passes(view: TaskView, filters: Filters) -> bool:
    spec = view.spec
    pairs = [
        (filters.tenant, spec.tenant),
        (filters.priority, view.priority),
        (filters.user, spec.user),
        (filters.project, spec.project),
        (filters.name, spec.name),
    ]
    return (
        (not filters.statuses or view.status in filters.statuses)
        and all(asked is None or asked == value for asked, value in pairs)
        and (filters.since is None or view.submitted_at >= filters.since)
        and (filters.text is None or filters.text in text_of(view))
    )


def sort_key(view: TaskView, order: Order) -> tuple[bool, Any, int]:
    values = {
        "created_at": view.id,
        "priority": view.priority,
        "started_at": view.started_at,
        "finished_at": view.finished_at,
        "name": view.spec.name,
        "status": view.status.value,
    }
    value = values[order.by]
    return (value is not None, 0 if value is None else value, view.id)


def test_a_jump_reads_few_rows_of_a_large_archive(
    cluster: tuple[list[TaskView], OpenTasks, Archive], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, here, archive = cluster
    read = 0
    with archive.listed(Filters(), Order("name")) as ended:
        rows = ended.rows

        def counted(offset: int, limit: int) -> list[tuple[Any, TaskId]]:
            nonlocal read
            read += limit
            return rows(offset, limit)

        monkeypatch.setattr(ended, "rows", counted)
        find_places(here, ended, Filters(), Order("name"), 300, 10)
    assert read < 40


def test_an_empty_cluster_has_an_empty_page(tmp_path: Path) -> None:
    archive = Archive.open(tmp_path / "archive.sqlite")
    with archive.listed(Filters(), Order()) as ended:
        assert find_places(OpenTasks({}), ended, Filters(), Order(), 3, 5) == task_places.Places([], 0)


@pytest.mark.slow
def test_a_jump_and_a_search_cost_little_more_than_a_pass_over_the_tasks(tmp_path: Path) -> None:
    """Processor time, relative to the same work on the same machine. A sort of all tasks takes 15 to 50 passes."""
    spec = task(1, random.Random(1)).spec
    many = opened([TaskView(TaskId(number), spec, 1.0) for number in range(1, 100_001)])
    archive = Archive.open(tmp_path / "archive.sqlite")

    def jump(filters: Filters) -> None:
        with archive.listed(filters, Order()) as ended:
            assert len(find_places(many, ended, filters, Order(), 20_000, 200).tasks) == 200

    one_pass = least(lambda: [view.id for view in many.tasks.values() if view.priority == 0])
    assert least(lambda: jump(Filters())) < 3 * one_pass
    assert least(lambda: jump(Filters(text="seed"))) < 8 * one_pass
    assert least(lambda: jump(Filters(statuses=(TaskStatus.PENDING,)))) < 8 * one_pass


def least(work: Callable[[], object]) -> float:
    spent = []
    for _ in range(5):
        began = time.thread_time()
        work()
        spent.append(time.thread_time() - began)
    return min(spent)
