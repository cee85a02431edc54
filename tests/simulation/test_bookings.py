"""Bookings and maintenance windows: what is placed before, during and after them."""

import pytest

from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events
from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.causes import CauseKind
from gpuyard.core.domain.refusals import Refusal
from gpuyard.core.domain.task import Estimate
from gpuyard.core.domain.values import NodeId, Preemption, TenantId
from gpuyard.core.engine import snapshot
from gpuyard.core.engine.engine import Engine
from gpuyard.core.engine.explain import explain
from gpuyard.core.engine.preview import Preview, preview
from gpuyard.core.engine.queue_order import first_starts
from gpuyard.learn.estimates.history import HistoryPredictor, features_of
from gpuyard.testing import ClusterStory, gang, node, share, task

HOUR = 3600.0


@pytest.fixture
def cluster() -> ClusterStory:
    """A cluster without nodes."""
    return ClusterStory()


def booked_on(cluster: ClusterStory, booking: int) -> dict[str, int]:
    """Return the GPUs of a booking by node."""
    return {part.node: part.gpus for part in cluster.state.bookings[booking].booking.parts}


def refused(cluster: ClusterStory, **asked: object) -> Refusal:
    """Ask for a booking that is refused."""
    before = len(cluster.events)
    fields = {"tenant": TenantId("team"), "begins_at": 0.0, "ends_at": HOUR, "gpus": 1, **asked}
    answer = cluster.tells(command.MakeBooking(**fields))  # type: ignore[arg-type]
    assert isinstance(answer, Refusal)
    assert len(cluster.events) == before
    return answer


# --- before a booking ---------------------------------------------------------------------------------------------------


def test_a_task_that_would_run_into_a_booking_waits_and_says_so(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=4)
    booking = cluster.books(4, begins=2 * HOUR, ends=3 * HOUR)
    cluster.submits(task("long", gpus=2, timeout_seconds=3 * HOUR))
    assert not cluster.is_running("long")
    assert cluster.why("long") == no.Booked(booking, 2 * HOUR, 3 * HOUR)
    assert "booking-1" in cluster.explains("long").sentence()
    assert "1970-01-01 03:00 UTC" in cluster.explains("long").sentence()


def test_a_task_that_ends_before_a_booking_starts_at_once(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=4)
    cluster.books(4, begins=2 * HOUR, ends=3 * HOUR)
    cluster.submits(task("by timeout", gpus=2, timeout_seconds=2 * HOUR), task("by estimate", gpus=2, estimate=HOUR))
    assert cluster.running() == ["by timeout", "by estimate"]


def test_gpus_that_are_not_booked_may_be_used_for_any_time(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=4)
    cluster.books(2, begins=HOUR, ends=2 * HOUR)
    cluster.submits(task("a", gpus=1, timeout_seconds=9 * HOUR), task("b", gpus=1), task("c", gpus=1))
    assert cluster.running() == ["a", "b"]
    cluster.passes(HOUR)
    assert not cluster.is_running("c")


def test_a_task_without_an_end_starts_if_the_booking_is_more_than_a_day_ahead(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=1)
    cluster.books(1, begins=30 * HOUR, ends=31 * HOUR)
    cluster.submits(task("endless"))
    assert cluster.is_running("endless")
    cluster.passes(30 * HOUR)
    began = next(event for _, event in cluster.events if isinstance(event, events.BookingBegan))
    assert began.late == (cluster.numbers["endless"],)


def test_another_node_is_used_if_one_is_booked(cluster: ClusterStory) -> None:
    cluster.has_nodes(2, gpus_each=2)
    booking = cluster.books(2, begins=HOUR, ends=2 * HOUR)
    cluster.submits(task("a", gpus=2), task("b", gpus=2))
    assert cluster.running() == ["a"]
    assert cluster.nodes_of("a")[0] not in booked_on(cluster, booking)


def test_a_short_task_behind_a_long_one_of_its_shape_starts_before_the_booking(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=1)
    cluster.books(1, begins=HOUR, ends=2 * HOUR)
    cluster.submits(task("long", timeout_seconds=4000.0))
    cluster.submits(task("short", timeout_seconds=3599.0))
    assert cluster.running() == ["short"]


