"""A whole training: the same seed gives the same model; a guard that loses nowhere is chosen."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.core.engine.scheduling.advice import FEATURES
from gpuyard.learn.policy_network import DEFAULT, AdvantageAdvisor, load, save
from gpuyard.learn.training.dqn import RuleOfThumb
from gpuyard.learn.training.model_card import card_text, draw_curves
from gpuyard.learn.training.regimes import Regime
from gpuyard.learn.training.train import (
    GUARDS,
    NEVER,
    OPTIONS,
    RULE_ALONE,
    PolicyGuard,
    Trained,
    TrainingOptions,
    choose,
    options_of,
    train,
)
from gpuyard.simulator.confidence import Mean
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.run import simulate_policy

pytestmark = pytest.mark.slow  # nets are trained

DESK = Regime("desk", "1x2:new+1x2:old", 0.7, {"new": (1.0, 1.0), "old": (0.2, 0.6)}, jobs=40)
SMALL = TrainingOptions(seed=3, episodes=4, training_steps=60, members=2, validation_workloads=2, regimes=(DESK,))
EVOLVED = TrainingOptions(
    seed=3, method="evolution", generations=2, population=4, generation_workloads=1, members=2, validation_workloads=2, regimes=(DESK,)
)  # fmt: skip
REGRESSED = replace(SMALL, method="regression", episodes=6)


@pytest.fixture(scope="module", params=[SMALL, EVOLVED, REGRESSED], ids=["dqn", "evolution", "regression"])
def order(request: pytest.FixtureRequest) -> TrainingOptions:
    made: TrainingOptions = request.param
    return made


@pytest.fixture(scope="module")
def trained(order: TrainingOptions) -> Trained:
    return train(order, {}, lambda _: None)


def test_the_same_seed_gives_the_same_model_for_any_number_of_processes(
    order: TrainingOptions, trained: Trained, tmp_path: Path
) -> None:
    again = train(replace(order, workers=2), {}, lambda _: None)
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


def test_the_built_in_rule_decides_exactly_like_an_advisor_that_follows_the_rule() -> None:
    for seed in range(5):
        workload = DESK.workload(seed, {})
        built_in = simulate_policy(workload, policy_variant("dqn")).measures
        assert built_in == simulate_policy(workload, policy_variant("dqn"), advisor=RuleOfThumb()).measures
        assert built_in != simulate_policy(workload, policy_variant("srtf")).measures


def test_the_model_card_states_the_training_data_and_how_to_repeat_it(trained: Trained) -> None:
    card = card_text(trained.model, "gpuyard train policy --seed 3")
    assert "gpuyard train policy --seed 3" in card
    stated = {
        "dqn": "4 simulated workloads with",
        "evolution": "2 generations of 4 policies",
        "regression": "in 6 simulated workloads were turned round",
    }
    assert stated[trained.model.about["method"]] in card
    for name in FEATURES:
        assert f"| `{name}` |" in card


def test_the_card_of_a_model_without_a_guard_says_so_and_has_no_table_of_accuracy(trained: Trained) -> None:
    card = card_text(trained.model._replace(margin=NEVER), "gpuyard train policy")
    assert "**Accuracy.** No guard qualified: the rule decides everything." in card
    assert "| workloads | ratio |" not in card


def test_curves_are_drawn(trained: Trained, tmp_path: Path) -> None:
    draw_curves(trained, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_guard_under_which_a_kind_of_workloads_is_slower_is_not_chosen() -> None:
    bold, careful = PolicyGuard(0.0, 0.0, 1.0), PolicyGuard(0.0, 1.0, 1.0)
    careful_gains = {"desk": Mean(-0.1, 0.01), "lab": Mean(0.0, 0.0)}
    for loss in (Mean(0.03, 0.05), Mean(0.015, 0.01)):  # by more than two percent; by less, but surely
        assert choose({bold: {"desk": Mean(-0.3, 0.01), "lab": loss}, careful: careful_gains}) == careful
        assert choose({bold: {"desk": Mean(-0.3, 0.01), "lab": loss}}) == RULE_ALONE


def test_a_small_loss_that_may_be_chance_does_not_rule_a_guard_out() -> None:
    bold = PolicyGuard(0.0, 0.0, 1.0)
    assert choose({bold: {"desk": Mean(-0.1, 0.03), "lab": Mean(0.01, 0.03)}}) == bold


def test_a_smaller_gain_that_is_more_certain_goes_before_a_larger_one() -> None:
    bold, careful = PolicyGuard(0.0, 0.0, 1.0), PolicyGuard(0.0, 1.0, 1.0)
    bold_gains = {"desk": Mean(-0.10, 0.05), "lab": Mean(0.0, 0.08)}
    careful_gains = {"desk": Mean(-0.06, 0.02), "lab": Mean(0.0, 0.01)}
    assert choose({bold: bold_gains, careful: careful_gains}) == careful


def test_a_guard_must_be_surely_faster_over_all_kinds_together() -> None:
    bold = PolicyGuard(0.0, 0.0, 1.0)
    assert choose({bold: {"desk": Mean(-0.1, 0.2)}}) == RULE_ALONE
    assert choose({bold: {"desk": Mean(-0.1, 0.09)}}) == bold
    assert (
        choose({bold: dict.fromkeys("abcd", Mean(-0.06, 0.1))}) == bold
    )  # four times as many workloads: half the interval
    assert choose({bold: {"a": Mean(-0.06, 0.1), "b": Mean(0.0, 0.0)}}) == RULE_ALONE


def test_of_equally_good_guards_the_first_one_is_chosen() -> None:
    one, two = PolicyGuard(0.0, 0.0, 1.0), PolicyGuard(0.1, 0.0, 1.0)
    gains = {"desk": Mean(-0.1, 0.05)}
    assert choose({two: gains, one: gains}) == one


def test_without_any_guard_the_rule_decides() -> None:
    assert choose({}) == RULE_ALONE
    assert RULE_ALONE.margin == NEVER


def test_all_tried_guards_differ_and_use_the_networks() -> None:
    assert len(set(GUARDS)) == len(GUARDS)
    assert all(guard.trust for guard in GUARDS)


def test_without_trust_only_the_rule_of_thumb_is_left(trained: Trained) -> None:
    rows = np.random.default_rng(1).normal(size=(5, len(FEATURES))).astype(np.float32)
    untrusted = AdvantageAdvisor(PolicyGuard(0.0, 0.0, 0.0).on(trained.model))
    by_rule = rows[:, FEATURES.index("rule")]
    assert untrusted.advantages(rows) == pytest.approx(np.tile(by_rule - by_rule[0], (2, 1)), abs=1e-4)


def test_half_trust_halves_the_influence_of_the_networks(trained: Trained) -> None:
    rows = np.random.default_rng(1).normal(size=(5, len(FEATURES))).astype(np.float32)
    none, half, whole = (
        AdvantageAdvisor(PolicyGuard(0.0, 0.0, trust).on(trained.model)).advantages(rows) for trust in (0, 0.5, 1)
    )
    assert half - none == pytest.approx((whole - none) / 2, abs=1e-4)


def test_a_model_states_every_option_that_changes_it(order: TrainingOptions, trained: Trained, tmp_path: Path) -> None:
    save(tmp_path / "model", trained.model)
    about = load(tmp_path / "model", FEATURES).about
    assert {name: about[name] for name in options_of(order, {})} == options_of(order, {})
    for name in {name for names in OPTIONS.values() for name in names}:
        assert (name in about) is (name in OPTIONS[order.method])
    assert about["regimes"]["desk"]["nodes"] == "1x2:new+1x2:old"
    assert about["regimes"]["desk"]["speeds"]["old"] == [0.2, 0.6]
    assert set(about["won"]) <= set(about["regimes"])
    assert len(trained.members) == about["members"] == 2
    for member in trained.members:
        assert member.checks[0][0] == 0
        assert [lesson for lesson, _ in member.checks] == sorted(lesson for lesson, _ in member.checks)


def test_the_model_that_ships_was_made_with_options_that_the_present_code_has() -> None:
    about = load(DEFAULT, FEATURES).about
    names = {"seed", "method", "members", "validation_workloads", "regimes", "traces"}
    assert names <= set(about)
    order = TrainingOptions(
        **{name: about[name] for name in about if name in TrainingOptions.__slots__ and name != "regimes"}
    )
    made_on = options_of(order, dict.fromkeys(about["traces"], ())) | {"traces": about["traces"]}
    assert {name: about[name] for name in made_on} == made_on
    found = {"dqn": {"questions", "remembered"}, "evolution": {"questions"}, "regression": {"questions", "changed"}}
    assert set(about) - set(made_on) == {"trust", "validation", "won"} | found[about["method"]]


def test_progress_is_reported_in_sentences() -> None:
    said: list[str] = []
    small = replace(SMALL, episodes=20, training_steps=10, members=1, jobs=15)
    trained = train(small, {}, said.append)
    assert said[0].startswith("Episode 20 of 20: ")
    assert said[-1] == "The guard was evaluated on: desk"
    assert trained.model.about["episodes"] == 20


def test_a_regime_without_decisions_trains_nothing_and_says_so() -> None:
    alike = Regime("all alike", "2x4", 0.5, jobs=10)
    with pytest.raises(WrongInput, match="No episode had a decision to learn from"):
        train(replace(SMALL, regimes=(alike,)), {}, lambda _: None)
    for order in (EVOLVED, REGRESSED):
        with pytest.raises(WrongInput, match="No workload had a decision to learn from"):
            train(replace(order, regimes=(alike,)), {}, lambda _: None)
