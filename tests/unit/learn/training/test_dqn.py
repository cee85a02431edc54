"""What is stored of an episode, and what is learned from it."""

from math import exp, log1p

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.core.engine.scheduling.advice import FEATURES
from gpuyard.learn.training.dqn import (
    BATCH,
    HORIZON,
    LEAST_LOOKAHEAD,
    ONE_OF,
    EpisodeStep,
    Learner,
    ReplayBuffer,
    RuleOfThumb,
    Transition,
    _remembered,
    run_episode,
    transitions,
)
from gpuyard.learn.training.environment import MOST
from gpuyard.learn.training.network import RULE, SECONDS_HERE, UNIT
from gpuyard.learn.training.regimes import Regime

DESK = Regime("desk", "1x2:new+1x2:old", 0.7, {"new": (1.0, 1.0), "old": (0.2, 0.6)}, jobs=40)


def step(reward: float = 0.0, seconds: float = 60.0, runs_for: float = 600.0, *, departs: bool = True) -> EpisodeStep:
    seen = np.zeros((MOST, len(FEATURES)), np.float32)
    seen[0, SECONDS_HERE] = log1p(runs_for)
    mask = np.zeros(MOST, bool)
    mask[:2] = True
    return EpisodeStep(seen, mask, 1 if departs else 0, departs, reward, seconds, 0.0)


def test_the_rule_of_thumb_takes_the_first_of_the_best() -> None:
    def asked(*rule: float) -> int:
        rows = np.zeros((len(rule), len(FEATURES)))
        rows[:, RULE] = rule
        return RuleOfThumb().pick(rows)  # type: ignore[arg-type]

    assert asked(0.0, 0.0, 0.0) == 0
    assert asked(0.0, 0.3, 0.3) == 1
    assert asked(0.0, -0.1) == 0


def test_an_empty_episode_stores_nothing() -> None:
    assert _remembered([]) == []


def test_all_deviations_are_stored_and_few_of_the_other_steps() -> None:
    steps = [step(departs=place % 7 == 3) for place in range(100)]
    kept = {place for place in range(100) if place % 7 == 3 or place % ONE_OF == 0}
    assert len(_remembered(steps)) == len(kept)


def test_a_return_is_the_reward_within_the_time_of_the_task() -> None:
    """Steps of 600 s; the least that is looked ahead is three of them."""
    steps = [step(reward=UNIT * value, seconds=600.0, runs_for=1.0) for value in (1.0, 2.0, 4.0, 8.0, 16.0)]
    first, *_ = _remembered(steps)
    assert LEAST_LOOKAHEAD == 1_800.0
    fades = exp(-600.0 / HORIZON)
    assert first.reward == pytest.approx(1 + 2 * fades + 4 * fades**2)
    assert first.discount == pytest.approx(fades**3)
    assert first.after is steps[3].seen


def test_after_the_last_step_there_is_no_future() -> None:
    found = _remembered([step(reward=UNIT, seconds=60.0) for _ in range(3)])
    assert [one.discount for one in found] == [0.0, 0.0, 0.0]
    assert found[-1].reward == pytest.approx(1.0)


@given(st.lists(st.tuples(st.floats(-1e5, 1e5), st.floats(0, 1e5), st.floats(1, 1e6)), min_size=1, max_size=12))
@settings(deadline=None)
def test_stored_returns_are_finite_with_positive_noise(
    told: list[tuple[float, float, float]],
) -> None:
    for one in _remembered([step(reward, seconds, runs_for) for reward, seconds, runs_for in told]):
        assert np.isfinite(one.reward)
        assert 0.0 <= one.discount <= 1.0
        assert one.noise > 0


def test_other_random_choices_make_a_return_less_certain() -> None:
    alone = _remembered([step(), *(step(departs=False) for _ in range(10))])[0].noise
    among = _remembered([step(), *(step(runs_for=50_000.0) for _ in range(10))])[0].noise
    assert among > alone


def test_an_episode_repeats_with_the_same_seed() -> None:
    def make(seed: int) -> object:
        return DESK.workload(seed, {})

    one, two = run_episode(make, 5), run_episode(make, 5)  # type: ignore[arg-type]
    assert [(it.action, it.reward) for it in one] == [(it.action, it.reward) for it in two]
    assert all(0 <= it.action < it.mask.sum() for it in one), "only what is there is chosen"
    remembered, questions = transitions(make, 5)  # type: ignore[arg-type]
    assert questions == len(one)
    assert len(remembered) <= questions


def test_an_episode_without_deviations_has_shaped_rewards_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.learn.training.dqn.EXPLORES", 0.0)
    steps = run_episode(lambda seed: DESK.workload(seed, {}), 7)
    assert steps
    assert not any(it.departs for it in steps)
    assert max(abs(it.reward) for it in steps) < 1e-3


def memory_of(worth: float, count: int = 400) -> ReplayBuffer:
    """Questions of two candidates, of which the second is worth so much whenever it is taken."""
    draw, found = np.random.default_rng(1), []
    for place in range(count):
        action = place % 2
        seen = np.zeros((MOST, len(FEATURES)), np.float32)
        seen[:2] = draw.normal(size=(2, len(FEATURES)))
        seen[:, RULE] = 0.0
        seen[1, 0] += 3.0
        seen[0, SECONDS_HERE] = log1p(7_200.0)
        mask = np.zeros(MOST, bool)
        mask[:2] = True
        found.append(Transition(seen, mask, action, worth * action, 0.0, seen, mask, 0.0, 0.0, 0.1))
    return ReplayBuffer(found)


@pytest.mark.parametrize("worth", [0.1, -0.1])
def test_a_learner_learns_which_candidate_is_worth_more(worth: float) -> None:
    memory = memory_of(worth)
    learner = Learner(1, memory)
    losses = list(learner.learn(200))
    assert np.mean(losses[-20:]) < 0.75 * np.mean(losses[:20])
    seen = torch.from_numpy(memory._columns[0][:50])
    said = learner.net(seen, torch.zeros(50)).detach()
    assert ((said[:, 1] - said[:, 0]).mean() > 0) == (worth > 0)


def test_the_same_seed_learns_the_same_and_another_one_differs() -> None:
    memory = memory_of(0.1, 60)
    one, two, other = (list(Learner(seed, memory).learn(5)) for seed in (1, 1, 2))
    assert one == two
    assert one != other


def test_the_target_network_follows_slowly() -> None:
    learner = Learner(1, memory_of(0.1, 60))
    before = learner.slow.advantage[0].weight.detach().clone()  # type: ignore[operator]
    list(learner.learn(20))
    fast = (learner.net.advantage[0].weight - before).abs().sum()  # type: ignore[operator]
    slow = (learner.slow.advantage[0].weight - before).abs().sum()  # type: ignore[operator]
    assert 0 < slow < 0.2 * fast


def test_a_batch_is_drawn_from_the_eligible_steps() -> None:
    memory = memory_of(0.1, 60)
    batch = memory.sample(np.array([1, 3, 5]), np.random.default_rng(1))
    assert {len(column) for column in batch} == {BATCH}
    assert set(batch[2].tolist()) == {1}, "only those of odd numbers have taken the second candidate"


def test_rows_of_absent_candidates_are_left_out() -> None:
    assert len(memory_of(0.1, 10).rows()) == 10 * 2
