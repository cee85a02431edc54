"""Logs of scheduler and agent: one format, the configured file, and a bounded size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard.cli.service.log_output import OLD_FILES, NoLog, RotatingFile, set_up

SPEAK = """
import logging, sys, structlog
from gpuyard.cli.service.log_output import set_up
set_up(*sys.argv[1:])
log = structlog.get_logger()
log.debug("too_small")
log.info("task_submitted", task=7, path=__import__("pathlib").Path("/x"))
logging.getLogger("uvicorn.error").error("it %s", "broke")
logging.getLogger("asyncio").info("quiet")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("request_crashed")
"""


def said(level: str, form: str, output: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SPEAK, level, form, output]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)


def test_json_is_one_object_per_line() -> None:
    lines = [json.loads(line) for line in said("info", "json", "stdout").stdout.splitlines()]

    assert [line["event"] for line in lines] == ["task_submitted", "it broke", "request_crashed"]
    assert lines[0]["task"] == 7
    assert lines[0]["path"] == "/x"
    assert lines[0]["level"] == "info"
    assert lines[0]["timestamp"].endswith("Z")
    assert lines[1]["library"] == "uvicorn.error"
    assert "ZeroDivisionError" in lines[2]["exception"]


def test_text_has_no_colors_and_goes_to_the_chosen_file(tmp_path: Path) -> None:
    done = said("debug", "text", "stderr")

    assert done.stdout == ""
    assert "too_small" in done.stderr
    assert "task=7" in done.stderr
    assert "\x1b" not in done.stderr
    assert said("error", "text", str(tmp_path / "new" / "a.log")).stdout == ""
    written = (tmp_path / "new" / "a.log").read_text()
    assert "task_submitted" not in written
    assert "ZeroDivisionError" in written


EVENTS = """
import sys, structlog
from gpuyard.cli.service.log_output import set_up
set_up(*sys.argv[1:])
structlog.get_logger().info("events", lines=[
    {"event": "task_submitted", "task_id": "task-7", "gpus": ["a/0"], "timestamp": "2026-01-02T03:04:05Z"},
    {"event": "task_failed", "reason": "Two words.", "timestamp": "2026-01-02T03:04:06Z"},
])
"""


def test_what_is_said_of_many_events_at_once_is_a_line_for_each() -> None:
    def events(form: str) -> list[str]:
        command = [sys.executable, "-c", EVENTS, "info", form, "stdout"]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout.splitlines()

    first, second = map(json.loads, events("json"))
    assert (first["event"], first["level"], first["task_id"]) == ("task_submitted", "info", "task-7")
    assert (second["event"], second["timestamp"]) == ("task_failed", "2026-01-02T03:04:06Z")
    assert events("text") == [
        "2026-01-02T03:04:05Z [info     ] task_submitted           task_id=task-7 gpus=['a/0']",
        "2026-01-02T03:04:06Z [info     ] task_failed              reason='Two words.'",
    ]


def test_an_unwritable_log_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoLog, match="Cannot write the log"):
        set_up("info", "json", str(tmp_path / "file" / "a.log"))


@pytest.mark.parametrize("output", ["stdout", "/dev/full"])
def test_a_full_disk_does_not_end_a_process_that_logs(output: str) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-c", f"{SPEAK}\nsys.stderr.write('goes on')", "info", "json", output]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
    assert done.stderr.startswith(b"goes on")


def test_a_removed_log_is_recreated_at_rotation(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "a.log", largest_bytes=100)
    file.write(b"lost\n")
    (tmp_path / "a.log").unlink()
    for number in range(12):
        file.write(b"line %03d\n" % number)
    file.close()

    assert (tmp_path / "a.log").read_text() == "line 010\nline 011\n"


def test_a_log_does_not_grow_forever(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "a.log", largest_bytes=100)
    for number in range(200):
        file.write(b"line %03d\n" % number)
    file.close()

    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["a.log", *(f"a.log.{number}" for number in range(1, OLD_FILES + 1))]
    assert all(path.stat().st_size <= 100 for path in tmp_path.iterdir())
    assert (tmp_path / "a.log").read_text().endswith("line 199\n")


def test_a_log_is_appended_to(tmp_path: Path) -> None:
    for _ in range(2):
        file = RotatingFile(tmp_path / "a.log")
        file.write(b"line\n")
        file.close()

    assert (tmp_path / "a.log").read_text() == "line\nline\n"
