"""Writes the journal of this version into tests/replay/journals, where it stays forever.

    python tests/replay/write_journal.py

Run it when a version is tagged, or when a test asks for it because there is a new type of event: first add that event to
the story below. The journals of versions that were released are never written again: they are what users have.
Beside each one stands `expected.jsonl`, the events as they are read today, a line each, and `state.json`, what they add up
to. The snapshot on the way is a real one, so both ways of recovery can always be tested.
"""

import sys
from pathlib import Path

import msgspec

from gpuyard import __version__
from gpuyard.core.domain.booking import BookedGpus, Booking
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.events import (
    AccessChanged,
    AttemptEnded,
    AttemptRecovered,
    AttemptResumed,
    AttemptResuming,
    AttemptStarted,
    AttemptStopping,
    AttemptSuspended,
    AttemptSuspending,
    BookingBegan,
    BookingEnded,
    BookingMade,
    BookingMoved,
    ClusterCreated,
    EpochBegan,
    EpochEnded,
    EstimateRevised,
    Event,
    GpuHealthChanged,
    MemberEnded,
    MemberReady,
    NodeChanged,
    NodeCordoned,
    NodeJoined,
    NodeLost,
    NodeRemoved,
    NodeReturned,
    NodeStopped,
    NodeUncordoned,
    NoticeSettled,
    OrphanedAttemptEnded,
    OrphanedAttemptFound,
    PriorityChanged,
    ReservationDropped,
    ReservationMade,
    RunLimitSet,
    SettingsChanged,
    SplitSet,
    SuspensionFailed,
    TaskEnded,
    TaskExtended,
    TaskHeld,
    TaskNumbersSkipped,
    TaskPlaced,
    TaskReleased,
    TaskRequeued,
    TaskSubmitted,
    TenantSet,
)
from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.notice import Moment, TaskNotice
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.settings import Backfill, Settings
from gpuyard.core.domain.task import Estimate, Resources, RunLimit, Share, TaskSpec
from gpuyard.core.domain.tenant import Budget, QuotaMode, Split, Tenant
from gpuyard.core.domain.values import (
    AttemptRef,
    GpuHealth,
    Link,
    NodeId,
    OnLost,
    Outcome,
    Preemption,
    TaskClass,
    TaskId,
    TaskStatus,
    TenantId,
)
from gpuyard.core.engine import snapshot
from gpuyard.core.engine.apply import apply_recorded
from gpuyard.core.engine.state import State
from gpuyard.core.journal.records import JournalEntry, Snapshot
from gpuyard.core.journal.stores.sqlite import SqliteJournal

JOURNALS = Path(__file__).parent / "journals"

ORIGIN = 4_711
GANG, SHARED, SMALL, CUT_OFF, LONG, NOTEBOOK, LARGE, LATER, URGENT = (TaskId(number) for number in range(1, 10))
NORTH, SOUTH, WEST = NodeId("north"), NodeId("south"), NodeId("west")


