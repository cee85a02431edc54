"""The runtimes file is read strictly: errors are one sentence with the place."""

from typing import Any

import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.plan.workers.settings import read_runtimes
from tests.unit.plan.planner.problem_stories import problem

TWO = problem(
    [("a", "small", 1, []), ("b", "large", 1, ["a"])], {"small": {"memory_gb": 1}, "large": {"memory_gb": 2}}, gpus=1
)


def test_each_model_gets_its_runtime_and_a_star_matches_all_others() -> None:
    said = {"models": {"small": {"python": "m:F", "options": {"n": 1}}, "*": "virtual"}, "inputs": {"r": [1, 2]}}
    runtimes = read_runtimes(said, TWO, ["/here"])
    assert [runtime.name for runtime in runtimes.of_model] == ["python", "virtual"]
    assert runtimes.of_model[0].settings == {"python": "m:F", "options": {"n": 1}, "folders": ["/here"]}
    assert runtimes.inputs == {"r": [1, 2]}
    assert not runtimes.are_virtual


def test_a_python_model_may_be_excluded_from_loading_beside_calls() -> None:
    said = {"models": {"small": {"python": "m:F", "preload": False}, "*": {"command": ["x"]}}}
    assert read_runtimes(said, TWO, []).preloads == [False, True]


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (None, "models is missing: specify how to run each model."),
        ({"models": {}, "modles": {}}, "unknown key 'modles'; did you mean 'models'?"),
        ({"models": {"smal": "virtual"}}, "models: the problem has no model 'smal'; did you mean 'small'?"),
        ({"models": {"small": "virtual"}}, "models: 'large' is missing; specify how to run it, or use \"*\" for all others."),
        ({"models": {"*": {}}}, "models.*: specify one runtime: python, command, openai, virtual."),
        ({"models": {"*": {"python": "m:F", "virtual": {}}}}, "models.*: specify one runtime: python, command, openai, virtual."),
        ({"models": {"*": {"python": "m:F", "option": {}}}}, "models.*: unknown key 'option'; did you mean 'options'?"),
        ({"models": {"*": {"python": "m.F"}}}, "models.*.python is 'm.F'; it must be module:name."),
        ({"models": {"*": {"python": "m:F", "options": 3}}}, "models.*.options must be a mapping."),
        ({"models": {"*": {"python": "m:F", "preload": "no"}}}, "models.*.preload is 'no'; it must be true or false."),
        ({"models": {"*": {"command": ["x"], "preload": True}}}, "models.*: unknown key 'preload'."),
        ({"models": {"*": {"command": "run it"}}}, "models.*.command must be a list of a program and its arguments."),
        ({"models": {"*": {"openai": "host:80", "model": "x"}}}, "models.*.openai is 'host:80'; it must be the address of the server, with http://."),
        ({"models": {"*": {"openai": "http://h"}}}, "models.*.model is missing: the name of the model on the server."),
        ({"models": {"*": {"virtual": {"drift": 2.0}}}}, "models.*.virtual: drift and fails must be fractions from 0 to 1."),
        ({"models": {"*": {"virtual": {"of": 0.2}}}}, 'models.*.virtual: Unknown name "of" in virtual; known names: drift, seed, fails.'),
        ({"models": {"*": {"virtual": {"drift": "much"}}}}, 'models.*.virtual: drift is "much"; it must be a number.'),
        ({"models": {"*": "virtual"}, "inputs": {"q": 1}}, "inputs: the problem has no request 'q'."),
        ({"models": {"*": "virtual"}, "inputs": [1]}, "inputs must map requests to their inputs."),
    ],
)  # fmt: skip
def test_invalid_settings_are_reported_in_one_sentence(said: Any, sentence: str) -> None:
    with pytest.raises(WrongInput) as error:
        read_runtimes(said, TWO, [])
    assert str(error.value) == sentence
