"""The ledger of a soak test finds each kind of broken promise."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance import ledger
from tests.acceptance.ledger import CutOff, Life, Verdict

Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def one(
        token: int, begin: float, last: float, *, attempt: int = 1, node: str = "n1", gpu: int = 0, pid: int = 1,
        task: int = 0, origin: int = 7,
    ) -> None:  # fmt: skip
        lines = f"begin {begin} host {gpu}\nalive {last}\nend {last}\n"
        (tmp_path / f"{token}.{task or token + 100}.{attempt}.{origin}.{pid}.{node}").write_text(lines)

    return one


def checked(folder: Path, *, fenced: set[int] | None = None, cut_off: list[CutOff] | None = None) -> Verdict:
    verdict, lives = Verdict(), ledger.read(folder)
    ledger._check_starts(lives, {7}, verdict)
    ledger._check_gpus(lives, verdict)
    ledger._check_overlaps(lives, fenced or set(), {7}, cut_off or [], verdict)
    return verdict


def test_sequential_tasks_break_nothing(tmp_path: Path, write: Write) -> None:
    write(1, 10.0, 11.0)
    write(2, 11.0, 12.0)
    write(1, 12.0, 13.0, attempt=2)
    verdict = checked(tmp_path)
    assert not verdict.broken
    assert verdict.counts["ran to the end again"] == 1


def test_two_processes_on_one_gpu_are_found(tmp_path: Path, write: Write) -> None:
    write(1, 10.0, 11.0)
    write(2, 10.5, 12.0)
    write(3, 10.5, 12.0, node="n2")
    assert checked(tmp_path).counts["GPU twice"] == 1


def test_two_processes_of_one_attempt_on_a_node_are_found(tmp_path: Path, write: Write) -> None:
    write(1, 10.0, 11.0, pid=1)
    write(1, 12.0, 13.0, pid=2)
    assert checked(tmp_path).counts["started twice"] == 1


def test_overlapping_attempts_are_allowed_only_while_the_first_node_is_cut_off(tmp_path: Path, write: Write) -> None:
    write(1, 10.0, 14.0)
    write(1, 12.0, 13.0, attempt=2, node="n2")
    assert checked(tmp_path).counts["overlapping"] == 1
    assert checked(tmp_path, cut_off=[CutOff("n2", 9.0)]).counts["overlapping"] == 1
    assert checked(tmp_path, cut_off=[CutOff("n1", 9.0, 11.0)]).counts["overlapping"] == 1
    assert checked(tmp_path, cut_off=[CutOff("n1", 9.0)]).counts["overlapping"] == 0
    assert checked(tmp_path, cut_off=[CutOff("n1", 9.0)], fenced={101}).counts["overlapping"] == 1


def test_overlapping_attempts_are_allowed_while_the_first_node_obeys_a_second_scheduler(
    tmp_path: Path, write: Write
) -> None:
    write(1, 10.0, 14.0)
    write(1, 12.0, 13.0, attempt=2, node="n2")
    gone_over = CutOff("n1", 9.0, 13.0, to_second=True)
    assert not checked(tmp_path, cut_off=[gone_over], fenced={101}).broken
    assert checked(tmp_path, cut_off=[CutOff("n1", 9.0, 11.0, to_second=True)], fenced={101}).broken


def test_a_number_that_two_submissions_had_is_found_unless_the_events_of_one_are_gone(
    tmp_path: Path, write: Write
) -> None:
    write(1, 10.0, 11.0, task=5)
    write(2, 12.0, 13.0, task=5, origin=8)
    verdict = checked(tmp_path)
    assert (verdict.broken, verdict.counts["number twice, of forgotten schedulers"]) == ([], 1)
    write(3, 14.0, 15.0, task=5, pid=3)
    assert checked(tmp_path).counts["number twice"] == 1


def test_parts_of_a_gang_may_overlap(tmp_path: Path, write: Write) -> None:
    write(1, 10.0, 14.0, node="n1")
    write(1, 10.0, 14.0, node="n2")
    assert not checked(tmp_path).broken


def test_a_token_of_another_task_in_an_output_is_found() -> None:
    assert ledger.foreign_tokens(b"token:17:\nanything\n", 17) == set()
    assert ledger.foreign_tokens(b"token:17:\ntoken:3:\n", 17) == {3}
    assert ledger.foreign_tokens(b"", 17) == set()


def test_a_process_killed_while_it_writes_its_first_line_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "1.101.1.7.1.n1").write_text("")
    lives: list[Life] = ledger.read(tmp_path)
    assert lives == []
