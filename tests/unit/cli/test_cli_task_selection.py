"""Which tasks a command acts on: ids, ranges, names, and filters with a question."""

import sys
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import pytest
from msgspec.structs import replace

from gpuyard import cli
from gpuyard.cli.input.task_selection import task_named, tasks_named
from gpuyard.core.domain.values import TaskStatus
from gpuyard.live.sdk import Client, connect
from gpuyard.live.wire.answers import CancelAnswer, SessionAnswer, TaskList
from gpuyard.live.wire.tasks import ConsoleRequest
from tests.unit.live.sdk.fake_server import Answering, FakeServer, fake_server, refusal, task

TASKS = [
    task(1, TaskStatus.SUCCESS, name="old"),
    task(2, TaskStatus.FAILED, name="old"),
    task(3, TaskStatus.RUNNING, name="train", user="alice"),
    task(4, TaskStatus.PENDING, name="sweep", user="alice"),
    task(5, TaskStatus.PENDING, name="sweep", user="bob"),
    task(6, TaskStatus.PENDING, name="sweep", user="alice"),
    task(7, TaskStatus.PENDING, name="lr[a=1]", user="carol"),
    task(8, TaskStatus.RUNNING, name="lr[a=2]", user="carol"),
    task(10, TaskStatus.PENDING, name="lrs[a=1]", user="carol"),
]


def answers(line: Answering) -> None:
    parts = urlsplit(line.asked.path)
    asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
    if parts.path == "/api/v1/session":
        line.say(SessionAnswer(True, "alice", "lab", "member", "token", []))
    elif parts.path == "/api/v1/tasks" and line.asked.method == "GET":
        wanted = asked.get("status", "").split(",") if asked.get("status") else [each.value for each in TaskStatus]
        found = [
            each
            for each in reversed(TASKS)
            if each.status.value in wanted
            and all(getattr(each, name) == asked.get(name, getattr(each, name)) for name in ("name", "user"))
            and asked.get("q", "") in each.name
        ]
        line.say(TaskList(found[: int(asked["limit"])], len(found), None))
    elif parts.path == "/api/v1/tasks/task-9":
        line.say(refusal("UnknownTask", "There is no task 9."), 404)
    elif line.asked.method == "POST":
        line.say(task(99), 201)
    elif line.asked.method == "DELETE":
        id_ = parts.path.rpartition("/")[2]
        if 60 <= int(id_.removeprefix("task-")) < 70:
            line.say(CancelAnswer(id_, id_, TaskStatus.SUCCESS, f"{id_} had already ended (success).", had_ended=True))
            return
        if int(id_.removeprefix("task-")) >= 90:
            line.say(refusal("UnknownTask", f"There is no {id_}."), 404)
            return
        line.say(CancelAnswer(id_, id_, TaskStatus.CANCELLED, f"{id_} was cancelled."))
    else:
        line.say(next(each for each in TASKS if each.id == parts.path.rpartition("/")[2]))


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server(answers) as made:
        yield made


