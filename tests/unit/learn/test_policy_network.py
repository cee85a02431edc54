"""The advice of a trained policy, and when the heuristic's choice is kept."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuyard.learn.policy_network import DEFAULT, AdvantageAdvisor, Layer, PolicyModel, WrongPolicyModel, load, save

ROOT = Path(__file__).parents[3]
NAMES = ("waits", "gain")
BETTER, WORSE = [[0.0, 0.0], [1.0, 0.5]], [[0.0, 0.0], [1.0, -0.5]]
"""Two questions: the second candidate is better by half a run, or worse."""


def model(*factors: float, margin: float = 0.1, doubt: float = 1.0) -> PolicyModel:
    """Nets that say the advantage is the second figure, times a factor of their own."""
    ones, zeros = np.ones(2, np.float32), np.zeros(2, np.float32)

    def net(factor: float) -> tuple[Layer, ...]:
        both = np.array([[0, 0], [1, -1]], np.float32)
        last = np.array([[factor], [-factor]], np.float32)
        return Layer(both, zeros), Layer(last, np.zeros(1, np.float32))

    return PolicyModel(NAMES, -ones, ones, zeros, ones, zeros, tuple(map(net, factors)), margin, doubt, {"seed": 1})


def test_a_clearly_better_candidate_is_chosen() -> None:
    assert AdvantageAdvisor(model(1.0, 1.0)).pick(BETTER) == 1


def test_a_worse_candidate_is_not_chosen() -> None:
    assert AdvantageAdvisor(model(1.0, 1.0)).pick(WORSE) == 0


def test_an_advantage_within_the_margin_is_ignored() -> None:
    assert AdvantageAdvisor(model(1.0, margin=0.49)).pick(BETTER) == 1
    assert AdvantageAdvisor(model(1.0, margin=0.51)).pick(BETTER) == 0


def test_if_the_networks_disagree_the_heuristic_decides() -> None:
    assert AdvantageAdvisor(model(2.0, 0.0, doubt=0.0)).pick(BETTER) == 1
    assert AdvantageAdvisor(model(2.0, 0.0, doubt=1.0)).pick(BETTER) == 0


def test_features_outside_the_training_range_leave_the_choice_to_the_rule() -> None:
    waiting_is_good = model(-9.0)._replace(rule=np.array([0.5, 0.0], np.float32))
    assert AdvantageAdvisor(waiting_is_good).pick([[0.0, 0.0], [1.0, 0.9]]) == 0
    assert AdvantageAdvisor(waiting_is_good).pick([[0.0, 0.0], [1.0, 1.2]]) == 1
    assert AdvantageAdvisor(model(1.0)).pick([[0.0, 0.0], [1.0, 1.2]]) == 0


def test_the_rule_decides_unless_another_candidate_is_significantly_better() -> None:
    waiting_is_good = model(-0.8, doubt=0.0)._replace(rule=np.array([0.2, 0.0], np.float32))
    question = [[0.0, 0.0], [1.0, 0.5]]  # the rule says 0.2 for waiting, the network 0.4 against it
    assert AdvantageAdvisor(waiting_is_good._replace(margin=0.1)).pick(question) == 0
    assert AdvantageAdvisor(waiting_is_good._replace(margin=0.3)).pick(question) == 1
    assert AdvantageAdvisor(waiting_is_good._replace(margin=1e9)).pick(question) == 1


@pytest.mark.parametrize("strange", [float("nan"), float("inf")])
def test_invalid_features_leave_the_choice_to_the_heuristic(strange: float) -> None:
    assert AdvantageAdvisor(model(1.0)).pick([[0.0, 0.0], [strange, 0.5]]) == 0


def test_without_its_guard_the_best_candidate_is_always_chosen() -> None:
    careless = AdvantageAdvisor(model(2.0, 0.0, margin=9.0), guarded=False)
    assert careless.pick(BETTER) == 1
    assert careless.pick(WORSE) == 0


def test_the_rule_of_thumb_counts_besides_the_networks() -> None:
    by_rule = model(0.0)._replace(rule=np.array([0.0, 1.0], np.float32))
    assert AdvantageAdvisor(by_rule).pick(BETTER) == 1
    assert AdvantageAdvisor(by_rule).pick(WORSE) == 0


def test_a_model_survives_a_round_trip_through_a_file(tmp_path: Path) -> None:
    one, two = tmp_path / "one.npz", tmp_path / "two.npz"
    save(one, model(1.0, 0.5))
    found = load(one, NAMES)
    save(two, found)
    assert one.read_bytes() == two.read_bytes()
    assert (found.margin, found.doubt, found.about) == (0.1, 1.0, {"seed": 1})
    assert AdvantageAdvisor(found).pick(BETTER) == AdvantageAdvisor(model(1.0, 0.5)).pick(BETTER)


def changed(path: Path, **head: Any) -> Path:
    """A model whose head says something else."""
    save(path, model(1.0))
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    said = {**json.loads(bytes(arrays["head"])), **head}
    arrays["head"] = np.frombuffer(json.dumps(said).encode(), np.uint8)
    np.savez(path, **arrays)
    return path


def complaint(path: Path) -> str:
    with pytest.raises(WrongPolicyModel) as error:
        load(path, NAMES)
    return str(error.value)


def test_an_unusable_file_is_named_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    assert "Cannot read" in complaint(path)
    path.write_text("hello")
    assert "not a policy model, or the file is truncated" in complaint(path)
    path.write_bytes(b"")
    assert "not a policy model, or the file is truncated" in complaint(path)
    np.savez(path, something=np.zeros(3))
    assert "this is not a policy model" in complaint(path)
    assert "version 7; this gpuyard reads gpuyard policy, version 1" in complaint(changed(path, version=7))
    assert "other features than this gpuyard: fame, gain" in complaint(changed(path, features=["waits", "fame"]))
    assert "other features than this gpuyard, in another order" in complaint(changed(path, features=["gain", "waits"]))
    assert "a part of the model is missing" in complaint(changed(path, nets=3))
    assert "not finite" in complaint(changed(path, margin=float("nan")))


@pytest.mark.parametrize("part", [10, 300, 900])
def test_a_truncated_file_is_refused(tmp_path: Path, part: int) -> None:
    path = tmp_path / "m.npz"
    save(path, model(1.0, 1.0, 1.0))
    path.write_bytes(path.read_bytes()[:part])
    assert "truncated or damaged" in complaint(path)


def test_non_finite_numbers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    broken = model(1.0)
    save(path, broken._replace(mean=np.array([0.0, float("nan")], np.float32)))
    assert "not finite" in complaint(path)
    save(path, broken._replace(scale=np.ones(3, np.float32)))
    assert "do not fit together" in complaint(path)


@pytest.mark.parametrize("page", ["manual/learning.md", "decisions/0052-policy-model-trained-again.md"])
def test_the_documentation_states_the_digest_of_the_shipped_model(page: str) -> None:
    """Train it twice with the documented command, compare the bytes, and replace file, card and digest together."""
    assert f"`{sha256(DEFAULT.read_bytes()).hexdigest()}`" in (ROOT / "docs" / page).read_text(encoding="utf-8")
