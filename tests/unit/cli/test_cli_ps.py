"""`gpuyard ps`: the queue as a table, in any width."""

import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gpuyard import cli
from gpuyard.cli.output.fitted_table import TableColumn, table_lines
from gpuyard.cli.output.screen import Screen, cells, cut, padded, screen_of
from gpuyard.cli.output.short_reasons import SHORT_REASONS, short_reason
from gpuyard.core.domain.refusals import REFUSALS, Never, NotNow
from gpuyard.core.domain.values import TaskClass, TaskId, TaskStatus
from gpuyard.live.control_plane.ended_rows import EndedLine, rows_of
from gpuyard.live.wire.answers import TaskList
from gpuyard.live.wire.queue_answers import EndedAnswer, QueueAnswer, QueueRow
from tests.unit.live.sdk.fake_server import Answering, fake_server, task

VERY_LONG_AGO = (datetime.now(UTC) - timedelta(days=9)).isoformat()
LONG_AGO = (datetime.now(UTC) - timedelta(days=2, minutes=30)).isoformat()
"""Before the tests began; they take less than half an hour."""


def row(number: int, status: TaskStatus = TaskStatus.PENDING, **changed: Any) -> QueueRow:
    fields: dict[str, Any] = {
        "id": f"task-{number}", "name": f"t{number}", "command": "true", "status": status, "tenant_id": "default",
        "user": "ann", "project": "", "task_class": TaskClass.BATCH, "priority": 50, "gpu_count": 1, "nodes": 1,
        "gpu_fraction": None, "gpu_model": None, "node_ids": [], "array_index": None, "attempts": 0,
        "created_at": LONG_AGO, "started_at": None, "running_since": None, "ran_before_seconds": None, "place": None,
        "expected_start": None, "reason": None, "reason_code": None,
    }  # fmt: skip
    return QueueRow(**{**fields, **changed})


def ended_row(told: Any) -> QueueRow:
    number = TaskId(int(told.id.removeprefix("task-")))
    return rows_of([EndedLine(number, {}, number, number)], {number: told})[0]


def serving(rows: list[QueueRow], ended: list[Any] = ()) -> Callable[[Answering], None]:  # type: ignore[assignment]
    """Serve pages of these rows and ended tasks, as a scheduler does."""

    def answer(line: Answering) -> None:
        parts = urlsplit(line.asked.path)
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path == "/api/v1/queue":
            found = [one for one in rows if one.status in asked["status"].split(",")]
            running = sum(one.status == "running" for one in rows)
            line.say(
                QueueAnswer(
                    rows=found[: int(asked["limit"])], total=len(found), tasks=len(found), running=running,
                    suspended=0, pending=len(rows) - running,
                )
            )  # fmt: skip
        elif parts.path == "/api/v1/queue/ended":
            shown = [one if isinstance(one, QueueRow) else ended_row(one) for one in ended][: int(asked["limit"])]
            tasks = sum(one.count for one in shown) + 7 * (len(shown) < len(ended))
            line.say(EndedAnswer(rows=shown, tasks=tasks, has_more=len(shown) < len(ended)))
        else:
            line.say(TaskList(list(ended)[: int(asked["limit"])], len(ended), None))

    return answer


def printed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    behaviour: Callable[[Answering], None],
    *words: str,
) -> tuple[list[str], str, list[str]]:
    """Run `ps`; return its lines, what it said beside, and the addresses it asked for."""
    with fake_server(behaviour) as server:
        monkeypatch.setattr(sys, "argv", ["gpuyard", "ps", *words, "--server", server.url])
        assert cli.main() == 0
        asked = [one.path for one in server.asked]
    out = capsys.readouterr()
    return out.out.splitlines(), out.err, asked


