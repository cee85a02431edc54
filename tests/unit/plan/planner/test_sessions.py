"""Plans cut into sessions: what one process does that loads its model once."""

import pytest

from gpuyard.plan.planner.sessions import Session, sessions_of
from gpuyard.plan.planner.strategies import SearchBudget, strategy
from tests.unit.plan.planner.small_problems import drawn, plan, problem


def names(found: list[Session]) -> list[tuple[list[int], set[int]]]:
    return [(session.calls, session.after) for session in found]


def test_consecutive_calls_of_one_model_on_a_gpu_are_one_session() -> None:
    asked = problem(("a", "A", 5, ""), ("b", "B", 5, "a"), gpus=1, requests=2)
    found = sessions_of(asked, plan((0, 3, 8), (0, 17, 22), (0, 8, 13), (0, 22, 27)))
    assert names(found) == [([0, 2], set()), ([1, 3], {0})]
    assert [session.work_s for session in found] == [10, 10]


def test_other_gpus_and_models_in_between_end_a_session() -> None:
    asked = problem(("a", "A", 5, ""), ("b", "B", 5, ""), ("c", "A", 5, ""), ("d", "A", 5, ""), gpus=2)
    found = sessions_of(asked, plan((0, 3, 8), (0, 12, 17), (0, 21, 26), (1, 3, 8)))
    assert [session.calls for session in found] == [[0], [3], [1], [2]]


def test_a_session_never_waits_for_a_later_one() -> None:
    asked = problem(("a", "A", 5, ""), ("b", "B", 5, "a"), ("c", "A", 5, "b"), gpus=2)
    found = sessions_of(asked, plan((0, 3, 8), (1, 8, 13), (0, 13, 18)))
    assert names(found) == [([0], set()), ([1], {0}), ([2], {1})]


def test_a_session_is_closed_when_its_load_is_a_small_part_of_it() -> None:
    asked = problem(("a", "A", 20, ""), gpus=1, requests=4)
    one_by_one = plan((0, 3, 23), (0, 23, 43), (0, 43, 63), (0, 63, 83))
    assert [session.calls for session in sessions_of(asked, one_by_one)] == [[0, 1], [2, 3]]
    assert [session.calls for session in sessions_of(asked, one_by_one, loads=0)] == [[0], [1], [2], [3]]


def test_a_model_on_several_gpus_continues_only_if_nothing_ran_on_any_of_them() -> None:
    asked = problem(("a", "A2", 5, ""), ("b", "B", 5, ""), ("c", "A2", 5, ""), gpus=2)
    found = sessions_of(asked, plan((0, 3, 8), (1, 12, 17), (0, 21, 26)))
    assert [session.calls for session in found] == [[0], [1], [2]]


@pytest.mark.parametrize("family", ["chain", "diamond", "agentic", "multi_gpu"])
@pytest.mark.parametrize("loads", [0.0, 10.0, 1e9])
def test_every_call_is_in_one_session_after_its_dependencies(family: str, loads: float) -> None:
    asked = drawn(family, 300, 8)
    found = sessions_of(asked, strategy("dynamic")(asked, SearchBudget()), loads=loads)
    place = {call: at for at, session in enumerate(found) for call in session.calls}
    assert sorted(place) == list(range(len(asked.calls)))
    for call, at in place.items():
        first, behind = asked.calls.before_at[call], asked.calls.before_at[call + 1]
        for other in asked.calls.before[first:behind].tolist():
            within = found[at].calls
            assert place[other] in found[at].after or within.index(other) < within.index(call)
    assert all(max(session.after, default=-1) < at for at, session in enumerate(found))
    assert len({asked.calls.model[call] for session in found[:1] for call in session.calls}) == 1


def test_calls_of_no_duration_come_before_their_dependents() -> None:
    asked = problem(("last", "A", 5, "first"), ("first", "A", 0, ""), gpus=1)
    assert names(sessions_of(asked, plan((0, 3, 8), (0, 3, 3)))) == [([1, 0], set())]
