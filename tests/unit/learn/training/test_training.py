"""A whole training: the same seed gives the same model; a guard that loses nowhere is chosen."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.engine.scheduling.advice import FEATURES
from gpuyard.learn.policy_network import AdvantageAdvisor, load, save
from gpuyard.learn.training.model_card import card_text, draw_curves
from gpuyard.learn.training.regimes import Regime
from gpuyard.learn.training.train import GUARDS, NEVER, PolicyGuard, Trained, TrainingOptions, choose, train
from gpuyard.simulator.confidence import Mean
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.run import simulate_policy

pytestmark = pytest.mark.slow  # nets are trained

DESK = Regime("desk", "1x2:new+1x2:old", 0.7, {"new": (1.0, 1.0), "old": (0.2, 0.6)}, jobs=40)
SMALL = TrainingOptions(seed=3, episodes=4, training_steps=60, members=2, validation_workloads=2, regimes=(DESK,))


@pytest.fixture(scope="module")
def trained() -> Trained:
    return train(SMALL, {}, lambda _: None)


def test_the_same_seed_gives_the_same_model_for_any_number_of_processes(trained: Trained, tmp_path: Path) -> None:
    again = train(replace(SMALL, workers=2), {}, lambda _: None)
    save(tmp_path / "one", trained.model)
    save(tmp_path / "two", again.model)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_trained_model_can_be_used_by_the_engine(trained: Trained, tmp_path: Path) -> None:
    save(tmp_path / "model", trained.model)
    model = load(tmp_path / "model", FEATURES)
    workload = DESK.workload(99, {})
    alone = simulate_policy(workload, policy_variant("dqn")).measures
    unguarded = simulate_policy(
        workload, policy_variant("dqn"), advisor=AdvantageAdvisor(model, guarded=False)
    ).measures
    never = simulate_policy(
        workload, policy_variant("dqn"), advisor=AdvantageAdvisor(model._replace(margin=NEVER))
    ).measures
    assert never == alone
    assert unguarded.jobs == alone.jobs
    assert unguarded.avg_jct_s != alone.avg_jct_s


def test_the_model_card_states_the_training_data_and_how_to_repeat_it(trained: Trained) -> None:
    card = card_text(trained.model, "gpuyard train policy --seed 3")
    assert "gpuyard train policy --seed 3" in card
    assert "4 simulated workloads with" in card
    for name in FEATURES:
        assert f"| `{name}` |" in card


def test_curves_are_drawn(trained: Trained, tmp_path: Path) -> None:
    draw_curves(trained, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_guard_that_loses_anywhere_is_not_chosen() -> None:
    bold, careful = PolicyGuard(0.0, 0.0, 1.0), PolicyGuard(0.1, 1.0, 1.0)
    choices = {
        bold: {"desk": Mean(-0.3, 0.01), "lab": Mean(0.02, 0.05)},
        careful: {"desk": Mean(-0.1, 0.01), "lab": Mean(0.0, 0.0)},
    }
    assert choose(choices) == careful


def test_if_every_guard_loses_somewhere_the_heuristic_decides() -> None:
    assert choose({PolicyGuard(0.0, 0.0, 1.0): {"desk": Mean(-0.3, 0.01), "lab": Mean(0.02, 0.05)}}).margin == NEVER
    assert choose({PolicyGuard(0.0, 0.0, 1.0): {"desk": Mean(0.0, 0.0)}}).margin == NEVER


def test_of_equally_good_guards_the_first_one_is_chosen() -> None:
    one, two = PolicyGuard(0.0, 0.0, 1.0), PolicyGuard(0.1, 0.0, 1.0)
    gains = {"desk": Mean(-0.1, 0.5)}
    assert choose({two: gains, one: gains}) == one


def test_without_any_guard_the_heuristic_decides() -> None:
    assert choose({}).margin == NEVER


def test_all_tried_guards_differ_and_none_has_doubt_without_trust() -> None:
    assert len(set(GUARDS)) == len(GUARDS)
    assert all(guard.trust or not guard.doubt for guard in GUARDS)


def test_without_trust_only_the_rule_of_thumb_is_left(trained: Trained) -> None:
    rows = np.random.default_rng(1).normal(size=(5, len(FEATURES))).astype(np.float32)
    untrusted = AdvantageAdvisor(PolicyGuard(0.0, 0.0, 0.0).on(trained.model))
    by_rule = rows[:, FEATURES.index("rule")]
    assert untrusted.advantages(rows) == pytest.approx(np.tile(by_rule - by_rule[0], (2, 1)), abs=1e-5)


def test_half_trust_halves_the_influence_of_the_networks(trained: Trained) -> None:
    rows = np.random.default_rng(1).normal(size=(5, len(FEATURES))).astype(np.float32)
    none, half, whole = (
        AdvantageAdvisor(PolicyGuard(0.0, 0.0, trust).on(trained.model)).advantages(rows) for trust in (0, 0.5, 1)
    )
    assert half - none == pytest.approx((whole - none) / 2, abs=1e-4)


def test_the_metadata_of_a_model_states_the_training_options(trained: Trained) -> None:
    about = trained.model.about
    assert (about["seed"], about["episodes"], about["training_steps"], about["members"]) == (3, 4, 60, 2)
    assert about["regimes"] == ["desk"]
    assert about["remembered"] <= about["questions"]
    assert set(about["won"]) <= set(about["regimes"])
    assert len(trained.members) == 2
    for member in trained.members:
        assert member.checks[0][0] == 0
        assert [lesson for lesson, _ in member.checks] == sorted(lesson for lesson, _ in member.checks)


def test_progress_is_reported_in_sentences() -> None:
    said: list[str] = []
    order = replace(SMALL, episodes=20, training_steps=10, members=1, jobs=15)
    trained = train(order, {}, said.append)
    assert said[0].startswith("Episode 20 of 20: ")
    assert said[-1] == "The guard was evaluated on: desk"
    assert trained.model.about["episodes"] == 20


def test_episodes_do_not_exceed_the_time_limit() -> None:
    order = replace(SMALL, episodes=1_000, minutes=0.0, training_steps=10, members=1, regimes=(replace(DESK, jobs=30),))
    assert train(order, {}, lambda _: None).model.about["questions"] > 0


def test_a_regime_without_decisions_trains_nothing_and_says_so() -> None:
    alike = Regime("all alike", "2x4", 0.5, jobs=10)
    with pytest.raises(WrongInput, match="No episode had a decision to learn from"):
        train(replace(SMALL, regimes=(alike,)), {}, lambda _: None)