def test_shares_and_gangs_respect_a_booking(cluster: ClusterStory) -> None:
    cluster.has_nodes(2, gpus_each=2)
    cluster.books(2, begins=HOUR, ends=2 * HOUR)
    cluster.submits(gang("pair", members=2, gpus_each=1))
    assert isinstance(cluster.why("pair"), no.Booked)
    cluster.cancels("pair")
    cluster.submits(*(share(f"s{place}", fraction=0.6) for place in range(4)))
    assert len(cluster.running()) == 2


def test_a_waiting_task_starts_when_its_booking_in_the_way_is_cancelled(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=1)
    booking = cluster.books(1, begins=HOUR, ends=2 * HOUR)
    cluster.submits(task("long", timeout_seconds=9 * HOUR))
    cluster.cancels_booking(booking)
    assert cluster.running() == ["long"]


def test_a_waiting_task_starts_after_the_booking(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=1)
    cluster.books(1, begins=HOUR, ends=2 * HOUR)
    cluster.submits(task("long", timeout_seconds=9 * HOUR, runs_for=HOUR))
    assert cluster.explains("long").starts_at == 2 * HOUR
    cluster.runs_out()
    assert cluster.started_at("long") == 2 * HOUR


def test_a_revised_estimate_lets_a_task_start_before_a_booking(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=3)
    cluster.books(1, begins=HOUR, ends=2 * HOUR)
    cluster.submits(task("first", gpus=2, estimate=9 * HOUR), task("second", estimate=9 * HOUR))
    assert cluster.running() == ["first"]
    revised = task("x", estimate=600.0).spec.estimate
    cluster.tells(command.ReviseEstimate(cluster.numbers["first"], revised))
    assert cluster.running() == ["first", "second"]


def learned_from(*ended: tuple[str, float]) -> HistoryPredictor:
    """Return what was learned from these ended commands."""
    history = HistoryPredictor()
    for command_line, seconds in ended:
        history.ended(features_of(task("", command=command_line, gpus=1).spec), seconds, 0.0)
    return history


def test_an_estimate_that_was_learned_from_other_work_lets_no_task_onto_booked_gpus(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=2)
    booking = cluster.books(2, begins=2 * HOUR, ends=3 * HOUR)
    history = learned_from(*[("true", 1.0)] * 100)
    training = task("", command="python train.py", gpus=1)
    estimate = history.estimate(features_of(training.spec), 0.0)
    assert estimate is not None
    assert estimate.high_seconds < HOUR
    cluster.submits(task("training", gpus=1, estimate=estimate))
    assert cluster.running() == []
    why = cluster.why("training")
    assert why == no.Booked(booking, 2 * HOUR, 3 * HOUR, end_is_known=False)
    assert why.sentence().endswith("Its run time is not known well enough: with a --timeout it may start earlier.")
    assert cluster.explains("training").starts_at == 3 * HOUR
    assert cluster.explains("training").from_other_work
    known = history.estimate(features_of(task("", command="true", gpus=1).spec), 0.0)
    cluster.submits(task("short", gpus=1, estimate=known))
    cluster.submits(task("limited", gpus=1, estimate=estimate, timeout_seconds=HOUR))
    assert cluster.running() == ["short", "limited"]
    assert [cluster.explains(name).from_other_work for name in cluster.running()] == [False, True]


def test_a_running_task_with_an_estimate_from_other_work_is_not_expected_to_leave_before_a_booking(
    cluster: ClusterStory,
) -> None:
    cluster.has_nodes(1, gpus_each=2)
    estimate = Estimate(60.0, 30.0, 120.0, 100, from_other_work=True)
    cluster.submits(task("runs", estimate=estimate))
    booking = cluster.books(1, begins=HOUR, ends=2 * HOUR)
    cluster.submits(task("next", timeout_seconds=9 * HOUR))
    assert cluster.why("next") == no.Booked(booking, HOUR, 2 * HOUR)


def test_a_task_that_may_run_into_a_window_is_expected_at_its_end_although_it_is_likely_to_be_shorter(
    cluster: ClusterStory,
) -> None:
    cluster.has_nodes(1, gpus_each=2)
    cluster.maintains("node-1", begins=HOUR, ends=2 * HOUR)
    cluster.submits(task("wide", estimate=Estimate(600.0, 60.0, 3 * HOUR, 10)))
    for _ in range(2):  # before the window, and while it lasts
        told = cluster.explains("wide")
        assert isinstance(told.reason, no.UnderMaintenance)
        assert (told.starts_low, told.starts_at, told.starts_high) == (2 * HOUR,) * 3
        numbers = [cluster.numbers["wide"]]
        assert first_starts(cluster.state, numbers, cluster.now) == {numbers[0]: 2 * HOUR}
        cluster.passes(HOUR)
    assert cluster.running() == ["wide"]


