"""Decision records have one form, and their index says the same as they do."""

import re
from datetime import date
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
RECORDS = sorted(FOLDER.glob("[0-9]*.md"))
HEAD = re.compile(r"# (\d{4}) (.+)\n\n- Date: (\d{4}-\d\d-\d\d)\n- Status: (.+)\n\n## Context\n")
STATUS = re.compile(r"accepted|superseded by \[?(\d{4})\b.*")


def _head(record: Path) -> tuple[str, str, str, str]:
    """Return number, title, date and status of a record."""
    head = HEAD.match(record.read_text(encoding="utf-8"))
    assert head, f"{record.name} does not begin as docs/decisions/README.md asks for"
    number, title, day, status = head.groups()
    return number, title, day, status


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_a_record_has_number_date_status_and_sections(record: Path) -> None:
    number, _, day, status = _head(record)
    assert record.name.startswith(f"{number}-")
    assert date.fromisoformat(day).isoformat() == day
    known = STATUS.fullmatch(status)
    assert known, f"{record.name}: status {status!r}"
    assert known[1] is None or any(FOLDER.glob(f"{known[1]}-*.md"))
    assert "\n## Decision\n" in record.read_text(encoding="utf-8")


def test_numbers_are_used_once() -> None:
    numbers = [record.name[:4] for record in RECORDS]
    assert len(numbers) == len(set(numbers)) > 30


def test_the_index_lists_every_record_with_title_date_and_status() -> None:
    rows = [line for line in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| [")]
    there = [(record.name, *_head(record)) for record in RECORDS]
    assert rows == [
        f"| [{number}]({name}) | {title} | {day} | {status} |" for name, number, title, day, status in there
    ]