@pytest.fixture
def gpuyard(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def call(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["gpuyard", *words, "--server", server.url])
        return cli.main()

    return call


def cancelled(server: FakeServer) -> list[str]:
    """The tasks that were cancelled; the newest is asked for first."""
    return [asked.path.rpartition("/")[2] for asked in reversed(server.asked) if asked.method == "DELETE"]


def test_many_tasks_are_cancelled_in_one_sentence(
    gpuyard: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpuyard("cancel", "41-66") == 0
    assert capsys.readouterr() == ("19 tasks cancelled, 7 had ended.\n", "")
    assert gpuyard("cancel", "60-65") == 0
    assert capsys.readouterr().out == "6 tasks had ended.\n"
    assert gpuyard("cancel", "85-92") == 1
    told = capsys.readouterr()
    assert told.out == "5 tasks cancelled.\n"
    assert told.err == "gpuyard: 3 of these tasks do not exist (task-90 to task-92).\n"


@pytest.mark.parametrize("first", [70, 76])
def test_the_newest_task_is_cancelled_first_because_the_oldest_give_up_gpus_to_those_that_wait(
    gpuyard: Callable[..., int], server: FakeServer, first: int
) -> None:
    assert gpuyard("cancel", f"{first}-79") == 0
    asked = [asked.path.rpartition("/")[2] for asked in server.asked if asked.method == "DELETE"]
    assert asked == [f"task-{number}" for number in range(79, first - 1, -1)]


def test_few_tasks_are_cancelled_line_by_line_and_json_lists_all(
    gpuyard: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpuyard("cancel", "41-43") == 0
    assert capsys.readouterr().out.splitlines() == [f"task-{number} was cancelled." for number in (43, 42, 41)]
    assert gpuyard("cancel", "41-66", "--json") == 0
    answers = capsys.readouterr().out
    assert [f'"task-{number}"' in answers for number in range(41, 67)] == [True] * 26
    assert answers.count('"had_ended":true') + answers.count('"had_ended": true') == 7


def test_ids_ranges_and_names_select_tasks_once_each(server: FakeServer, gpuyard: Callable[..., int]) -> None:
    assert gpuyard("cancel", "4", "task-5", "3-5", "train") == 0
    assert cancelled(server) == ["task-4", "task-5", "task-3"]


def test_a_name_means_the_only_open_task_or_the_newest_that_has_ended(
    gpuyard: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpuyard("show", "train", "--json") == 0
    assert '"task_id":"task-3"' in capsys.readouterr().out
    assert gpuyard("show", "old", "--json") == 0
    assert '"task_id":"task-2"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sweep"], "3 open tasks are called sweep: task-6, task-5, task-4. Use the id of one of them"),
        (["missing"], "There is no task with the id or name missing; ids look like"),
        (["12-7"], "12-7 is not a range of task numbers such as 7-12"),
        (["0-9999999"], "is not a range of task numbers"),
        ([], "name a task, or select tasks with --mine, --name, --user, --tenant or --project"),
        (["4", "--mine"], "name tasks, or select them with options, not both"),
        (["--mine", "--user", "bob"], "--mine means alice; use one of the two"),
        (["--name", "sweep"], "there is no terminal to ask on"),
    ],
)
def test_a_wrong_selection_is_one_sentence_and_nothing_is_cancelled(
    words: list[str],
    said: str,
    server: FakeServer,
    gpuyard: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    assert gpuyard("cancel", *words) in {1, 2}
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
    assert cancelled(server) == []


def test_filters_select_all_tasks_that_match_after_a_question(
    server: FakeServer, gpuyard: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpuyard("cancel", "--mine", "--yes") == 0
    assert cancelled(server) == ["task-3", "task-4", "task-6"]
    assert gpuyard("cancel", "--user", "bob") == 0, "one task needs no question"
    assert cancelled(server)[:1] == ["task-5"]
    assert gpuyard("resume", "--mine") == 0
    assert "No task that is suspended matches." in capsys.readouterr().err


def test_the_name_of_a_sweep_selects_its_tasks(gpuyard: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert gpuyard("cancel", "--name", "lr", "--yes") == 0
    assert capsys.readouterr().out.splitlines() == ["task-8 was cancelled.", "task-7 was cancelled."]


@pytest.mark.parametrize("name", ["lr[…]", "lr[...]"])
def test_a_line_of_ps_selects_its_open_tasks(name: str, server: FakeServer, gpuyard: Callable[..., int]) -> None:
    assert gpuyard("cancel", name) == 0
    assert cancelled(server) == ["task-7", "task-8"]


def test_a_line_that_has_ended_means_the_newest_array_sweep_or_map(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = [
        task(20, TaskStatus.SUCCESS, name="f[x=1]", group="f-1", user="alice"),
        task(21, TaskStatus.FAILED, name="f[x=1]", group="f-2", user="alice"),
        task(22, TaskStatus.SUCCESS, name="other", user="alice"),
        task(23, TaskStatus.FAILED, name="f[x=2]", group="f-2", user="alice"),
        task(24, TaskStatus.FAILED, name="a", array_index=0, user="alice"),
    ]
    monkeypatch.setattr(sys.modules[__name__], "TASKS", over)
    cluster: Client = connect(server.url)
    assert tasks_named(cluster, ["f[…]"]) == ["task-21", "task-23"]
    assert tasks_named(cluster, ["a[…]"]) == ["task-24"]
    assert task_named(cluster, "a[…]") == "task-24"


def test_the_name_of_a_line_alone_says_how_all_are_meant(
    server: FakeServer, gpuyard: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpuyard("cancel", "lr") == 2
    told = capsys.readouterr().err
    assert "2 open tasks are called lr: task-8, task-7. Use the id of one of them, or 'lr[…]' for all of them" in told
    assert gpuyard("explain", "lr[…]") == 2
    assert gpuyard("cancel", "nothing[…]") == 1
    assert "There is no task with the id or name nothing[…]" in capsys.readouterr().err
    assert cancelled(server) == []


def test_retry_takes_what_failed_and_counts_what_it_leaves_out(
    gpuyard: Callable[..., int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    console = ConsoleRequest(terminal=True)
    over = [
        task(1, TaskStatus.FAILED, user="alice", command="python a.py"),
        task(2, TaskStatus.CANCELLED, user="alice", command="python b.py"),
        task(3, TaskStatus.TIMEOUT, user="alice", command=None),
        task(4, TaskStatus.FAILED, user="alice", command=["bash"], console=console),
        task(5, TaskStatus.CANCELLED, user="alice", command=None),
        task(6, TaskStatus.FAILED, user="alice", command="cat", console=replace(console, terminal=False)),
        task(7, TaskStatus.TIMEOUT, user="alice", command="python c.py"),
    ]
    monkeypatch.setattr(sys.modules[__name__], "TASKS", over)
    assert gpuyard("retry", "--mine", "--yes") == 0
    told = capsys.readouterr()
    assert told.out.splitlines() == ["task-99 is task-1 again.", "task-99 is task-7 again."]
    assert told.err == "gpuyard: Left out: 1 cancelled task, 2 leases, 1 terminal, 1 command with standard input.\n"


@pytest.mark.parametrize(("answer", "ends"), [("y\n", ["task-4", "task-6"]), ("n\n", []), ("\n", [])])
def test_the_question_names_some_tasks_and_is_answered_at_the_terminal(
    answer: str,
    ends: list[str],
    server: FakeServer,
    gpuyard: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    assert gpuyard("cancel", "--mine", "--name", "sweep") == (0 if ends else 130)
    assert cancelled(server) == ends
    assert "Cancel 2 tasks (task-4, task-6)?" in capsys.readouterr().err