def test_an_estimate_that_is_known_now_does_not_move_the_start_before_the_booking(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=2)
    cluster.maintains("node-1", begins=HOUR, ends=2 * HOUR)
    cluster.submits(task("wide", estimate=Estimate(600.0, 60.0, 3 * HOUR, 10)))
    number = cluster.numbers["wide"]
    told = explain(cluster.state, number, cluster.now, lambda _: Estimate(60.0, 60.0, 60.0, 20))
    assert (told.starts_low, told.starts_at) == (2 * HOUR, 2 * HOUR)
    assert cluster.running() == []


def test_a_preview_names_the_end_of_the_booking_in_the_way(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=2)
    cluster.books(2, begins=HOUR, ends=2 * HOUR)
    found = preview(cluster.state, task("x", gpus=1, estimate=Estimate(600.0, 60.0, 3 * HOUR, 10)).spec, cluster.now)
    assert isinstance(found, Preview)
    assert isinstance(found.reason, no.Booked)
    assert (found.starts_low, found.starts_at) == (2 * HOUR, 2 * HOUR)


def test_a_task_without_an_end_is_expected_when_gpus_are_free_if_the_booking_is_more_than_a_day_ahead(
    cluster: ClusterStory,
) -> None:
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("runs", timeout_seconds=HOUR))
    cluster.books(1, begins=30 * HOUR, ends=40 * HOUR)
    cluster.submits(task("endless"))
    assert cluster.explains("endless").starts_at == HOUR
    cluster.passes(HOUR)
    assert cluster.running() == ["endless"]


def test_gpus_that_a_booking_leaves_idle_are_expected_at_its_end(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=2)
    booking = cluster.books(2, begins=0.0, ends=3 * HOUR)
    cluster.submits(task("mine", gpus=2, booking=booking, timeout_seconds=HOUR))
    cluster.submits(task("second", gpus=2, booking=booking, timeout_seconds=HOUR), task("other", timeout_seconds=60.0))
    assert cluster.running() == ["mine"]
    assert cluster.explains("second").starts_at == HOUR
    assert cluster.explains("other").starts_at == 3 * HOUR


def test_a_task_that_makes_way_is_expected_before_a_booking_that_preempts(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=1)
    cluster.submits(task("runs", timeout_seconds=HOUR))
    cluster.books(1, begins=2 * HOUR, ends=3 * HOUR, preempt=True)
    cluster.submits(task("makes way", timeout_seconds=9 * HOUR, preemption=Preemption.CHECKPOINT))
    assert cluster.explains("makes way").starts_at == HOUR


# --- during a booking ---------------------------------------------------------------------------------------------------


def test_tasks_of_the_booking_start_at_its_begin_and_others_do_not(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=2)
    booking = cluster.books(2, begins=HOUR, ends=3 * HOUR)
    cluster.submits(task("mine", booking=booking), task("early", timeout_seconds=HOUR))
    assert cluster.why("mine") == no.BookingNotBegun(booking, HOUR)
    assert cluster.explains("mine").starts_at == HOUR
    assert cluster.running() == ["early"]
    cluster.finishes("early")
    cluster.passes(HOUR)
    cluster.submits(task("other", timeout_seconds=60.0))
    assert cluster.running() == ["mine"]
    why = cluster.why("other")
    assert why == no.Booked(booking, HOUR, 3 * HOUR, has_begun=True)
    assert "timeout" not in why.sentence()
    cluster.passes(2 * HOUR)
    assert cluster.running() == ["mine", "other"]


def test_a_booking_has_no_more_gpus_than_were_booked(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=4)
    booking = cluster.books(2, begins=0, ends=HOUR)
    cluster.submits(*(task(f"t{place}", booking=booking) for place in range(3)))
    assert cluster.running() == ["t0", "t1"]
    assert cluster.why("t2") == no.BookingFull(booking, 2)
    cluster.passes(HOUR)
    assert cluster.running() == ["t0", "t1", "t2"]


