"""Usage: spans from events, and sums over windows."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.core.domain import events
from gpuyard.core.domain.actual import Actual
from gpuyard.core.domain.causes import Cause, CauseKind
from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.task import Resources, TaskSpec
from gpuyard.core.domain.values import MILLI, NodeId, Outcome, TaskClass, TaskId, TaskStatus, TenantId
from gpuyard.core.journal.records import Record
from gpuyard.live.control_plane.stores.archive import Archive, ArchiveRow
from gpuyard.live.control_plane.usage.accounting import KEYS, OwnedSpan, WindowSums
from gpuyard.live.control_plane.usage.spans import (
    FAILED,
    OUT_OF_MEMORY,
    PREEMPTED,
    STOPPED,
    SUCCESS,
    UNFINISHED,
    WAITING,
    UsageSpan,
)
from gpuyard.live.control_plane.views import TaskView, Views

H = 3600.0
ONE = TaskId(1)
GPUS = Placement((Slice(NodeId("n1"), (0, 1)),))
MIXED = Placement((Slice(NodeId("n1"), (0,)), Slice(NodeId("n2"), (0, 1))))
SHARE = Placement((Slice(NodeId("n1"), (0,), milli=250),))


class Story:
    """Committed events in order, at given hours."""

    def __init__(self) -> None:
        self.views = Views()
        self._seq = 0
        for name, model in (("n1", "A100"), ("n2", "H100")):
            self(0, events.NodeJoined(NodeSpec(NodeId(name), (Gpu(model, 1024),) * 4, 8, 1024)))
        spec = TaskSpec(tenant=TenantId("lab"), user="ada", project="p", resources=Resources(gpus=2), command="true")
        self(1, events.TaskSubmitted(ONE, spec))

    def __call__(self, hour: float, event: events.Event) -> None:
        self._seq += 1
        self.views.apply(Record(self._seq, hour * H, event, "", ""))

    @property
    def task(self) -> TaskView:
        return self.views.tasks[ONE]

    def placed(self, hour: float, placement: Placement = GPUS, attempt: int = 1) -> None:
        self(hour, events.TaskPlaced(ONE, attempt, placement))
        self(hour, events.AttemptStarted(ONE, attempt))

    def spans(self, now: float = 1e9) -> list[tuple[float, float, str, str, int]]:
        return [(one.start / H, one.end / H, one.outcome, one.model, one.milli) for one in self.task.usage(now * H)]


def test_a_task_waits_from_its_submission_and_holds_gpus_from_its_placement_to_its_end() -> None:
    story = Story()
    assert story.spans(1.5) == [(1, 1.5, WAITING, "", 0)]
    story.placed(2)
    assert story.spans(2.5) == [(1, 2, WAITING, "", 0), (2, 2.5, UNFINISHED, "A100", 2000)]
    actual = Actual(None, 80.0, 0.25, 300.0)
    story(5, events.AttemptEnded(ONE, 1, Outcome.SUCCEEDED, 0, actual=actual))
    story(5, events.TaskEnded(ONE, TaskStatus.SUCCESS, Cause(CauseKind.SUCCEEDED)))
    assert story.spans() == [(1, 2, WAITING, "", 0), (2, 5, SUCCESS, "A100", 2000)]
    assert (story.task.spans[1].idle, story.task.spans[1].watts) == (0.25, 300.0)


@pytest.mark.parametrize(
    ("outcome", "why", "spent"),
    [
        (Outcome.SUCCEEDED, None, SUCCESS),
        (Outcome.FAILED, None, FAILED),
        (Outcome.LOST, None, FAILED),
        (Outcome.TIMED_OUT, None, FAILED),
        (Outcome.NOT_LAUNCHED, None, FAILED),
        (Outcome.OUT_OF_MEMORY, None, OUT_OF_MEMORY),
        (Outcome.STOPPED, CauseKind.PREEMPTED, PREEMPTED),
        (Outcome.STOPPED, CauseKind.RECLAIMED, PREEMPTED),
        (Outcome.STOPPED, CauseKind.TIMEOUT, FAILED),
        (Outcome.STOPPED, CauseKind.CANCELLED, STOPPED),
        (Outcome.STOPPED, CauseKind.DRAINED, STOPPED),
    ],
)
def test_the_end_of_an_attempt_says_how_its_time_was_spent(outcome: Outcome, why: CauseKind | None, spent: str) -> None:
    story = Story()
    story.placed(1)
    if why is not None:
        story(2, events.AttemptStopping(ONE, 1, Cause(why, task=TaskId(2), node=NodeId("n1"))))
    story(3, events.AttemptEnded(ONE, 1, outcome))
    assert story.spans() == [(1, 3, spent, "A100", 2000)]


def test_suspended_time_is_not_held_and_both_parts_have_the_end_of_the_attempt() -> None:
    story = Story()
    story.placed(1)
    story(2, events.AttemptSuspending(ONE, 1, Cause(CauseKind.PREEMPTED, task=TaskId(2)), 1))
    story(3, events.AttemptSuspended(ONE, 1))
    assert story.spans(4) == [(1, 3, UNFINISHED, "A100", 2000)]
    story(5, events.AttemptResuming(ONE, 1, GPUS, 1))
    story(5, events.AttemptResumed(ONE, 1))
    story(7, events.AttemptEnded(ONE, 1, Outcome.SUCCEEDED, 0))
    assert story.spans() == [(1, 3, SUCCESS, "A100", 2000), (5, 7, SUCCESS, "A100", 2000)]


def test_a_repeated_task_waits_again_and_its_attempts_are_judged_apart() -> None:
    story = Story()
    story.placed(2)
    story(3, events.AttemptEnded(ONE, 1, Outcome.FAILED, 1))
    story(3, events.TaskRequeued(ONE, Cause(CauseKind.EXIT_CODE), 0.0))
    assert story.spans(4)[2:] == [(3, 4, WAITING, "", 0)]
    story.placed(5, SHARE, attempt=2)
    story(6, events.AttemptEnded(ONE, 2, Outcome.SUCCEEDED, 0))
    story(6, events.TaskEnded(ONE, TaskStatus.SUCCESS, Cause(CauseKind.SUCCEEDED)))
    assert story.spans() == [
        (1, 2, WAITING, "", 0),
        (2, 3, FAILED, "A100", 2000),
        (3, 5, WAITING, "", 0),
        (5, 6, SUCCESS, "A100", 250),
    ]


def test_an_attempt_that_was_given_up_and_is_found_again_did_not_fail() -> None:
    story = Story()
    story.placed(1)
    story(2, events.AttemptEnded(ONE, 1, Outcome.LOST))
    story(2, events.TaskRequeued(ONE, Cause(CauseKind.NODE_LOST, node=NodeId("n1")), 0.0))
    story(4, events.AttemptRecovered(ONE, 1, NodeId("n1")))
    story(6, events.AttemptEnded(ONE, 1, Outcome.SUCCEEDED, 0))
    assert story.spans() == [
        (1, 2, SUCCESS, "A100", 2000),
        (2, 4, WAITING, "", 0),
        (4, 6, SUCCESS, "A100", 2000),
    ]


def test_gpus_of_several_models_are_separate_spans() -> None:
    story = Story()
    story.placed(1, MIXED)
    assert story.spans(2) == [(1, 2, UNFINISHED, "A100", 1000), (1, 2, UNFINISHED, "H100", 2000)]


def test_a_task_that_is_cancelled_while_it_waits_only_waited() -> None:
    story = Story()
    story(3, events.TaskEnded(ONE, TaskStatus.CANCELLED, Cause(CauseKind.CANCELLED)))
    assert story.spans() == [(1, 3, WAITING, "", 0)]


def test_a_snapshot_keeps_the_spans() -> None:
    story = Story()
    story.placed(2)
    story(3, events.AttemptEnded(ONE, 1, Outcome.FAILED, 1))
    story(3, events.TaskRequeued(ONE, Cause(CauseKind.EXIT_CODE), 0.0))
    story.placed(4, attempt=2)
    before = story.spans(9)
    again = Views()
    again.load(story.views.dump(), (), 0)
    assert [
        (one.start / H, one.end / H, one.outcome, one.model, one.milli) for one in again.tasks[ONE].usage(9 * H)
    ] == before


# --- sums -------------------------------------------------------------------------------------------------------------


def owned(task: int, start: float, end: float, outcome: str = SUCCESS, **more: object) -> OwnedSpan:
    of_task = {name: str(more.pop(name, "")) for name in ("tenant", "user", "project")}
    return OwnedSpan(task, **of_task, span=UsageSpan(start * H, end * H, outcome, 1, **{"milli": 1000, **more}))  # type: ignore[arg-type]


def test_a_span_is_cut_at_the_borders_of_the_window() -> None:
    account = WindowSums(10 * H, 20 * H, ["tenant"])
    account.add([owned(1, 5, 12, tenant="a"), owned(2, 18, 30, FAILED, tenant="a"), owned(3, 0, 10), owned(4, 20, 21)])
    ((key, sums),) = account.rows()
    assert key == ("a",)
    assert (sums["tasks"], sums["gpu_hours"], sums["failed_gpu_hours"]) == (2, 4.0, 2.0)


def test_idle_time_and_energy_follow_from_the_measurements() -> None:
    account = WindowSums(0, 10 * H, ["model"])
    account.add([owned(1, 0, 4, model="A100", milli=2000, idle=0.25, watts=500.0), owned(2, 0, 1, model="A100")])
    ((_, sums),) = account.rows()
    assert (sums["gpu_hours"], sums["used_gpu_hours"], sums["idle_gpu_hours"]) == (9.0, 6.0, 2.0)
    assert sums["energy_kwh"] == pytest.approx(4.0)


def test_by_day_and_hour_a_span_is_divided_and_its_task_counts_in_each() -> None:
    account = WindowSums(0, 100 * H, ["day"])
    account.add([owned(1, 20, 50)])
    assert [(key[0], sums["gpu_hours"], sums["tasks"]) for key, sums in account.rows()] == [
        (0.0, 4.0, 1),
        (24 * H, 24.0, 1),
        (48 * H, 2.0, 1),
    ]
    assert account.total()["tasks"] == 1


OUTCOMES = [SUCCESS, FAILED, PREEMPTED, OUT_OF_MEMORY, STOPPED, UNFINISHED, WAITING]
SPANS = st.lists(
    st.builds(
        lambda task, start, length, outcome, names, model, milli, idle, watts: OwnedSpan(
            task,
            names[0],
            names[1],
            names[2],
            UsageSpan(
                float(start), float(start + length), outcome, 1, model, 0 if outcome == WAITING else milli, idle, watts
            ),
        ),
        st.integers(1, 6),
        st.integers(0, 200_000),
        st.integers(1, 200_000),
        st.sampled_from(OUTCOMES),
        st.tuples(*[st.sampled_from(["", "a", "b"])] * 3),
        st.sampled_from(["A100", "H100"]),
        st.sampled_from([250, 1000, 8000]),
        st.sampled_from([None, 0.0, 0.5, 1.0]),
        st.sampled_from([None, 100.0, 400.0]),
    ),
    max_size=12,
)
STEP = 600
"""The naive computation walks through time in these steps, in seconds; all borders are multiples of it."""


def naive(spans: list[OwnedSpan], since: int, until: int, by: list[str]) -> dict[tuple[object, ...], dict[str, float]]:
    """Every ten minutes of every span, one by one."""
    rows: dict[tuple[object, ...], dict[str, float]] = {}
    seen: dict[tuple[object, ...], set[int]] = {}
    for one in spans:
        for at in range(since, until, STEP):
            inside = max(0.0, min(one.span.end, at + STEP) - max(one.span.start, at))
            if not inside:
                continue
            values = {
                "tenant": one.tenant, "user": one.user, "project": one.project, "model": one.span.model,
                "day": at // 86400 * 86400.0, "hour": at // 3600 * 3600.0,
            }  # fmt: skip
            key = tuple(values[name] for name in by)
            row = rows.setdefault(key, dict.fromkeys(["gpu", "idle", "used", "kwh", "wait", *OUTCOMES], 0.0))
            seen.setdefault(key, set()).add(one.task)
            if one.span.outcome == WAITING:
                row["wait"] += inside / 3600
                continue
            hours = inside / 3600 * one.span.milli / MILLI
            row["gpu"] += hours
            row[one.span.outcome] += hours
            row["idle"] += hours * (one.span.idle or 0.0)
            row["used"] += hours * (1 - one.span.idle) if one.span.idle is not None else 0.0
            row["kwh"] += hours * (one.span.watts or 0.0) / 1000
    return {key: {**row, "tasks": len(seen[key])} for key, row in rows.items()}


@settings(max_examples=60, deadline=None)
@given(
    SPANS,
    st.integers(0, 300).map(lambda step: step * STEP),
    st.integers(1, 300).map(lambda step: step * STEP),
    st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True),
)
def test_sums_are_those_of_a_naive_computation(spans: list[OwnedSpan], since: int, length: int, by: list[str]) -> None:
    account = WindowSums(float(since), float(since + length), by)
    account.add(spans)
    told, wanted = dict(account.rows()), naive(spans, since, since + length, by)
    assert told.keys() == wanted.keys()
    for key, sums in told.items():
        mine = wanted[key]
        assert sums["tasks"] == mine["tasks"]
        for name, other in (
            ("gpu_hours", "gpu"), ("used_gpu_hours", "used"), ("idle_gpu_hours", "idle"), ("failed_gpu_hours", FAILED),
            ("preempted_gpu_hours", PREEMPTED), ("out_of_memory_gpu_hours", OUT_OF_MEMORY), ("energy_kwh", "kwh"),
            ("wait_hours", "wait"),
        ):  # fmt: skip
            assert sums[name] == pytest.approx(mine[other], abs=1e-9), name
    both = WindowSums(float(since), float(since + length), ["tenant"])
    both.add(spans)
    assert account.total() == pytest.approx(both.total())


def test_the_archive_returns_the_spans_that_it_was_given_and_forgets_them_with_their_task(tmp_path: Path) -> None:
    archive = Archive.open(tmp_path / "archive.sqlite")
    spans = (UsageSpan(0.0, H, WAITING), UsageSpan(H, 3 * H, FAILED, 1, "A100", 2000, 0.5, 250.0))
    names = (TenantId("lab"), TaskStatus.FAILED, TaskClass.BATCH, 50, "ada", "p", "")
    archive.add([ArchiveRow(ONE, *names, 0.0, 3 * H, b"{}", spans=spans)], 1)
    archive.add([ArchiveRow(ONE, *names, 0.0, 3 * H, b"{}", spans=spans)], 2)  # it is known

    def hours(tenant: str | None = None, *, without: tuple[TaskId, ...] = ()) -> tuple[float, float]:
        account = WindowSums(0.0, 9 * H, ["tenant"])
        archive.usage(account, 0.0, 9 * H, TenantId(tenant) if tenant else None, without)
        total = account.total()
        return total["gpu_hours"], total["energy_kwh"]

    assert hours() == hours("lab") == (4.0, 1.0)
    assert hours("other") == hours(without=(ONE,)) == (0.0, 0.0)
    archive.retain(4 * H)
    assert hours() == (0.0, 0.0)
    archive.close()
