"""Arguments of `run_plan` that can not be meant are refused in one sentence, before anything is started."""

from typing import Any

import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.plan.workers import run_plan
from tests.unit.plan.planner.small_problems import problem


@pytest.mark.parametrize(
    ("argument", "value", "sentence"),
    [
        ("retries", -1, "retries is -1; it must be a whole number from 0 to 1,000,000."),
        ("speed_up", 0, "speed_up is 0; it must be a number from 0.001 to 1,000,000,000"),
        ("seconds", float("nan"), "seconds is not a finite number; it must be a number from 0 to 31,536,000."),
        ("seed", "x", 'seed is "x"; it must be a whole number'),
        ("runtimes", 5, "runtimes is 5; it must be the path of a file."),
    ],
)
def test_what_can_not_be_meant_is_refused_in_one_sentence(argument: str, value: Any, sentence: str) -> None:
    with pytest.raises(WrongInput) as error:
        run_plan(problem(), **{argument: value})
    assert str(error.value).startswith(sentence)