def test_gpus_stay_booked_when_a_task_of_the_booking_ends(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=1)
    booking = cluster.books(1, begins=0, ends=HOUR)
    cluster.submits(task("mine", booking=booking), task("other"))
    cluster.finishes("mine")
    assert cluster.running() == []
    cluster.submits(task("again", booking=booking))
    assert cluster.running() == ["again"]


def test_tasks_in_the_way_are_waited_for_and_recorded(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=2)
    cluster.submits(task("endless", gpus=2))
    booking = cluster.books(1, begins=HOUR, ends=9 * HOUR)
    cluster.submits(task("mine", booking=booking))
    cluster.passes(HOUR)
    began = next(event for _, event in cluster.events if isinstance(event, events.BookingBegan))
    assert began.late == (cluster.numbers["endless"],)
    assert cluster.running() == ["endless"]
    assert cluster.why("mine") == no.BookingFull(booking, 1)
    cluster.finishes("endless")
    assert cluster.running() == ["mine"]


def test_a_booking_that_preempts_stops_only_tasks_that_allow_it(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=3)
    cluster.submits(
        task("stays", timeout_seconds=9 * HOUR),
        task("leaves", timeout_seconds=9 * HOUR, preemption=Preemption.REQUEUE),
        task("pauses", timeout_seconds=9 * HOUR, preemption=Preemption.SUSPEND),
    )
    booking = cluster.books(2, begins=HOUR, ends=2 * HOUR, preempt=True)
    cluster.submits(task("mine", gpus=2, booking=booking))
    cluster.passes(HOUR)
    assert cluster.running() == ["stays", "mine"]
    stops = [event for event in cluster.events_of("leaves") if isinstance(event, events.AttemptStopping)]
    assert stops[0].cause.why is CauseKind.BOOKED
    assert stops[0].cause.sentence() == "Its GPUs were booked by booking-1."
    cluster.finishes("mine")
    cluster.passes(HOUR)
    assert cluster.running() == ["stays", "leaves", "pauses"]


def test_a_task_that_makes_way_starts_although_it_would_run_into_the_booking(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=1)
    cluster.books(1, begins=HOUR, ends=2 * HOUR, preempt=True)
    cluster.submits(task("kind", timeout_seconds=9 * HOUR, preemption=Preemption.REQUEUE))
    assert cluster.running() == ["kind"]
    cluster.passes(HOUR)
    assert cluster.running() == []
    cluster.passes(HOUR)
    assert cluster.running() == ["kind"]


def test_tasks_of_a_booking_that_has_ended_are_tasks_like_all_others(cluster: ClusterStory) -> None:
    cluster.has_nodes(2, gpus_each=1)
    booking = cluster.books(1, begins=0, ends=HOUR)
    cluster.submits(task("a", booking=booking), task("b", booking=booking))
    assert cluster.running() == ["a"]
    cluster.passes(HOUR)
    assert cluster.running() == ["a", "b"]


def test_without_backfill_a_task_that_waits_for_its_booking_keeps_no_other_waiting() -> None:
    cluster = ClusterStory(policy="fifo", backfill="none")
    cluster.has_nodes(1, gpus_each=2)
    booking = cluster.books(2, begins=HOUR, ends=2 * HOUR)
    cluster.submits(task("mine", gpus=2, booking=booking), task("other", gpus=2, timeout_seconds=60.0))
    assert cluster.running() == ["other"]


# --- where ----------------------------------------------------------------------------------------------------------------


def test_one_node_is_preferred_and_gpus_that_are_free_by_then(cluster: ClusterStory) -> None:
    cluster.has_nodes(2, gpus_each=4)
    cluster.submits(task("endless", gpus=2))
    busy = cluster.nodes_of("endless")[0]
    booking = cluster.books(4, begins=HOUR, ends=2 * HOUR)
    assert list(booked_on(cluster, booking).values()) == [4]
    assert busy not in booked_on(cluster, booking)
    assert booked_on(cluster, cluster.books(3, begins=HOUR, ends=2 * HOUR)) == {busy: 3}


def test_a_large_booking_is_spread_over_nodes_and_two_never_overlap(cluster: ClusterStory) -> None:
    cluster.has_nodes(2, gpus_each=4)
    assert sum(booked_on(cluster, cluster.books(6, begins=HOUR, ends=2 * HOUR)).values()) == 6
    assert refused(cluster, gpus=3, begins_at=1.5 * HOUR, ends_at=4 * HOUR) == no.TooLittleToBook(3, 2)
    cluster.books(8, begins=2 * HOUR, ends=4 * HOUR)


