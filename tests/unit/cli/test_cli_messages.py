"""Messages in English and Chinese: the language is chosen by the environment, and the catalog is complete."""

import json
import re
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from gpuyard import cli
from gpuyard.cli.output.short_reasons import SHORT_REASONS, short_reason
from gpuyard.cli.shell import messages
from gpuyard.cli.shell.command_table import command_table
from gpuyard.cli.shell.messages import VARIABLES, catalog, in_local_time, language, localized, read_catalog
from gpuyard.core.domain.refusals import (
    ENDLESS,
    REFUSALS,
    SHORTER,
    Booked,
    BookingNotBegun,
    ClassQuotaFull,
    GpuMemoryTooSmall,
    Never,
    NoRoom,
    NotNow,
    TenantQuotaTooSmall,
    UnderMaintenance,
    UnknownTask,
)
from gpuyard.core.domain.values import NodeId, TaskClass, TaskId, TenantId
from tests.unit.live.sdk.fake_server import fake_server

DAILY = (
    "submit", "run", "ps", "show", "logs", "cancel", "explain", "gpus", "nodes", "usage", "up", "completion", "help", "hold",
    "release", "lease", "login",
)  # fmt: skip
"""Commands whose options are translated, too; of the others the descriptions are."""
FILE = Path(messages.__file__).with_name("zh.po")


@pytest.fixture(autouse=True)
def _no_language(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*VARIABLES, "GPUYARD_SERVER", "GPUYARD_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("GPUYARD_WAIT_FOR_SCHEDULER", "0")


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "de_DE.UTF-8"}, "en"),
        ({"LC_MESSAGES": "en_US.UTF-8", "LC_ALL": "zh_TW.UTF-8"}, "zh"),
        ({"LC_ALL": "en_US.UTF-8", "LANGUAGE": "de:zh:en"}, "zh"),
        ({"LANGUAGE": "zh", "GPUYARD_LANG": "en"}, "en"),
        ({"GPUYARD_LANG": "zh", "LC_ALL": "C"}, "zh"),
        ({"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}, "en"),
    ],
)
def test_the_first_variable_that_is_set_decides(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], expected: str
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert language() == expected


def needed() -> dict[str, str]:
    """Every text that must have a translation, and where it is from."""
    texts = {}
    for path, row in command_table().items():
        words = path.split()
        if len(words) <= 2 or words[1] in DAILY:
            texts[row["about"]] = path
        if len(words) == 1 or words[1] in DAILY:
            texts |= {one["about"]: path for one in (*row.get("arguments", ()), *row.get("options", ()))}
    texts |= {refusal.text: refusal.__name__ for refusal in REFUSALS if issubclass(refusal, (Never, NotNow))}
    texts |= {refusal.text_begun: refusal.__name__ for refusal in (Booked, UnderMaintenance)}
    texts |= dict.fromkeys((SHORTER, ENDLESS), "refusals")
    texts |= dict.fromkeys(SHORT_REASONS.values(), "SHORT_REASONS")
    texts.pop("", None)
    return texts


def test_every_message_has_a_translation() -> None:
    missing = {text: place for text, place in needed().items() if text not in catalog("zh")}
    assert not missing, f"{FILE.name} has no translation of these texts; add them"


def test_translations_have_the_same_placeholders_options_and_numbers() -> None:
    entries = read_catalog(str(FILE))
    assert len(entries) == FILE.read_text(encoding="utf-8").count("\nmsgid ") - 1, "an entry is empty or repeated"
    for text, translation in entries.items():
        for pattern in (r"\{\w+\}", r"--[a-z][a-z-]+", r"`[^`]+`", r"GPUYARD_\w+"):
            there, here = set(re.findall(pattern, text)), set(re.findall(pattern, translation))
            assert here == there, (text, translation)
        assert any(ord(letter) > 0x2E80 for letter in translation), translation


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        (NoRoom(needed=4, nodes=3, free=1).sentence(), "任务需要一个节点上有 4 块 GPU；3 个合适的节点中最空闲的有 1 块空闲。空闲的足够时启动。"),
        (NoRoom(needed=1, nodes=1, free=0).sentence(), "任务需要一个节点上有 1 块 GPU；唯一合适的节点有 0 块空闲。空闲的足够时启动。"),
        (GpuMemoryTooSmall(90000, 81559).sentence(), "任务需要每块 GPU 有 90000 MiB 显存；合适的 GPU 中最大的有 81559 MiB。"),
        (UnknownTask(TaskId(7)).sentence(), "任务 task-7 不存在。"),
        ("task-7 waits. The task waits for task-6 to end (see gpuyard explain task-6).", "task-7 在等待。任务等待 task-6 结束（见 gpuyard explain task-6）。"),
        ("task-3 started on node-1 and node-2.", "task-3 已在 node-1 and node-2 上启动。"),
        ("environment: .venv (Python 3.11), 34 variables", "环境：.venv (Python 3.11), 34 variables"),
        ("1 task continues; run `a` to manage it again or `b --stop-tasks` to end it.", "1 个任务继续运行；运行 `a` 重新接管，或运行 `b --stop-tasks` 结束它。"),
        ("By the estimates of running and waiting tasks, it starts at 01:08, between 01:07 and 01:09.", "按运行和等待中任务的估计，它将于 01:08 启动，区间为 01:07 至 01:09。"),
        ("A sentence that is not in the catalog. Nor this.", "A sentence that is not in the catalog. Nor this."),
    ],
)  # fmt: skip
def test_sentences_made_elsewhere_are_found_by_their_form(
    monkeypatch: pytest.MonkeyPatch, sentence: str, expected: str
) -> None:
    assert localized(sentence) == sentence
    monkeypatch.setenv("GPUYARD_LANG", "zh")
    assert localized(sentence) == expected


