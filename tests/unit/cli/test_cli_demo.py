"""The demonstration: the same story for the same seed, complete at every size, and a picture of it."""

import pytest
from rich.console import Console, ConsoleDimensions

from gpuyard.cli.demo.picture import Picture
from gpuyard.cli.demo.stage import Stage
from gpuyard.cli.demo.workload import workload
from gpuyard.core.domain import commands as command
from gpuyard.core.domain import events as fact
from gpuyard.core.engine import invariants

LENGTH = 1200.0


def stage(seed: int = 7, nodes: int = 6) -> Stage:
    return Stage(workload(seed, nodes, LENGTH), LENGTH)


def drawn(shown: Stage, width: int = 140, height: int = 45) -> str:
    console = Console(width=width, height=height, color_system=None)
    with console.capture() as capture:
        console.print(Picture(shown, speed=100).draw(ConsoleDimensions(width, height)))
    return capture.get()


def test_a_seed_always_tells_the_same_story() -> None:
    assert workload(3, 6, LENGTH).script == workload(3, 6, LENGTH).script
    assert workload(3, 6, LENGTH).script != workload(4, 6, LENGTH).script


def test_it_does_not_matter_in_how_many_steps_time_passes() -> None:
    at_once, in_steps = stage(), stage()

    facts = at_once.advance(LENGTH)
    stepwise = [happened for step in range(1, 121) for happened in in_steps.advance(step * LENGTH / 120)]

    assert facts == stepwise


@pytest.mark.parametrize("nodes", [2, 3, 12])
def test_the_engine_accepts_every_task_of_the_story_at_any_size(nodes: int) -> None:
    story = workload(1, nodes, LENGTH)
    asked = [step for _, step in story.script if isinstance(step, command.SubmitTasks)]
    shown = Stage(story, LENGTH)

    facts = shown.advance(LENGTH)

    assert sum(isinstance(event, fact.TaskSubmitted) for _, event, _ in facts) == len(asked)
    invariants.check(shown.state)


def test_the_story_holds_what_is_worth_seeing() -> None:
    shown = stage()

    kinds = {type(event) for _, event, _ in shown.advance(LENGTH)}

    assert {
        fact.ReservationMade, fact.AttemptSuspended, fact.AttemptResumed, fact.TaskRequeued,
        fact.NodeLost, fact.NodeReturned, fact.NodeCordoned, fact.NodeUncordoned, fact.GpuHealthChanged,
    } <= kinds  # fmt: skip


def test_the_summary_adds_up() -> None:
    shown = stage()
    shown.advance(LENGTH)

    counts = shown.tally.summary()

    over = sum(counts[how] for how in ("succeeded", "failed", "cancelled", "timed_out"))
    assert counts["submitted"] == over + counts["open"]
    assert 0 < counts["utilisation"] <= 1


def test_the_picture_shows_nodes_queue_reasons_reservations_quotas_and_facts() -> None:
    shown = stage()
    shown.advance(LENGTH * 0.35)

    picture = drawn(shown)

    for words in (
        "node-1",
        "lost",
        "vision",
        "online",
        "why it waits",
        "wishful",
        "the models here are A100, L40S",
        "reservations",
    ):
        assert words in picture
    assert any(sentence[:40] in picture for _, sentence in shown.recent)
    assert all(hold.task.spec.name in picture for hold in shown.state.holds.values())


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (200, 60)])
def test_the_picture_fits_the_terminal(width: int, height: int) -> None:
    shown = stage(nodes=64)
    shown.advance(LENGTH * 0.3)

    lines = drawn(shown, width, height).splitlines()

    assert len(lines) <= height
    assert max(len(line) for line in lines) <= width
