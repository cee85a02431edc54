"""The state machine of alerts, without a scheduler."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.live.control_plane.alerts.rules.built_in import BUILT_IN
from gpuyard.live.control_plane.alerts.rules.evaluate import (
    MOST_ALERTS,
    NO_DATA_SECONDS,
    RESOLVED_SECONDS,
    evaluate,
    summary_of,
)
from gpuyard.live.control_plane.alerts.rules.rule import Alert, AlertStatus, Labels, Rule, Sample, alert_id

HOT = Rule("gpu_hot", "A GPU is hot.", "°C", 85, 80, for_seconds=60)
GPU: Labels = (("gpu", "n1/0"), ("node", "n1"))


class Story:
    """One rule over time; `None` is a sample without a value, and no argument no sample at all."""

    def __init__(self, rule: Rule = HOT) -> None:
        self.rule = rule
        self.now = 1_000_000.0
        self.state: dict[Labels, Alert] = {}
        self.told: list[str] = []

    def after(self, seconds: float, *values: float | None) -> str:
        """Let time pass, take a sample, and return the status of the alert; empty: there is none."""
        self.now += seconds
        samples = [Sample(GPU, value) for value in values]
        self.state, notices = evaluate(self.rule, samples, self.state, self.now)
        self.told += [notice.status.value for notice in notices]
        return self.state[GPU].status.value if GPU in self.state else ""


def test_an_alert_is_pending_for_the_time_of_its_rule_then_fires_and_then_resolves() -> None:
    story = Story()
    assert story.after(0, 84.9) == ""
    assert story.after(5, 85) == "pending"
    assert story.after(55, 90) == "pending"
    assert story.after(5, 86) == "firing"
    assert story.state[GPU].fired_at == story.now
    assert story.state[GPU].since == story.now - 60
    assert story.after(5, 79) == "resolved"
    assert story.told == ["pending", "firing", "resolved"]


def test_a_short_peak_never_fires() -> None:
    story = Story()
    story.after(0, 90)
    assert story.after(30, 70) == ""
    assert story.after(5, 90) == "pending"
    assert story.after(59, 90) == "pending"
    assert "firing" not in story.told


def test_a_firing_alert_ends_only_below_its_clear_value() -> None:
    story = Story(replace(HOT, for_seconds=0))
    assert story.after(0, 85) == "firing"
    assert story.after(5, 81) == "firing"
    assert story.after(5, 80) == "firing"
    assert story.after(5, 79.9) == "resolved"


def test_a_pending_alert_ends_below_its_threshold_already() -> None:
    story = Story()
    story.after(0, 85)
    assert story.after(5, 84) == ""


def test_a_rule_may_fire_below_its_threshold() -> None:
    story = Story(Rule("disk_full", "", "GiB", 5, 8, above=False))
    assert story.after(0, 5.1) == ""
    assert story.after(5, 5) == "firing"
    assert story.after(5, 8) == "firing"
    assert story.after(5, 8.1) == "resolved"


def test_keep_firing_for_outlasts_a_gap_and_counts_from_the_last_time_it_held() -> None:
    story = Story(replace(HOT, for_seconds=0, keep_firing_seconds=30))
    story.after(0, 90)
    assert story.after(5, 70) == "firing"
    assert story.after(20, 90) == "firing"
    assert story.after(25, 70) == "firing"
    assert story.after(5, 70) == "resolved"
    assert story.told == ["firing", "resolved"]


def test_a_missing_value_is_no_data_and_not_resolved_and_its_return_fires_nothing_again() -> None:
    story = Story(replace(HOT, for_seconds=0))
    story.after(0, 90)
    assert story.after(NO_DATA_SECONDS - 1, None) == "firing"
    assert story.after(1, None) == "no_data"
    assert story.after(500, None) == "no_data"
    assert story.after(5, 90) == "firing"
    assert story.told == ["firing", "no_data", "firing"]
    assert story.state[GPU].fired_at == 1_000_000.0, "the same alert as before"


def test_an_alert_without_data_resolves_when_a_value_shows_that_it_is_over() -> None:
    story = Story(replace(HOT, for_seconds=0))
    story.after(0, 90)
    story.after(NO_DATA_SECONDS, None)
    assert story.after(5, 60) == "resolved"


def test_a_pending_alert_starts_over_after_a_time_without_data() -> None:
    story = Story()
    story.after(0, 90)
    assert story.after(NO_DATA_SECONDS, None) == "no_data"
    assert story.after(5, 90) == "pending"
    assert story.after(55, 90) == "pending"
    assert story.after(5, 90) == "firing"


def test_no_value_at_all_makes_no_alert() -> None:
    story = Story()
    assert story.after(0, None) == ""
    assert story.after(500, None) == ""


def test_an_alert_of_something_that_is_gone_resolves() -> None:
    story = Story(replace(HOT, for_seconds=0))
    story.after(0, 90)
    assert story.after(5) == "resolved"
    waiting = Story()
    waiting.after(0, 90)
    assert waiting.after(5) == ""
    assert waiting.told == ["pending"]


def test_a_resolved_alert_is_listed_for_a_while_and_can_fire_again() -> None:
    story = Story(replace(HOT, for_seconds=0))
    story.after(0, 90)
    story.after(5, 70)
    assert story.after(RESOLVED_SECONDS - 1, 70) == "resolved"
    assert story.after(0, 90) == "firing"
    assert story.state[GPU].resolved_at is None
    story.after(5, 70)
    assert story.after(RESOLVED_SECONDS) == ""


def test_evaluation_continues_where_a_restarted_scheduler_stopped() -> None:
    story = Story(replace(HOT, for_seconds=0))
    story.after(0, 90)
    story.told.clear()
    assert story.after(3600, 90) == "firing"
    assert story.told == []


def test_the_number_of_alerts_of_a_rule_is_bounded() -> None:
    samples = [Sample((("gpu", f"n/{number}"),), 90.0) for number in range(MOST_ALERTS + 100)]
    state, _ = evaluate(HOT, samples, {}, 0.0)
    assert len(state) == MOST_ALERTS


def test_ids_differ_by_rule_and_by_every_label_and_do_not_change() -> None:
    assert alert_id("gpu_hot", GPU) == alert_id("gpu_hot", tuple(GPU)) == "4a6fc91efbc7d7ce"
    ids = {
        alert_id("gpu_hot", GPU),
        alert_id("gpu_memory_full", GPU),
        alert_id("gpu_hot", (("gpu", "n1/1"), ("node", "n1"))),
        alert_id("gpu_hot", (("gpun1/0", ""), ("node", "n1"))),
        alert_id("gpu_hot", ()),
    }
    assert len(ids) == 5


def test_rules_that_inhibit_others_are_evaluated_first() -> None:
    names = list(BUILT_IN)
    for rule in BUILT_IN.values():
        assert not rule.inhibited_by or names.index(rule.inhibited_by) < names.index(rule.name)
        assert rule.clear <= rule.threshold if rule.above else rule.clear >= rule.threshold


def naive(rule: Rule, steps: Sequence[tuple[float, float]]) -> list[str]:
    """The status after each step, computed from the whole past: for values only, without hysteresis and keeping."""
    statuses: list[str] = []
    firing = False
    for place, (now, value) in enumerate(steps):
        holds = value >= rule.threshold
        if not holds:
            statuses.append("resolved" if firing or (statuses and statuses[-1] == "resolved") else "")
            firing = False
            continue
        began = place
        while began and steps[began - 1][1] >= rule.threshold:
            began -= 1
        firing = firing or now - steps[began][0] >= rule.for_seconds
        statuses.append("firing" if firing else "pending")
    return statuses


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from([70.0, 85.0, 90.0])), max_size=30))
def test_states_are_those_of_a_naive_evaluation_of_the_whole_past(steps: list[tuple[int, float]]) -> None:
    rule = replace(HOT, clear=HOT.threshold)
    story, timed, now = Story(rule), [], 1_000_000.0
    found = []
    for seconds, value in steps:
        now += seconds
        timed.append((now, value))
        found.append(story.after(seconds, value))
    assert found == naive(rule, timed)


@given(st.lists(st.tuples(st.integers(1, 90), st.one_of(st.none(), st.just("gone"), st.floats(60, 100))), max_size=40))
def test_whatever_happens_an_alert_that_fired_resolves_once_and_only_then(
    steps: list[tuple[int, float | str | None]],
) -> None:
    story = Story(replace(HOT, keep_firing_seconds=20))
    for seconds, value in steps:
        story.after(seconds, *(() if value == "gone" else (value,)))
    story.after(200, 60)
    story.after(200, 60)
    told = [word for word in story.told if word in {"firing", "resolved"}]
    assert not told or told[-1] == "resolved"
    assert ("resolved", "resolved") not in set(pairwise(told))
    assert all(alert.status is AlertStatus.RESOLVED for alert in story.state.values())


@pytest.mark.parametrize(
    ("value", "words"), [(61.6245, "61.6"), (0.5249, "0.52"), (88.0, "88"), (1234567.89, "1234567.9"), (5.0, "5")]
)
def test_values_are_rounded_in_messages(value: float, words: str) -> None:
    told = summary_of(BUILT_IN["gpu_hot"], Sample(GPU, value), value)
    assert told.endswith(f": {words} °C")