def big_node(name: NodeId) -> NodeSpec:
    gpus = tuple(Gpu("A100", 81_920, f"GPU-{name}-{index}", index // 2, 0) for index in range(4))
    return NodeSpec(name, gpus, cpus=64, memory_mib=524_288, labels=(("rack", "7"),))


WEST_CARDS = (Gpu("RTX4090", 24_576), Gpu("RTX4090", 24_576))


def four(node: NodeId) -> Slice:
    return Slice(node, (0, 1, 2, 3), cpus=32, memory_mib=131_072)


GANG_SPEC = TaskSpec(
    TenantId("vision"),
    Resources(
        gpus=4, nodes=2, models=("A100",), cpus=32, memory_mib=131_072, labels=(("rack", "7"),), link=Link.NVLINK
    ),
    name="train",
    user="alice",
    project="segmentation",
    description="Große Bilder – 大图",
    command=("python", "train.py", "--epochs", "90"),
    env=(("SEED", "7"),),
    work_dir="/data/segmentation",
    timeout_seconds=86_400.0,
    deadline=200_000.0,
    retries=2,
    preemption=Preemption.CHECKPOINT,
    estimate=Estimate(3600.0, 1800.0, 7200.0),
)
SHARED_SPEC = TaskSpec(
    TenantId("speech"),
    Resources(share=Share(500, 12_288)),
    task_class=TaskClass.ONLINE,
    priority=80,
    on_lost=OnLost.FENCE,
    array_index=3,
)
SMALL_SPEC = TaskSpec(
    TenantId("speech"),
    Resources(gpus=1, gpu_memory_mib=40_000),
    command="nvidia-smi | tee out.txt",
    after_any=(SHARED,),
    preemption=Preemption.SUSPEND,
    require_fit=True,
    notify=(TaskNotice((Moment.START, Moment.END), "mailto:bob@example.org"),),
)

LONG_SPEC = TaskSpec(TenantId("vision"), Resources(gpus=2, cpus=8), preemption=Preemption.REQUEUE)
URGENT_SPEC = TaskSpec(
    TenantId("speech"), Resources(gpus=4, whole_nodes=True), task_class=TaskClass.ONLINE, priority=90
)
NOTEBOOK_SPEC = TaskSpec(TenantId("speech"), Resources(gpus=1, memory_mib=8192), preemption=Preemption.SUSPEND)
CUT_OFF_SPEC = TaskSpec(TenantId("students"), Resources(gpus=1, cpus=4, models=("RTX4090",)))
LARGE_SPEC = TaskSpec(TenantId("vision"), Resources(gpus=4), estimate=Estimate(600.0, 300.0, 900.0))
LATER_SPEC = TaskSpec(TenantId("students"), Resources(cpus=4), after_success=(LARGE,), timeout_seconds=60.0)

STORY: list[tuple[str, Event]] = [
    ("admin", ClusterCreated("lab")),
    ("", EpochBegan(1, "0.1.0")),
    ("", EpochEnded(1, 1060.0)),
    ("", EpochBegan(2, "0.1.0", origin=ORIGIN, offline_after_seconds=15.0)),
    ("root@127.0.0.1", AccessChanged("user_added", "alice")),
    ("admin", SettingsChanged(Settings(policy="fair_share", backfill=Backfill.CONSERVATIVE, retry_delay_seconds=4.0))),
    ("admin", SplitSet(Split(0.25, 0.75, QuotaMode.BORROW))),
    ("admin", TenantSet(Tenant(TenantId("vision"), 8, (("A100", 8),), 2, 2.0, Budget(1000.0, 604_800.0)))),
    ("admin", TenantSet(Tenant(TenantId("speech")))),
    ("north", NodeJoined(big_node(NORTH))),
    ("south", NodeJoined(big_node(SOUTH))),
    ("west", NodeJoined(NodeSpec(WEST, WEST_CARDS, cpus=16, memory_mib=65_536))),
    # A gang starts, one half fails, the other is stopped, and it waits to be tried again.
    ("alice", TaskSubmitted(GANG, GANG_SPEC)),
    ("", TaskPlaced(GANG, 1, Placement((four(NORTH), four(SOUTH))))),
    ("north", MemberReady(GANG, 1, NORTH)),
    ("south", AttemptStarted(GANG, 1)),
    ("alice", TaskExtended(GANG, 172_800.0, 200_000.0)),
    # A share of a GPU, as a lease.
    ("bob", TaskSubmitted(SHARED, SHARED_SPEC)),
    ("", TaskPlaced(SHARED, 1, Placement((Slice(WEST, (0,), 500, 12_288),)))),
    ("west", AttemptStarted(SHARED, 1)),
    # A small task is held, let go, promised a node, and loses the promise.
    ("bob", TaskSubmitted(SMALL, SMALL_SPEC)),
    ("bob", TaskHeld(SMALL)),
    ("bob", TaskReleased(SMALL)),
    ("admin", PriorityChanged(SMALL, 70)),
    ("", EstimateRevised(SMALL, Estimate(60.5, 30.25, 121.0))),
    ("", EstimateRevised(SMALL, None)),
    ("", ReservationMade(SMALL, (NORTH, SOUTH), 4600.0, claim=True)),
    ("", ReservationDropped(SMALL, Cause(CauseKind.ROOM_LOST))),
    ("", ReservationMade(SMALL, (NORTH,), None, borrowed=True, tenant_key=7201.5)),
    ("", ReservationDropped(SMALL, Cause(CauseKind.OVERTAKEN, task=GANG))),
    ("north", MemberEnded(GANG, 1, NORTH, Outcome.FAILED, 139)),
    ("", AttemptStopping(GANG, 1, Cause(CauseKind.MEMBER_FAILED, node=NORTH))),
    ("south", MemberEnded(GANG, 1, SOUTH, Outcome.STOPPED)),
    ("", AttemptEnded(GANG, 1, Outcome.FAILED, 139)),
    ("", TaskRequeued(GANG, Cause(CauseKind.EXIT_CODE), 1030.0)),
    # The lease ends by itself; the small task runs, makes room, comes back on another GPU, and is cancelled.
    ("west", AttemptEnded(SHARED, 1, Outcome.SUCCEEDED, 0)),
    ("", TaskEnded(SHARED, TaskStatus.SUCCESS, Cause(CauseKind.SUCCEEDED))),
    ("", TaskPlaced(SMALL, 1, Placement((Slice(NORTH, (0,)),)))),
    ("north", AttemptStarted(SMALL, 1)),
    ("", AttemptSuspending(SMALL, 1, Cause(CauseKind.PREEMPTED, task=GANG), 1)),
    ("north", AttemptSuspended(SMALL, 1)),
    ("", AttemptResuming(SMALL, 1, Placement((Slice(NORTH, (1,)),)), 1)),
    ("north", AttemptResumed(SMALL, 1)),
    ("bob", AttemptSuspending(SMALL, 1, Cause(CauseKind.SUSPENDED_BY_USER), 2)),
    ("north", SuspensionFailed(SMALL, 1, 2, "The driver cannot suspend this process.")),
    ("bob", AttemptStopping(SMALL, 1, Cause(CauseKind.CANCELLED))),
    ("north", AttemptEnded(SMALL, 1, Outcome.STOPPED)),
    ("", TaskEnded(SMALL, TaskStatus.CANCELLED, Cause(CauseKind.CANCELLED))),
    # Nodes come and go.
    ("west", GpuHealthChanged(WEST, 1, GpuHealth.EXTERNAL)),
    ("admin", NodeCordoned(SOUTH, draining=True)),
    ("admin", NodeUncordoned(SOUTH)),
    ("carol", TaskSubmitted(CUT_OFF, CUT_OFF_SPEC)),
    ("", TaskPlaced(CUT_OFF, 1, Placement((Slice(WEST, (0,), cpus=4),)))),
    ("west", AttemptStarted(CUT_OFF, 1)),
    ("", NodeLost(WEST)),
    ("", AttemptEnded(CUT_OFF, 1, Outcome.LOST, orphaned_on=(WEST,))),
    ("", TaskRequeued(CUT_OFF, Cause(CauseKind.NODE_LOST, node=WEST), 0.0)),
    ("west", NodeChanged(NodeSpec(WEST, WEST_CARDS, cpus=32, memory_mib=65_536, labels=(("rack", "8"),)))),
    ("west", NodeReturned(WEST, (AttemptRef(CUT_OFF, 1, ORIGIN),), "agent of west", "boot 1")),
    ("west", OrphanedAttemptEnded(WEST, CUT_OFF, 1, ORIGIN)),
    # It is lost again and comes back with what it runs; its agent is stopped on purpose; it has an unknown attempt.
    ("", TaskPlaced(CUT_OFF, 2, Placement((Slice(WEST, (0,), cpus=4),)))),
    ("west", AttemptStarted(CUT_OFF, 2, 1010.5)),
    ("", NodeLost(WEST)),
    ("", AttemptEnded(CUT_OFF, 2, Outcome.LOST, orphaned_on=(WEST,))),
    ("", TaskRequeued(CUT_OFF, Cause(CauseKind.NODE_LOST, node=WEST), 0.0)),
    ("west", NodeReturned(WEST, (AttemptRef(CUT_OFF, 2, ORIGIN),))),
    ("west", AttemptRecovered(CUT_OFF, 2, WEST)),
    ("west", NodeStopped(WEST, 1300.0)),
    ("west", NodeReturned(WEST)),
    ("west", OrphanedAttemptFound(WEST, TaskId(77), 1, 99, Slice(WEST, (1,)))),
    ("west", OrphanedAttemptEnded(WEST, TaskId(77), 1, 99)),
    ("west", AttemptEnded(CUT_OFF, 2, Outcome.FAILED, 1, ended_at=1011.5)),
    ("", TaskRequeued(CUT_OFF, Cause(CauseKind.EXIT_CODE), 0.0)),
    ("admin", NodeCordoned(WEST)),
    ("admin", NodeRemoved(WEST)),
    # Messages about the small task; two bookings, one of them moves and ends, the other one has begun.
    ("", NoticeSettled(SMALL, 0, Moment.START, delivered=True)),
    ("", NoticeSettled(SMALL, 0, Moment.END, delivered=False, tries=5, message="The server does not answer.")),
    ("bob", BookingMade(Booking(1, TenantId("speech"), 1100.0, 1200.0, (BookedGpus(NORTH, 2),), "bob", ("A100",)))),
    ("", BookingMoved(1, (BookedGpus(SOUTH, 2),))),
    ("bob", BookingEnded(1, Cause(CauseKind.CANCELLED))),
    (
        "admin",
        BookingMade(
            Booking(2, TenantId("vision"), 1020.0, 9000.0, (BookedGpus(NORTH, 1, 2),), preempt=True, note="Demo")
        ),
    ),
    ("", BookingBegan(2, late=(SMALL,), cordoned=(SOUTH,))),
    # The end is in the middle of things: a victim is being stopped, one sleeps in host memory, one is promised a node.
    ("alice", TaskSubmitted(LONG, LONG_SPEC)),
    ("", TaskPlaced(LONG, 1, Placement((Slice(SOUTH, (0, 1), cpus=8),)))),
    ("south", AttemptStarted(LONG, 1)),
    ("bob", TaskSubmitted(NOTEBOOK, NOTEBOOK_SPEC)),
    ("", TaskPlaced(NOTEBOOK, 1, Placement((Slice(NORTH, (3,), memory_mib=8192),)))),
    ("north", AttemptStarted(NOTEBOOK, 1)),
    ("bob", AttemptSuspending(NOTEBOOK, 1, Cause(CauseKind.SUSPENDED_BY_USER), 1)),
    ("north", AttemptSuspended(NOTEBOOK, 1)),
    ("alice", TaskSubmitted(LARGE, LARGE_SPEC)),
    ("", ReservationMade(LARGE, (NORTH,), 4600.0, tenant_key=3600.25)),
    ("carol", RunLimitSet(RunLimit(LATER, LATER, 2))),
    ("carol", TaskSubmitted(LATER, LATER_SPEC)),
    ("bob", TaskSubmitted(URGENT, URGENT_SPEC)),
    ("", ReservationMade(URGENT, (SOUTH,), 1014.0, claim=True, tenant_key=1800.5)),
    ("", AttemptStopping(LONG, 1, Cause(CauseKind.RECLAIMED, task=URGENT))),
    ("west", TaskNumbersSkipped(TaskId(20))),
]


def story() -> list[JournalEntry]:
    return [JournalEntry(1000.0 + number / 4, event, by) for number, (by, event) in enumerate(STORY)]


def state_after(entries: list[JournalEntry]) -> State:
    state = State()
    for entry in entries:
        apply_recorded(state, entry.event, entry.at)
    return state


def write(folder: Path) -> None:
    """Several segments, a snapshot on the way and events after it; closed, so that no write-ahead log is needed."""
    entries = story()
    journal = SqliteJournal.open(folder, segment_events=20)
    for first in range(0, len(entries), 5):
        head = journal.append(entries[first : first + 5])
        if head.seq == 25:
            journal.save_snapshot(Snapshot(head, snapshot.dump(state_after(entries[: head.seq]))))
    lines = [msgspec.json.encode(record) + b"\n" for record in journal.read()]
    journal.close()
    (folder / "lock").unlink()
    (folder / "expected.jsonl").write_bytes(b"".join(lines))
    state = msgspec.json.encode(snapshot.dump(state_after(entries)))
    (folder / "state.json").write_bytes(msgspec.json.format(state, indent=2) + b"\n")


if __name__ == "__main__":
    target = JOURNALS / __version__
    if target.exists():
        sys.exit(f"{target} is there. If version {__version__} was never released, remove it and run this again.")
    write(target)
    print(f"Wrote {target}.")