def test_models_and_nodes_can_be_named(cluster: ClusterStory) -> None:
    cluster.has_node(node("a", gpus=4, model="A100"))
    cluster.has_node(node("h", gpus=4, model="H100"))
    assert booked_on(cluster, cluster.books(2, begins=0, ends=HOUR, models=("H100",))) == {"h": 2}
    assert booked_on(cluster, cluster.books(2, begins=0, ends=HOUR, nodes=(NodeId("a"),))) == {"a": 2}
    assert isinstance(refused(cluster, models=("H101",)), no.UnknownGpuModel)


def test_a_booking_moves_to_another_node_if_its_node_is_lost(cluster: ClusterStory) -> None:
    cluster.has_nodes(2, gpus_each=2)
    booking = cluster.books(2, begins=HOUR, ends=2 * HOUR)
    (before,) = booked_on(cluster, booking)
    cluster.submits(task("mine", gpus=2, booking=booking))
    cluster.loses(before)
    cluster.passes(HOUR)
    (after,) = booked_on(cluster, booking)
    assert after != before
    assert cluster.running() == ["mine"]


# --- maintenance ----------------------------------------------------------------------------------------------------------


def test_a_node_is_empty_during_maintenance_and_open_after_it(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=2)
    cluster.submits(task("moves", timeout_seconds=9 * HOUR, preemption=Preemption.CHECKPOINT))
    cluster.maintains("node-1", begins=HOUR, ends=2 * HOUR)
    cluster.submits(task("short", timeout_seconds=600.0), task("cpu", cpus=1, timeout_seconds=9 * HOUR))
    assert cluster.running() == ["moves", "short"]
    assert cluster.why("cpu") == no.UnderMaintenance(NodeId("node-1"), 1, HOUR, 2 * HOUR)
    cluster.finishes("short")
    cluster.passes(HOUR)
    assert cluster.running() == []
    host = cluster.state.index.hosts[NodeId("node-1")]
    assert (host.draining, host.cordon_reason) == (True, "maintenance window booking-1")
    why = cluster.why("cpu")
    assert why == no.UnderMaintenance(NodeId("node-1"), 1, HOUR, 2 * HOUR, has_begun=True)
    assert "timeout" not in why.sentence()
    cluster.passes(HOUR)
    assert cluster.running() == ["moves", "cpu"]
    assert not host.cordon_reason


def test_a_node_that_was_cordoned_before_stays_cordoned(cluster: ClusterStory) -> None:
    cluster.has_nodes(1)
    cluster.cordons("node-1")
    cluster.maintains("node-1", begins=HOUR, ends=2 * HOUR)
    cluster.passes(3 * HOUR)
    assert cluster.state.index.hosts[NodeId("node-1")].cordoned


def test_a_maintenance_window_that_passed_while_the_scheduler_was_away_drains_nothing(cluster: ClusterStory) -> None:
    cluster.has_nodes(1)
    cluster.submits(task("runs", timeout_seconds=9 * HOUR, preemption=Preemption.REQUEUE))
    cluster.maintains("node-1", begins=HOUR, ends=2 * HOUR)
    engine = Engine(snapshot.load(snapshot.dump(cluster.state)))
    happened = [type(event) for event in engine.decide(3 * HOUR)]
    assert events.BookingEnded in happened
    assert events.NodeCordoned not in happened


# --- refusals -------------------------------------------------------------------------------------------------------------


def test_wrong_bookings_are_refused_and_change_nothing(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=2)
    cluster.has_tenant("team", max_gpus=1)
    assert refused(cluster, begins_at=HOUR, ends_at=HOUR) == no.BookingTimes()
    assert refused(cluster, ends_at=float("inf")) == no.NotFinite("ends_at")
    assert refused(cluster, gpus=0) == no.NotPositive("gpus", 0)
    assert refused(cluster, gpus=2) == no.BookingAboveQuota(TenantId("team"), 2, 1)
    assert refused(cluster, nodes=(NodeId("x"),)) == no.UnknownNode(NodeId("x"))
    assert refused(cluster, maintenance=True) == no.MaintenanceWithoutNodes()
    assert refused(cluster, tenant=TenantId("")) == no.EmptyName("tenant")
    window = cluster.maintains("node-1", begins=HOUR, ends=2 * HOUR)
    again = refused(cluster, begins_at=1.5 * HOUR, ends_at=3 * HOUR, maintenance=True, nodes=(NodeId("node-1"),))
    assert again == no.NodeBooked(NodeId("node-1"), window)
    assert cluster.tells(command.CancelBooking(9)) == no.UnknownBooking(9)


