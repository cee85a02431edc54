"""From nothing to a model: the same seed, the same model; a guard that loses nowhere."""

from dataclasses import replace
from pathlib import Path

import pytest

from gpuyard.core.engine.advice import FEATURES
from gpuyard.learn.policy_network import Advantage, load, save
from gpuyard.learn.training.model_card import draw_curves, written
from gpuyard.learn.training.regimes import Regime
from gpuyard.learn.training.train import NEVER, Guard, Order, Trained, choose, train
from gpuyard.simulator.confidence import Mean
from gpuyard.simulator.policy_variants import contender
from gpuyard.simulator.run import play

DESK = Regime("desk", "1x2:new+1x2:old", 0.7, {"new": (1.0, 1.0), "old": (0.2, 0.6)}, jobs=40)
SMALL = Order(seed=3, episodes=4, lessons=60, members=2, choosing=2, regimes=(DESK,))


@pytest.fixture(scope="module")
def trained() -> Trained:
    return train(SMALL, {}, lambda _: None)


def test_the_same_seed_gives_the_same_model_whoever_does_the_work(trained: Trained, tmp_path: Path) -> None:
    again = train(replace(SMALL, workers=2), {}, lambda _: None)
    save(tmp_path / "one", trained.model)
    save(tmp_path / "two", again.model)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_trained_model_can_be_used_by_the_engine(trained: Trained, tmp_path: Path) -> None:
    save(tmp_path / "model", trained.model)
    model = load(tmp_path / "model", FEATURES)
    workload = DESK.workload(99, {})
    alone = play(workload, contender("dqn")).measures
    unguarded = play(workload, contender("dqn"), advisor=Advantage(model, guarded=False)).measures
    never = play(workload, contender("dqn"), advisor=Advantage(model._replace(margin=NEVER))).measures
    assert never == alone
    assert unguarded.jobs == alone.jobs
    assert unguarded.avg_jct_s != alone.avg_jct_s


def test_the_card_says_what_it_was_trained_on_and_how_to_do_it_again(trained: Trained) -> None:
    card = written(trained.model, "gpuyard train policy --seed 3")
    assert "gpuyard train policy --seed 3" in card
    assert "4 simulated workloads with" in card
    for name in FEATURES:
        assert f"| `{name}` |" in card


def test_curves_are_drawn(trained: Trained, tmp_path: Path) -> None:
    draw_curves(trained, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_guard_that_loses_anywhere_is_not_chosen() -> None:
    bold, careful = Guard(0.0, 0.0, 1.0), Guard(0.1, 1.0, 1.0)
    choices = {
        bold: {"desk": Mean(-0.3, 0.01), "lab": Mean(0.02, 0.05)},
        careful: {"desk": Mean(-0.1, 0.01), "lab": Mean(0.0, 0.0)},
    }
    assert choose(choices) == careful


def test_where_every_guard_loses_somewhere_the_heuristic_decides() -> None:
    assert choose({Guard(0.0, 0.0, 1.0): {"desk": Mean(-0.3, 0.01), "lab": Mean(0.02, 0.05)}}).margin == NEVER
    assert choose({Guard(0.0, 0.0, 1.0): {"desk": Mean(0.0, 0.0)}}).margin == NEVER
