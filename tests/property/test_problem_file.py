"""Any file is read as a problem or rejected with one sentence."""

import json
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.core.domain.errors import WrongInput
from gpuyard.plan.planner.generate import generate
from gpuyard.plan.planner.instance import write_instance
from gpuyard.plan.planner.problem import Problem
from gpuyard.plan.planner.problem_file import read_problem
from tests.unit.plan.planner.test_problem_file import USERS

OURS = json.loads(write_instance(generate("agentic", 12, 2)))
THEIRS = yaml.safe_load(USERS)
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 0, 1.5, 10**30, "", "a", "1", [], {}, [[]], [None], {"id": None}, {"a": {"b": 1}}]
)


def read(text: bytes) -> Problem | str:
    try:
        return read_problem(text)
    except WrongInput as error:
        sentence = str(error)
    assert "\n" not in sentence
    assert sentence.strip()
    return sentence


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([OURS, THEIRS]), st.data())
def test_an_odd_value_anywhere_is_read_or_reported_in_one_sentence(said: dict[str, Any], data: st.DataObject) -> None:
    odd = json.loads(json.dumps(said))
    here: Any = odd
    while True:
        key = data.draw(st.sampled_from(sorted(here) if isinstance(here, dict) else range(len(here))))
        below = here[key]
        if not isinstance(below, dict | list) or not below or data.draw(st.booleans()):
            break
        here = below
    if data.draw(st.booleans()):
        here[key] = data.draw(ODD)
    else:
        del here[key]
    for text in (json.dumps(odd), yaml.safe_dump(odd)):
        read(text.encode())


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([json.dumps(OURS), USERS]), st.integers(0, 3000))
def test_a_file_truncated_anywhere_is_read_or_reported_in_one_sentence(text: str, length: int) -> None:
    read(text[:length].encode())


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_reported_in_one_sentence(noise: bytes) -> None:
    assert isinstance(read(noise), str)