def test_a_booking_has_a_longest_length_and_a_latest_begin(cluster: ClusterStory) -> None:
    cluster.has_nodes(1)
    day = 24 * HOUR
    assert refused(cluster, ends_at=91 * day) == no.BookingTooLong(91.0, 90.0)
    nodes = (NodeId("node-1"),)
    assert refused(cluster, ends_at=31 * 365 * day, nodes=nodes, maintenance=True) == no.BookingTooLong(11315.0, 90.0)
    assert refused(cluster, begins_at=401 * day, ends_at=402 * day) == no.BookingTooFar(401.0, 400.0)
    for wrong, said in (
        (refused(cluster, ends_at=90 * day + 1), "The booking is longer than 90 days, the maximum."),
        (refused(cluster, begins_at=2912120 * day, ends_at=2912121 * day), "more than 400 days from now"),
    ):
        assert isinstance(wrong, Refusal)
        assert said in wrong.sentence()
    cluster.decides_by(longest_booking_seconds=2 * day, book_ahead_seconds=3 * day)
    assert refused(cluster, ends_at=3 * day) == no.BookingTooLong(3.0, 2.0)
    assert cluster.books(1, begins=3 * day, ends=5 * day) == 1


def test_a_task_names_a_booking_of_its_tenant_that_is_large_enough(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=4)
    booking = cluster.books(2, begins=HOUR, ends=2 * HOUR)
    assert cluster.submits(task("a", booking=7)) == no.UnknownBooking(7)
    assert cluster.submits(task("a", booking=booking, tenant="x")) == no.BookingOfOthers(booking, TenantId("x"))
    assert cluster.submits(task("a", gpus=3, booking=booking)) == no.BookingTooSmall(booking, 3, 1, "2 on node-1")


def test_a_snapshot_keeps_bookings_and_their_times(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=2)
    booking = cluster.books(2, begins=HOUR, ends=2 * HOUR)
    cluster.submits(task("mine", gpus=2, booking=booking, timeout_seconds=60.0))
    loaded = Engine(snapshot.load(snapshot.dump(cluster.state)))
    assert loaded.next_wakeup() == HOUR
    assert [type(event) for event in loaded.decide(HOUR)] == [events.BookingBegan, events.TaskPlaced]
    assert next(type(event) for event in loaded.decide(2 * HOUR)) is events.BookingEnded


def test_bookings_at_the_same_time_stay_together_below_the_limit_of_their_tenant(cluster: ClusterStory) -> None:
    cluster.has_nodes(1, gpus_each=8)
    cluster.has_tenant("team", max_gpus=3)

    def books(gpus: int, begins: float, ends: float) -> Refusal | None:
        answer = cluster.tells(command.MakeBooking(TenantId("team"), begins, ends, gpus))
        return answer if isinstance(answer, Refusal) else None

    assert books(2, 0.0, 2 * HOUR) is None
    assert books(1, HOUR, 3 * HOUR) is None
    assert books(1, 0.5 * HOUR, 1.5 * HOUR) == no.BookingAboveQuota(TenantId("team"), 4, 3)
    assert books(2, 2 * HOUR, 3 * HOUR) is None  # the first has ended
    assert books(1, 0.5 * HOUR, HOUR) is None


def test_one_tenant_leaves_bookings_to_others_and_to_maintenance(
    cluster: ClusterStory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuyard.core.engine.handlers.bookings.MOST_OF_TENANT", 2)
    cluster.has_nodes(1)
    for day in (1, 2):
        cluster.tells(command.MakeBooking(TenantId("team"), day * 24 * HOUR, (day * 24 + 1) * HOUR, 1))
    assert refused(cluster) == no.TooManyBookings(2)
    assert not isinstance(cluster.tells(command.MakeBooking(TenantId("other"), HOUR, 2 * HOUR, 1)), Refusal)
    cluster.maintains("node-1", begins=72 * HOUR, ends=73 * HOUR)
