"""However many tasks have ended, memory and journal hold what is open, and a bounded rest."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuyard.domain import commands as command
from gpuyard.domain.events import Event, TaskPlaced
from gpuyard.domain.refusals import Refusal
from gpuyard.domain.settings import Settings
from gpuyard.domain.task import Estimate, NewTask, Resources, TaskSpec
from gpuyard.domain.tenant import QuotaMode, Split
from gpuyard.domain.values import Outcome, TaskId, TenantId
from gpuyard.engine import invariants, snapshot
from gpuyard.engine.engine import Engine
from gpuyard.engine.state import State
from gpuyard.journal.records import Entry, Snapshot
from gpuyard.journal.stores.sqlite import SqliteJournal
from gpuyard.testing import node
from tests.replay.recovery import document, recovered

SEGMENT_FACTS = 2_000
TASKS = 20_000
REMEMBERED = 100


class Yard:
    """An engine and its journal, driven as a server would: durable first, a snapshot now and then."""

    def __init__(self, folder: Path, mode: QuotaMode) -> None:
        self.engine = Engine()
        self.journal = SqliteJournal.open(folder, segment_facts=SEGMENT_FACTS)
        self.now = 0.0
        self._unwritten: list[Entry] = []
        self._since_snapshot = 0
        self.most_facts_kept = 0
        self.tell(command.FoundYard("lab"))
        self.tell(command.ChangeSettings(Settings(remember_ended=REMEMBERED)))
        self.tell(command.SetSplit(Split(0.5, 0.5, mode)))
        for place in range(4):
            self.tell(command.JoinNode(node(f"n{place}", gpus=4)))

    @property
    def state(self) -> State:
        return self.engine.state

    def tell(self, asked: command.Command) -> list[Event]:
        answer = self.engine.handle(asked, self.now)
        assert not isinstance(answer, Refusal), answer.sentence()
        facts = [*answer, *self.engine.decide(self.now)]
        self._unwritten += [Entry(self.now, event) for event in facts]
        if len(self._unwritten) >= 500:
            self.write()
        return facts

    def write(self) -> None:
        self.journal.append(self._unwritten)
        self._since_snapshot += len(self._unwritten)
        self._unwritten = []
        if self._since_snapshot >= 2_000:
            self._since_snapshot = 0
            self.journal.save_snapshot(Snapshot(self.journal.head, snapshot.dump(self.state)))
            self.journal.retire()


def spec(number: int, timeout_seconds: float | None) -> TaskSpec:
    """Of a few sizes and lengths, of two tenants; every second one may be stopped for others."""
    seconds = 10.0 * (1 + number % 40)
    return TaskSpec(
        TenantId(("red", "green")[number % 2]),
        Resources(gpus=(1, 1, 2, 4)[number % 4], cpus=number % 3),
        estimate=Estimate(seconds, seconds, seconds) if number % 5 else None,
        priority=number % 7,
        timeout_seconds=timeout_seconds,
        deadline=None if timeout_seconds is None else 1e9,
    )


def live(yard: Yard, tasks: int, timeout_seconds: float | None = None) -> None:
    """Every second a task comes, and those that run end, oldest first, as fast as new ones come."""
    running: list[TaskId] = []

    def note(facts: Sequence[Event]) -> None:
        running.extend(event.task for event in facts if isinstance(event, TaskPlaced))

    for number in range(1, tasks + 1):
        yard.now += 1.0
        note(yard.tell(command.SubmitTasks((NewTask(TaskId(number), spec(number, timeout_seconds)),))))
        if len(yard.state.tasks) > 30 and running:
            end(yard, running, note)
    while running:
        end(yard, running, note)
    yard.write()


def end(yard: Yard, running: list[TaskId], note: object) -> None:
    number = running.pop(0)
    attempt = yard.state.tasks[number].attempts
    yard.tell(command.ReportStarted(number, attempt))
    facts = yard.tell(command.ReportEnded(number, attempt, Outcome.SUCCEEDED, 0))
    assert callable(note)
    note(facts)


@pytest.mark.parametrize("mode", list(QuotaMode))
def test_twenty_thousand_tasks_leave_a_bounded_yard_and_journal(mode: QuotaMode, tmp_path: Path) -> None:
    yard = Yard(tmp_path, mode)
    live(yard, TASKS)

    state = yard.state
    assert state.last_task == TASKS
    assert not state.tasks
    assert len(state.ended) == len(state.ended_order) == REMEMBERED
    assert not any(state.on_node.values())
    assert not state.holds
    assert not state.prey
    assert not state.awaited
    queue = state.queue
    assert queue.waiting == 0
    assert len(queue.lines) <= 300
    assert len(queue.by_number) == sum(map(len, queue.by_gpus.values())) == len(queue.lines)
    assert sum(len(group.heap) for line in queue.lines.values() for group in line.groups.values()) <= 300
    assert sum(map(len, queue.with_class)) <= 300
    assert not queue.with_tenant
    assert len(state.timers) <= 300
    assert len(document(state)) < 20_000

    assert yard.journal.head.seq > 4 * TASKS
    segments = list(tmp_path.glob("facts-*.sqlite"))
    assert len(segments) <= 5
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 5 * 1_000_000
    yard.journal.close()

    journal = SqliteJournal.open(tmp_path, segment_facts=SEGMENT_FACTS)
    left = recovered(journal)
    assert document(left) == document(state)
    invariants.check(left)
    journal.close()
