"""The text of `explain`: why a task waits, when it starts, and what that is based on."""

from typing import Any

import pytest

from gpuyard.cli import explain
from gpuyard.cli.explain import explanation_lines
from gpuyard.cli.output.printing import format_instant, format_seconds
from gpuyard.core.domain.refusals import REFUSALS
from gpuyard.core.domain.values import TaskStatus
from gpuyard.core.engine.explain import AHEAD, MOST_COUNTED
from gpuyard.learn.estimates.history import LEAST_KIND_RUNS
from gpuyard.live.wire.answers import ExplainAnswer
from gpuyard.live.wire.task_answers import ForecastAnswer

EARLY, LIKELY, LATE = (f"2026-01-0{day}T00:00:00.000000Z" for day in (1, 2, 3))


def explanation(**said: object) -> ExplainAnswer:
    usual: dict[str, object] = {
        "task_id": "task-7",
        "status": TaskStatus.PENDING,
        "reason": "No GPU is free.",
        "reason_code": "NoRoom",
        "ahead": 0,
        "starts_at": None,
        "starts_low": None,
        "starts_high": None,
        "nodes": [],
    }
    return ExplainAnswer(**{**usual, **said})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ahead", "first", "which"),
    [
        (0, "No task is ahead of it.", "a running task"),
        (1, "1 task is ahead of it.", "a running task or one ahead of it"),
    ],
)
def test_behind_a_task_of_unknown_length_the_start_is_unknown_and_the_text_says_why(
    ahead: int, first: str, which: str
) -> None:
    assert explanation_lines(explanation(ahead=ahead)) == [
        "task-7 is pending. No GPU is free.",
        first,
        (f"Its start cannot be estimated: {which} has neither an estimate (--estimate) nor a timeout (--timeout)."),
    ]


def test_smaller_tasks_that_may_go_first_are_mentioned() -> None:
    told = explanation_lines(explanation(may_be_overtaken=True))
    assert told[1:3] == [
        "No task is ahead of it.",
        "Smaller tasks may start earlier, on GPUs that are too few for it (backfill).",
    ]


def test_an_expected_start_is_marked_as_based_on_estimates() -> None:
    told = explanation_lines(explanation(starts_at=LIKELY, starts_low=EARLY, starts_high=LATE, nodes=["node-1"]))

    early, likely, late = map(format_instant, (EARLY, LIKELY, LATE))
    assert told[1] == "No task is ahead of it."
    assert told[2] == (
        f"By the estimates of running and waiting tasks, it starts on node-1 at {likely}, between {early} and {late}."
    )


def test_without_a_range_there_is_one_instant() -> None:
    told = explanation_lines(explanation(starts_at=LIKELY, starts_low=LIKELY, starts_high=LIKELY))
    assert told[2] == f"By the estimates of running and waiting tasks, it starts at {format_instant(LIKELY)}."


@pytest.mark.parametrize(("ahead", "whose"), [(0, "running tasks"), (2, "running tasks and of those ahead of it")])
def test_a_guess_is_labeled(ahead: int, whose: str) -> None:
    guess = explanation(starts_at=LATE, starts_low=EARLY, starts_high=LATE, guessed=True, ahead=ahead)
    assert explanation_lines(guess)[2] == (
        f"Rough estimate: it starts between {format_instant(EARLY)} and {format_instant(LATE)}. "
        f"The run times of {whose} are uncertain."
    )


def test_the_run_time_is_shown_with_the_basis_of_its_prediction() -> None:
    band: dict[str, object] = {
        "estimated_seconds": 90.0,
        "estimated_low_seconds": 30.0,
        "estimated_high_seconds": 3_600.0,
    }
    likely, low, high = map(format_seconds, (90.0, 30.0, 3_600.0))
    sentence = f"Predicted run time: {likely}, between {low} and {high}, from the last 12 similar tasks."
    assert explanation_lines(explanation(**band, predicted_from=12))[-1] == sentence
    running = explanation(status=TaskStatus.RUNNING, nodes=["n1"], predicted_from=12, **band)
    assert explanation_lines(running)[-2:] == ["Its GPUs are on n1.", sentence]
    assert sentence not in explanation_lines(explanation(**band))
    assert explanation_lines(explanation(**band, predicted_from=12, predicted_from_other_work=True))[-1] == (
        f"Guessed run time: {likely}, between {low} and {high}, from the last 12 similar tasks: "
        "fewer than 10 of its user, size and kind had ended when it was submitted."
    )
    assert explain.LEAST_KIND_RUNS == LEAST_KIND_RUNS


@pytest.mark.parametrize("code", ["BackingOff", "BudgetSpent", "WaitingForMoves", "WaitingForVictims"])
def test_a_start_without_estimates_mentions_none(code: str) -> None:
    told = explanation_lines(explanation(reason_code=code, starts_at=LIKELY, starts_low=LIKELY, starts_high=LIKELY))
    assert told[-1] == f"It starts at {format_instant(LIKELY)}."


@pytest.mark.parametrize("code", ["NodeTooSmall", "TooFewCpus", "GpuMemoryTooSmall"])
def test_a_task_that_fits_nowhere_is_shown_what_to_do(code: str) -> None:
    assert explanation_lines(explanation(reason_code=code)) == [
        "task-7 is pending. No GPU is free.",
        "No current node is large enough. The task starts when a suitable node joins; otherwise cancel it and request less.",
    ]