def test_refusals_with_all_kinds_of_values_are_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_LANG", "zh")
    for refusal in (
        ClassQuotaFull(TaskClass.BATCH, used=1, limit=1, needed=2),
        TenantQuotaTooSmall(TenantId("lab"), limit=1, needed=2, enough=2),
    ):
        assert not re.search(
            "[A-Za-z]{4,} [a-z]{3,} [a-z]{2,}", localized(refusal.sentence()).replace("gpuyard tenants set lab", "")
        )


def test_commands_speak_chinese_and_json_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")

    def printed(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gpuyard", *words])
        code = cli.main()
        told = capsys.readouterr()
        return code, told.out, told.err

    assert "取消任务" in printed("cancel", "--help")[1]
    assert "命令" in printed("--help")[1]
    assert "选项" in printed("nodes", "--help")[1]
    assert printed("cansel") == (
        2,
        "",
        "gpuyard: 未知命令 'cansel'；你是想用 'gpuyard cancel' 吗？见 'gpuyard --help'。\n",
    )
    answer = {"task_id": "task-7", "id": "task-7", "status": "cancelled", "message": "task-7 was cancelled."}
    with fake_server(lambda line: line.say(answer)) as server:
        monkeypatch.setenv("GPUYARD_SERVER", server.url)
        assert printed("cancel", "7")[1] == "task-7 已取消。\n"
        assert json.loads(printed("cancel", "--json", "7")[1]) == answer
    monkeypatch.setenv("GPUYARD_SERVER", "http://127.0.0.1:1")
    assert "没有调度器应答" in printed("ps")[2]
    assert "No scheduler answers" in json.loads(printed("ps", "--json")[2])["error"]["message"]


def test_reasons_in_tables_are_translated_with_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = "The task waits for task-6 to end (see gpuyard explain task-6)."
    assert short_reason("WaitingForTasks", sentence) == "after task-6"
    monkeypatch.setenv("GPUYARD_LANG", "zh")
    assert short_reason("WaitingForTasks", sentence) == "在 task-6 之后"
    assert short_reason("exit_code", "It ended with exit code 3.") == "退出码 3"
    assert short_reason("exit_code", "It was ended by signal 9.") == "信号 9"
    assert short_reason("OnHold", None) == "被搁置"
    assert short_reason("new_code", sentence) == "任务等待 task-6 结束（见 gpuyard explain task-6）。"


@pytest.fixture
def _in_shanghai(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Shanghai")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_in_shanghai")
def test_instants_of_the_scheduler_are_given_in_local_time() -> None:
    now = datetime.fromisoformat("2026-11-20T09:00+08:00")
    begins, ends = (datetime.fromisoformat(f"2026-11-20T{clock}+00:00").timestamp() for clock in ("01:32", "16:02"))
    sentence = Booked(3, begins, ends).sentence()
    assert "from 2026-11-20 01:32 UTC to 2026-11-20 16:02 UTC" in sentence
    assert "from 09:32 to 2026-11-21 00:02 (booking-3)" in in_local_time(sentence, now)
    assert in_local_time("0000-99-99 99:99 UTC is no instant", now) == "0000-99-99 99:99 UTC is no instant"


@pytest.mark.usefixtures("_in_shanghai")
@pytest.mark.parametrize("spoken", ["en", "zh"])
def test_each_sentence_about_a_window_is_translated(monkeypatch: pytest.MonkeyPatch, spoken: str) -> None:
    monkeypatch.setenv("GPUYARD_LANG", spoken)
    for begun, known in ((False, False), (False, True), (True, True)):
        refusal = UnderMaintenance(NodeId("n1"), 3, 0.0, 3600.0, begun, known)
        assert ("window or on" in localized(refusal.sentence())) == (spoken == "en")
        assert ("--timeout" in localized(refusal.sentence())) == (not begun)


@pytest.mark.usefixtures("_in_shanghai")
@pytest.mark.parametrize("spoken", ["en", "zh"])
def test_messages_in_both_languages_have_local_instants(monkeypatch: pytest.MonkeyPatch, spoken: str) -> None:
    monkeypatch.setenv("GPUYARD_LANG", spoken)
    told = localized(BookingNotBegun(3, datetime.fromisoformat("2001-02-03T20:00+00:00").timestamp()).sentence())
    assert "2001-02-04 04:00" in told
    assert "UTC" not in told
    assert (told == "The task uses booking-3, which begins at 2001-02-04 04:00.") == (spoken == "en")
