"""The order of the whole queue is the order in which tasks start, and expected starts are those of `explain`."""

from collections.abc import Callable
from typing import Any

import pytest

from gpuyard.core.domain.tenant import QuotaMode
from gpuyard.core.domain.values import TaskId
from gpuyard.core.engine.queue_order import entries_in_order, first_starts, parts_of_queue
from gpuyard.testing import ClusterStory, task


def plain_sort(tasks: list[TaskId], key: Callable[[TaskId], Any]) -> list[TaskId]:
    return sorted(tasks, key=key)


def queue(story: ClusterStory) -> list[str]:
    return [story.names[number] for number in entries_in_order(parts_of_queue(story.state, story.now), plain_sort)]


@pytest.mark.parametrize("policy", ["default", "fifo", "priority", "fair_share", "sjf"])
def test_tasks_start_in_the_order_of_the_queue(policy: str) -> None:
    story = ClusterStory()
    story.has_nodes(1, gpus_each=1)
    story.decides_by(policy=policy)
    story.submits(task("first", runs_for=10, estimate=10))
    for number in range(12):
        given = (7 * number) % 12
        story.submits(
            task(f"t{number}", priority=8 * given, tenant="abc"[number % 3], estimate=5 + given, runs_for=5 + given)
        )
    if policy == "fair_share":  # the order changes with every task that ends
        first = queue(story)[0]
        story.passes(10)
        assert story.placements()[1] == first
        return
    expected = queue(story)
    assert len(expected) == 12
    story.runs_out()
    assert story.placements()[1:] == expected


def test_tasks_that_left_the_queue_are_left_out() -> None:
    story = ClusterStory()
    story.has_nodes(1, gpus_each=1)
    story.submits(task("runs"), task("gone"), task("held"), task("waits"))
    parts = parts_of_queue(story.state, story.now)
    story.cancels("gone")
    story.holds("held")
    assert [story.names[number] for number in entries_in_order(parts, plain_sort)] == ["waits"]
    assert queue(story) == ["waits"]


def test_tasks_of_a_class_that_would_borrow_go_last() -> None:
    story = ClusterStory()
    story.has_nodes(1, gpus_each=4)
    story.is_split(online=0.25, mode=QuotaMode.BORROW)
    story.submits(task("on", gpus=1, online=True), task("full", gpus=3))
    story.submits(task("borrows", gpus=1, online=True, priority=99), task("on-quota", gpus=1, runs_for=5))
    story.finishes("full")
    story.submits(task("again", gpus=3, runs_for=5))
    assert queue(story) == sorted(queue(story), key=lambda name: name == "borrows")


def test_expected_starts_are_those_of_explain() -> None:
    story = ClusterStory()
    story.has_nodes(2, gpus_each=4)
    for number in range(4):
        story.submits(task(f"runs{number}", gpus=2, estimate=100 + 50 * number))
    for number in range(10):
        story.submits(task(f"t{number}", gpus=1 + number % 4, estimate=30 + 10 * number))
    order = list(entries_in_order(parts_of_queue(story.state, story.now), plain_sort))
    starts = first_starts(story.state, order, story.now)
    assert len(starts) == 10
    for number in order:
        assert starts[number] == story.explains(story.names[number]).starts_at
    assert len(set(starts.values())) > 3


def test_an_unknown_end_gives_no_start_and_the_search_can_be_stopped() -> None:
    story = ClusterStory()
    story.has_nodes(1, gpus_each=2)
    story.submits(task("runs", gpus=2), task("waits", gpus=2, estimate=10))
    order = list(entries_in_order(parts_of_queue(story.state, story.now), plain_sort))
    assert first_starts(story.state, order, story.now) == {}
    story.cancels("runs")
    story.submits(task("known", gpus=2, estimate=10))
    order = list(entries_in_order(parts_of_queue(story.state, story.now), plain_sort))
    assert list(first_starts(story.state, order, story.now)) == order
    assert first_starts(story.state, order, story.now, keep_going=lambda: False) == {}