@pytest.mark.parametrize(
    ("code", "step"),
    [
        (
            "UnknownGpuModel",
            "The task starts when a node with such a GPU joins; otherwise cancel it and request another model.",
        ),
        (
            "NoNodeWithLabels",
            "The task starts when a node with these labels joins; otherwise cancel it and request other labels.",
        ),
        (
            "GangLargerThanCluster",
            "The task starts when enough nodes have joined; otherwise cancel it and request fewer nodes.",
        ),
    ],
)
def test_where_size_is_not_the_problem_the_next_step_does_not_speak_of_size(code: str, step: str) -> None:
    assert explanation_lines(explanation(reason_code=code))[1:] == [step]


def test_every_special_next_step_is_of_a_reason_that_exists() -> None:
    assert set(explain.NEXT_STEPS) <= {kind.__name__ for kind in REFUSALS}


@pytest.mark.parametrize(
    "code", ["OnHold", "WaitingForTasks", "ClassQuotaTooSmall", "TenantQuotaTooSmall", "NoSystemUser", "NoNodesYet"]
)
def test_if_the_reason_names_what_it_waits_for_nothing_is_added(code: str) -> None:
    assert explanation_lines(explanation(reason_code=code)) == ["task-7 is pending. No GPU is free."]


def test_only_known_obstacles_are_shown() -> None:
    assert explanation_lines(explanation(reason_code="ClassQuotaFull"))[-1] == "Its start cannot be estimated."
    assert (
        explanation_lines(explanation(ahead=10_000, more_ahead=True))[-1]
        == "Its start cannot be estimated: more than 10,000 tasks are ahead of it."
    )


def test_if_all_suitable_nodes_are_closed_that_is_why_no_start_is_known_and_not_the_queue() -> None:
    told = explanation_lines(explanation(reason_code="NodesClosed", ahead=10_000, more_ahead=True))
    assert told[-1] == "Its start cannot be estimated: no open node could hold it."


def test_behind_many_tasks_the_estimate_names_what_it_is_based_on() -> None:
    told = explanation_lines(
        explanation(ahead=1200, starts_at=LIKELY, starts_low=EARLY, starts_high=LATE, guessed=True)
    )
    assert told[-1] == (
        f"Rough estimate: it starts between {format_instant(EARLY)} and {format_instant(LATE)}, from the run times of "
        "the 1,200 tasks ahead of it and the number of suitable GPUs."
    )


def test_where_its_model_ran_last_is_shown() -> None:
    told = explanation_lines(explanation(ahead=300, model_ran_on=["node-1", "node-2"]))
    assert (
        told[-1]
        == "Its model was last loaded on node-1 and node-2: among equally good placements the scheduler prefers these nodes."
    )


def test_the_texts_are_about_existing_reasons() -> None:
    assert {kind.__name__ for kind in REFUSALS} >= explain.SAYS_ALL | explain.IN_THE_WAY | explain.NOT_BY_ESTIMATES
    assert (explain.MOST_AHEAD, explain.MOST_ESTIMATED) == (AHEAD, MOST_COUNTED)


def test_a_running_task_shows_where() -> None:
    told = explanation_lines(explanation(status=TaskStatus.RUNNING, reason=None, nodes=["a", "b"]))
    assert told == ["task-7 is running.", "Its GPUs are on a and b."]


def test_declared_work_shows_its_run_time_per_gpu_and_its_needs() -> None:
    usual: dict[str, Any] = {
        "memory_mib": 9_400.4,
        "memory_low_mib": 9_000.0,
        "memory_high_mib": 11_000.0,
        "utilization": 90.0,
    }
    forecasts = [
        ForecastAnswer(gpu_model=model, seconds=seconds, low_seconds=seconds / 2, high_seconds=seconds * 2, **usual)
        for model, seconds in (("T4", 400.0), ("H100", 100.0))
    ]
    band = {"estimated_seconds": 120.0, "estimated_low_seconds": 90.0, "estimated_high_seconds": 150.0}
    told = explanation_lines(explanation(forecasts=forecasts, predicted_from=3, **band))
    likely, low, high = map(format_seconds, (120.0, 90.0, 150.0))
    assert told[3:] == [
        f"Predicted run time from its workload: {likely} on H100, between {low} and {high}, corrected by 3 measured runs of its kind.",
        "It is fastest on H100; 0.25 times as fast on T4.",
        "Predicted memory: 9,400 MiB on each GPU.",
    ]
    assert explanation_lines(explanation(forecasts=forecasts[1:]))[3:] == ["Predicted memory: 9,400 MiB on each GPU."]


@pytest.mark.parametrize(
    ("status", "reason", "sentence"),
    [
        (TaskStatus.SUCCESS, None, "task-7 has succeeded."),
        (TaskStatus.TIMEOUT, None, "task-7 has timed out."),
        (TaskStatus.FAILED, "Exit code 1.", "task-7 has failed. Exit code 1."),
        (TaskStatus.CANCELLED, "It was cancelled.", "task-7 was cancelled."),
    ],
)
def test_the_end_of_a_task_is_a_sentence(status: TaskStatus, reason: str | None, sentence: str) -> None:
    assert explanation_lines(explanation(status=status, reason=reason, reason_code=None)) == [sentence]
