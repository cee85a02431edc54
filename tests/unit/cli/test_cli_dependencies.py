"""What `--after` means: ids, ranges and names of tasks, arrays and sweeps."""

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from gpuyard.cli.input.dependencies import NoSuchTask, WrongDependency, open_task_meant, tasks_meant, with_dependencies
from gpuyard.core.domain.values import TaskStatus
from gpuyard.live.sdk import Client, connect
from gpuyard.live.wire.answers import TaskList
from tests.unit.live.sdk.fake_server import Answering, fake_server, task

PENDING, SUCCESS, FAILED = TaskStatus.PENDING, TaskStatus.SUCCESS, TaskStatus.FAILED
OLD, NEW = "2026-01-01T00:00:00.000000Z", "2026-01-02T00:00:00.000000Z"
TASKS = [
    task(1, SUCCESS, name="prepare", created_at=OLD),
    task(2, FAILED, name="prepare", created_at=NEW),
    *(task(10 + n, SUCCESS if n < 2 else PENDING, name="train", array_index=n, created_at=NEW) for n in range(4)),
    *(task(20 + n, SUCCESS, name="train", array_index=n, created_at=OLD) for n in range(2)),
    *(task(30 + n, SUCCESS if n else PENDING, name=f"sweep[lr={n}]", created_at=NEW) for n in range(3)),
    *(task(40 + n, SUCCESS, name=f"done[lr={n}]", created_at=NEW) for n in range(2)),
    *(task(50 + n, PENDING, name="twice", array_index=n % 2, created_at=(OLD, NEW)[n // 2]) for n in range(4)),
    task(60, PENDING, name="sweeper", created_at=NEW),
]


def answers(line: Answering) -> None:
    asked = {name: values[0] for name, values in parse_qs(urlsplit(line.asked.path).query).items()}
    wanted = asked["status"].split(",") if "status" in asked else [each.value for each in TaskStatus]
    found = [
        each
        for each in reversed(TASKS)
        if each.status.value in wanted
        and asked.get("name", each.name) == each.name
        and asked.get("q", "") in each.name
        and asked.get("since", "") <= each.created_at
    ]
    line.say(TaskList(found[: int(asked["limit"])], len(found), None))


@pytest.fixture
def cluster() -> Iterator[Client]:
    with fake_server(answers) as server:
        yield connect(server.url)


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("7", ["7"]),
        ("task-7", ["task-7"]),
        ("7-9", ["task-7", "task-8", "task-9"]),
        ("prepare", ["task-2"]),
        ("train", ["task-10", "task-11", "task-12", "task-13"]),
        ("sweep", ["task-30", "task-31", "task-32"]),
        ("sweep[lr=0]", ["task-30"]),
        ("sweep[lr=1]", ["task-31"]),
        ("done", ["task-40", "task-41"]),
    ],
)
def test_a_word_means_a_task_or_all_of_an_array_or_sweep(cluster: Client, word: str, meant: list[str]) -> None:
    assert tasks_meant(cluster, word) == meant


def test_a_name_that_means_nothing_or_several_things_is_refused(cluster: Client) -> None:
    with pytest.raises(NoSuchTask, match="there is no task, array or sweep with the id or name 'nobody'"):
        tasks_meant(cluster, "nobody")
    with pytest.raises(WrongDependency, match="2 tasks, arrays or sweeps that have not ended are called twice: task-52 to task-53, task-50 to task-51; use ids"):  # fmt: skip
        tasks_meant(cluster, "twice")
    with pytest.raises(WrongDependency, match="9-7 is not a range of task numbers"):
        tasks_meant(cluster, "9-7")


def test_of_an_array_an_open_task_is_found_by_name(cluster: Client) -> None:
    assert open_task_meant(cluster, "7") == "task-7"
    assert open_task_meant(cluster, "train") in {"task-12", "task-13"}
    with pytest.raises(NoSuchTask, match="no array or sweep that has not ended is called 'done'"):
        open_task_meant(cluster, "done")


def test_the_words_of_a_request_become_ids_each_once_and_positions_stay(cluster: Client) -> None:
    request = {"depends_on": ["train", "task-10", "tasks[2]"], "after_any": ["prepare"], "name": "x"}
    assert with_dependencies(cluster, [request, {"name": "y"}]) == [
        {
            "depends_on": ["task-10", "task-11", "task-12", "task-13", "tasks[2]"],
            "after_any": ["task-2"],
            "name": "x",
        },
        {"name": "y"},
    ]
