"""Memory and journal stay bounded, however many tasks have ended."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpuyard.core.domain import commands as command
from gpuyard.core.domain.events import Event, TaskPlaced
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.task import Estimate, NewTask, Resources, TaskSpec
from gpuyard.core.domain.tenant import Budget, QuotaMode, Split, Tenant
from gpuyard.core.domain.values import Outcome, TaskId, TenantId
from gpuyard.core.engine import invariants, snapshot
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.state import State
from gpuyard.core.journal.records import JournalEntry, Snapshot
from gpuyard.core.journal.stores.sqlite import SqliteJournal
from gpuyard.testing import node
from tests.replay.recovery import document, recovered

SEGMENT_EVENTS = 2_000
TASKS = 8_000
REMEMBERED = 100


class Cluster:
    """An engine and its journal, driven as a server would: durable first, a snapshot now and then."""

    def __init__(self, folder: Path, mode: QuotaMode) -> None:
        self.engine = Engine()
        self.journal = SqliteJournal.open(folder, segment_events=SEGMENT_EVENTS)
        self.now = 0.0
        self._unwritten: list[JournalEntry] = []
        self._since_snapshot = 0
        self.tell(command.CreateCluster("lab"))
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
        events = [*answer, *self.engine.decide(self.now)]
        self._unwritten += [JournalEntry(self.now, event) for event in events]
        if len(self._unwritten) >= 500:
            self.write()
        return events

    def ends(self, number: TaskId) -> list[TaskId]:
        """A task starts and succeeds; what was placed in its stead."""
        attempt = self.state.tasks[number].attempts
        started = self.tell(command.ReportStarted(number, attempt))
        return _placed([*started, *self.tell(command.ReportEnded(number, attempt, Outcome.SUCCEEDED, 0))])

    def write(self) -> None:
        self.journal.append(self._unwritten)
        self._since_snapshot += len(self._unwritten)
        self._unwritten = []
        if self._since_snapshot >= 2_000:
            self._since_snapshot = 0
            self.journal.save_snapshot(Snapshot(self.journal.head, snapshot.dump(self.state)))
            self.journal.retire()


def spec(number: int, timeout_seconds: float | None) -> TaskSpec:
    """Of a few sizes and lengths, of two tenants."""
    seconds = 10.0 * (1 + number % 40)
    return TaskSpec(
        TenantId(("red", "green")[number % 2]),
        Resources(gpus=(1, 1, 2, 4)[number % 4], cpus=number % 3),
        estimate=Estimate(seconds, seconds, seconds) if number % 5 else None,
        priority=number % 7,
        timeout_seconds=timeout_seconds,
        deadline=None if timeout_seconds is None else 1e9,
    )


def live(cluster: Cluster, tasks: int, timeout_seconds: float | None = None) -> None:
    """Every second a task comes, and those that run end, oldest first, as fast as new ones come."""
    running: list[TaskId] = []
    for number in range(1, tasks + 1):
        cluster.now += 1.0
        running += _placed(cluster.tell(_submit(number, spec(number, timeout_seconds))))
        if len(cluster.state.tasks) > 30 and running:
            running += cluster.ends(running.pop(0))
    while running:
        running += cluster.ends(running.pop(0))
    cluster.write()


def _submit(number: int, what: TaskSpec) -> command.SubmitTasks:
    return command.SubmitTasks((NewTask(TaskId(number), what),))


def _placed(events: Sequence[Event]) -> list[TaskId]:
    return [event.task for event in events if isinstance(event, TaskPlaced)]


@pytest.mark.parametrize("mode", list(QuotaMode))
def test_eight_thousand_tasks_leave_a_bounded_state_and_journal(mode: QuotaMode, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, mode)
    live(cluster, TASKS)

    state = cluster.state
    assert state.last_task == TASKS
    assert not state.tasks
    assert len(state.ended) == len(state.ended_order) == REMEMBERED
    assert not any(state.on_node.values())
    assert not state.reservations
    assert not state.preemptible
    assert not state.awaited
    queue = state.queue
    assert queue.waiting == 0
    assert len(queue.lines) <= 300
    assert len(queue.by_number) == sum(map(len, queue.by_gpus.values())) == len(queue.lines)
    assert _in_heaps(state) <= 300
    assert sum(map(len, queue.for_class)) <= 300
    assert not queue.for_tenant
    assert len(state.timers) <= 300
    assert len(document(state)) < 20_000

    assert cluster.journal.head.seq > 4 * TASKS
    segments = list(tmp_path.glob("facts-*.sqlite"))
    assert len(segments) <= 5
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 5 * 1_000_000
    cluster.journal.close()

    journal = SqliteJournal.open(tmp_path, segment_events=SEGMENT_EVENTS)
    left = recovered(journal)
    assert document(left) == document(state)
    invariants.check(left)
    journal.close()


def _in_heaps(state: State) -> int:
    return sum(len(group.heap) for line in state.queue.lines.values() for group in line.groups.values())


def _in_heads(state: State) -> int:
    return sum(len(heads) for line in state.queue.lines.values() for heads in line.heads)


# --- one thing at a time ----------------------------------------------------------------------------------------------

ONE = Resources(gpus=1)
WHOLE = Resources(gpus=4)
LAB, POOR = TenantId("lab"), TenantId("poor")


@pytest.fixture(params=list(QuotaMode))
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """All GPUs are for batch work."""
    cluster = Cluster(tmp_path, request.param)
    cluster.tell(command.SetSplit(Split(0.0, 1.0, request.param)))
    yield cluster
    cluster.journal.close()


def _fill(cluster: Cluster) -> None:
    for number in range(1, 5):
        cluster.tell(_submit(number, TaskSpec(LAB, WHOLE)))
    cluster.tell(_submit(5, TaskSpec(LAB, ONE)))
    assert cluster.state.queue.waiting == 1


def test_ended_tasks_leave_nothing_among_the_heads_of_their_lines(cluster: Cluster) -> None:
    live(cluster, 1_000)
    assert _in_heads(cluster.state) <= 100


def test_ended_tasks_leave_no_timers_for_distant_timeouts_and_deadlines(cluster: Cluster) -> None:
    live(cluster, 1_000, timeout_seconds=1e8)
    assert len(cluster.state.timers) <= 100


def test_a_tenant_that_waits_for_its_next_budget_costs_one_timer(cluster: Cluster) -> None:
    cluster.tell(command.SetTenant(Tenant(POOR, budget=Budget(gpu_hours=0.001, period_seconds=1e7))))
    cluster.tell(_submit(1, TaskSpec(POOR, ONE)))
    cluster.now += 100.0
    cluster.ends(TaskId(1))
    cluster.tell(_submit(2, TaskSpec(POOR, ONE)))
    for number in range(3, 503):
        cluster.tell(_submit(number, TaskSpec(LAB, ONE)))
        cluster.ends(TaskId(number))
    assert cluster.state.queue.waiting == 1
    assert len(cluster.state.timers) <= 100


def test_cancelled_tasks_leave_nothing_behind_a_waiting_one(cluster: Cluster) -> None:
    _fill(cluster)
    for number in range(6, 506):
        cluster.tell(_submit(number, TaskSpec(LAB, ONE)))
        cluster.tell(command.CancelTask(TaskId(number)))
    assert _in_heaps(cluster.state) <= 100


def test_a_task_whose_priority_changes_repeatedly_is_in_the_queue_once(cluster: Cluster) -> None:
    _fill(cluster)
    cluster.tell(_submit(6, TaskSpec(LAB, ONE)))
    for change in range(500):
        cluster.tell(command.ChangePriority(TaskId(6), change % 50))
    assert _in_heaps(cluster.state) <= 100