@pytest.mark.parametrize(
    ("status", "changed", "ran"),
    [
        (TaskStatus.PENDING, {}, "–"),
        (TaskStatus.PENDING, {"started_at": LONG_AGO, "attempts": 1}, "–"),
        (TaskStatus.SUSPENDED, {"started_at": LONG_AGO, "attempts": 1, "ran_before_seconds": 45.0}, "45s"),
        (
            TaskStatus.RUNNING,
            {"started_at": VERY_LONG_AGO, "running_since": LONG_AGO, "ran_before_seconds": 10_800.0, "attempts": 1},
            "2d3h",
        ),
    ],
)
def test_the_time_that_a_task_waits_after_it_ran_is_not_run_time(
    status: TaskStatus,
    changed: dict[str, Any],
    ran: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = row(7, status, node_ids=["n1"], reason="why", **changed)
    (head, line), _, _ = printed(monkeypatch, capsys, serving([given]))
    where = "n1" if status is TaskStatus.RUNNING else "why"
    assert (head.split()[-2:], line.split()[-2:]) == (["RAN", "NODE/REASON"], [ran, where])


@pytest.mark.parametrize(
    ("changed", "ran"),
    [
        ({"run_seconds": 90.0}, "1m30s"),
        ({"started_at": VERY_LONG_AGO, "finished_at": LONG_AGO}, "6d23h"),
    ],
)
def test_ended_tasks_say_how_long_they_ran_and_how_they_ended(
    changed: dict[str, Any], ran: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    over = task(7, TaskStatus.FAILED, reason="It ended with exit code 3.", reason_code="exit_code", **changed)
    (_, line), _, asked = printed(monkeypatch, capsys, serving([], [over]), "-a")
    assert line.split()[-3:] == [ran, "exit", "3"]
    assert "/queue/ended" in asked[-1]
    (_, line), _, asked = printed(monkeypatch, capsys, serving([], [over]), "-a", "--unfold")
    assert line.split()[-3:] == [ran, "exit", "3"]
    assert "sort=-finished_at" in asked[-1]


def test_an_ended_map_is_one_line_with_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = {TaskStatus.FAILED: 2, TaskStatus.SUCCESS: 48}
    whole = row(
        40,
        TaskStatus.SUCCESS,
        name="f[x=1]",
        group="f-1",
        count=50,
        counts=counts,
        first_id="task-1",
        last_id="task-50",
    )
    gaps = row(
        70,
        TaskStatus.FAILED,
        name="g[x=1]",
        group="g-1",
        count=2,
        counts={TaskStatus.FAILED: 2},
        first_id="task-51",
        last_id="task-70",
    )
    one = row(90, TaskStatus.CANCELLED, name="f[x=9]", group="f-2")
    lines, said, _ = printed(monkeypatch, capsys, serving([], [whole, gaps, one]), "-a", "--columns", "id,name,status")
    assert [line.split(maxsplit=2) for line in lines[1:]] == [
        ["task-1-50", "f[…]", "48 success, 2 failed"],
        ["task-51…70", "g[…]", "2 failed"],
        ["task-90", "f[x=9]", "cancelled"],
    ]
    assert said == ""
    _, said, _ = printed(monkeypatch, capsys, serving([row(1)], [whole, gaps, one]), "-a", "-n", "2")
    assert said == "2 of 3 lines (0 running, 1 waiting), without 7 tasks that ended earlier; -n shows more.\n"


def test_running_and_waiting_tasks_share_the_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row(n, TaskStatus.RUNNING, node_ids=["n"]) for n in range(50)] + [row(n) for n in range(50, 150)]
    lines, said, _ = printed(monkeypatch, capsys, serving(rows), "-n", "20")
    assert [line.split()[3] for line in lines[1:]] == ["running"] * 10 + ["pending"] * 10
    assert said == "20 of 150 lines (50 running, 100 waiting); -n shows more.\n"
    few = [*rows[:4], *rows[50:]]
    lines, _, _ = printed(monkeypatch, capsys, serving(few), "-n", "20")
    assert [line.split()[3] for line in lines[1:]] == ["running"] * 4 + ["pending"] * 16
    few = rows[:53]
    lines, _, _ = printed(monkeypatch, capsys, serving(few), "-n", "20")
    assert [line.split()[3] for line in lines[1:]] == ["running"] * 17 + ["pending"] * 3


def test_an_array_is_one_line_with_ids_that_cancel_accepts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folded = row(12, count=5, first_id="task-12", last_id="task-16", array_index=0, place=3, name="sweep[lr=1]")
    single = row(20, array_index=4, name="train")
    (_, first, second), _, asked = printed(monkeypatch, capsys, serving([folded, single]))
    assert first.split()[:5] == ["task-12-16", "sweep[…]", "ann", "5", "pending"]
    assert second.split()[:2] == ["task-20", "train[4]"]
    assert "fold=true" in asked[0]
    _, _, asked = printed(monkeypatch, capsys, serving([single]), "--unfold")
    assert "fold" not in asked[0]


def test_place_start_and_attempts_are_shown_where_there_are_any(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    soon = (datetime.now(UTC) + timedelta(minutes=25)).isoformat()
    rows = [row(1, place=1, expected_start=soon, attempts=3, reason_code="NoRoom", reason="long")]
    (head, line), _, _ = printed(monkeypatch, capsys, serving(rows))
    assert head.split() == [
        "ID",
        "NAME",
        "USER",
        "STATUS",
        "PRIO",
        "GPUS",
        "PLACE",
        "START",
        "AGE",
        "RAN",
        "TRY",
        "NODE/REASON",
    ]
    assert re.search(r" 1 +in 24m +2d +– +3 +GPUs busy$", line)
    (head, _), _, _ = printed(monkeypatch, capsys, serving([row(1)]))
    assert "PLACE" not in head
    assert "TRY" not in head


def test_columns_filters_and_order_are_passed_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--columns", "name,tenant,why,class,model,node,reason,project,tries", "--sort", "-age", "-q", "abc")
    rows = [row(1, reason="A sentence.", reason_code="OnHold", project="p", gpu_model=["A", "B"])]
    (head, line), _, asked = printed(monkeypatch, capsys, serving(rows), *words, "-t", "lab", "-s", "pending")
    assert head.split() == ["NAME", "TENANT", "WHY", "CLASS", "MODEL", "NODE", "REASON", "PROJECT", "TRY"]
    assert re.split(r" {2,}", line) == ["t1", "default", "A sentence.", "batch", "A B", "–", "on hold", "p", "–"]
    query = parse_qs(urlsplit(asked[0]).query)
    assert query["sort"] == ["-created_at"]
    assert (query["q"], query["tenant"], query["status"]) == (["abc"], ["lab"], ["pending"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--columns", "naem"), "there is no column naem; did you mean name?"),
        (("--columns", ","), "it names no column"),
        (("--watch", "--json"), "choose one of --watch and --json"),
        (("--cursor", "x"), "use -n to show more lines"),
        (("--interval", "0.1"), "0.1 is too small"),
    ],
)
def test_wrong_options_are_refused(
    words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpuyard", "ps", *words, "--server", "http://127.0.0.1:9"])
    assert cli.main() == 2
    assert said in capsys.readouterr().err


def test_every_reason_to_wait_has_a_short_form() -> None:
    kinds = {kind.__name__ for kind in REFUSALS if issubclass(kind, Never | NotNow)}
    assert kinds - set(SHORT_REASONS) == set()
    assert all(len(short) <= 22 for short in SHORT_REASONS.values())


@pytest.mark.parametrize(
    ("code", "sentence", "short"),
    [
        ("ReservedFor", "The GPUs … are reserved for task-12, which is ahead of it.", "behind task-12"),
        ("WaitingForTasks", None, "after another task"),
        ("exit_code", "It ended with exit code 137.", "exit 137"),
        ("exit_code", "It was ended by signal 9.", "signal 9"),
        ("exit_code", "", "failed"),
        ("cancelled", "It was cancelled.", ""),
        ("SomethingNew", "A sentence.", "A sentence."),
    ],
)
def test_short_reasons(code: str, sentence: str | None, short: str) -> None:
    assert short_reason(code, sentence) == short


# --- the table --------------------------------------------------------------------------------------------------------

COLUMNS = (TableColumn("ID"), TableColumn("NAME", least=8), TableColumn("N", right=True, rank=1), TableColumn("WHY", least=6, rank=2))  # fmt: skip
ROWS = [["task-1", "训练模型训练模型", "7", "because of something"], ["task-22", "x", "100", "–"]]


@pytest.mark.parametrize("width", [200, 60, 45, 40, 30, 22, 15, 8])
def test_a_table_never_exceeds_the_terminal_and_keeps_its_first_column(width: int) -> None:
    lines = table_lines(COLUMNS, ROWS, Screen(width, 24, colors=False, moves=True))
    assert max(map(cells, lines)) <= width
    assert len({line.find("N") for line in lines[:1]}) == 1
    if width >= 22:
        assert lines[2].startswith("task-22")
    assert ("WHY" in lines[0]) == (width >= 30)


def test_columns_line_up_when_letters_are_two_cells_wide() -> None:
    lines = table_lines(COLUMNS, ROWS, Screen(None, 0, colors=False, moves=False))
    places = [cells(line[: line.index(word)]) for line, word in zip(lines, ("WHY", "because", "–"), strict=True)]
    assert len(set(places)) == 1


def test_only_a_real_terminal_gets_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert screen_of(Terminal())[2:] == (True, True)  # type: ignore[arg-type]
    monkeypatch.setenv("NO_COLOR", "1")
    assert screen_of(Terminal())[2:] == (False, True)  # type: ignore[arg-type]
    monkeypatch.setenv("TERM", "dumb")
    assert screen_of(Terminal())[2:] == (False, False)  # type: ignore[arg-type]
    assert Screen(80, 24, colors=False, moves=True).paint("x", "red") == "x"
    assert Screen(80, 24, colors=True, moves=True).paint("x", "red") == "\x1b[31mx\x1b[0m"


@pytest.mark.parametrize(
    ("text", "width", "short"), [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("训练模型", 5, "训练…"), ("训练", 2, "…"), ("ab", 0, "")]
)  # fmt: skip
def test_text_is_cut_by_cells(text: str, width: int, short: str) -> None:
    assert cut(text, width) == short
    assert cells(padded(text, 12)) == cells(padded(text, 12, right=True)) == 12


def test_cells_agree_with_rich() -> None:
    from rich.cells import cell_len

    for text in ("plain", "训练模型", "한국어", "e\u0301te\u0301", "½ ×–…"):
        assert cells(text) == cell_len(text)
