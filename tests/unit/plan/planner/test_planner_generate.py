"""Randomly generated problems."""

import msgspec
import numpy as np
import pytest

from gpuyard.core.domain.errors import WrongInput
from gpuyard.plan.planner.generate import FAMILIES, generate
from gpuyard.plan.planner.instance import write_instance
from gpuyard.plan.planner.problem_file import problem_of, read_problem
from gpuyard.plan.planner.random_numbers import RandomNumbers, words
from tests.unit.plan.planner.small_problems import drawn


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_the_requested_calls_and_gpus(family: str) -> None:
    problem = drawn(family, 200, 8, seed=3)
    longest = max(len(workflow.nodes) for workflow in problem.workflows)
    assert 200 <= len(problem.calls) < 200 + longest
    assert len(problem.gpus) == 8
    assert problem.may_begin.any(axis=1).all()
    assert set(problem.calls.model.tolist()) <= set(range(len(problem.models)))


def test_a_written_problem_is_read_back_unchanged() -> None:
    instance = generate("agentic", 100, 4, seed=1)
    again = read_problem(write_instance(instance))
    assert again.models == problem_of(instance).models
    assert np.array_equal(again.calls.seconds, problem_of(instance).calls.seconds)


def test_the_same_seed_gives_the_same_problem_and_another_seed_another() -> None:
    texts = [write_instance(generate("tiny", 100, 4, seed=seed)) for seed in (5, 5, 6)]
    assert texts[0] == texts[1] != texts[2]


def test_a_seed_means_the_same_on_every_machine() -> None:
    times = generate("chain", 6, 2, seed=7).requests[0].exec_times
    assert times == SEVEN


SEVEN = [0.73, 1.91, 9.24, 1.15]


def test_random_words_are_those_of_splitmix64() -> None:
    """The figures are those of the reference implementation for the seed 1234567."""
    assert words(1234567, 3).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    chance = RandomNumbers(1234567)
    assert [int(chance.words(1)[0]) for _ in range(3)] == words(1234567, 3).tolist()


def test_normal_values_have_mean_zero_and_deviation_one() -> None:
    bells = RandomNumbers(1).bells(100_000)
    assert abs(bells.mean()) < 0.02
    assert abs(bells.std() - 1) < 0.02


def test_models_wider_than_the_gpus_and_larger_than_their_memory_are_left_out() -> None:
    assert max(model.gpus for model in drawn("multi_gpu", 100, 2).models) == 2
    one = drawn("agentic", 400, 3, mixed=True)
    assert {gpu.memory_gb for gpu in one.gpus} == {80.0, 40.0}
    assert one.may_begin.any(axis=1).all()


def test_slow_pcie_makes_models_load_longer() -> None:
    slow, fast = drawn("chain", 20, 2, pcie_gb_s=1.0), drawn("chain", 20, 2)
    assert slow.load[0] - 2 == pytest.approx(25 * (fast.load[0] - 2))
    assert slow.name == "chain-n20-g2-s0-pcie1"


def test_an_unknown_family_is_refused_with_the_existing_ones() -> None:
    with pytest.raises(WrongInput, match="Unknown family 'chains'; available families: chain, fanout"):
        generate("chains", 10, 2)


def test_the_json_has_the_keys_of_the_format() -> None:
    said = msgspec.json.decode(write_instance(generate("chain", 6, 2)))
    assert list(said) == ["format", "models", "gpus", "workflows", "requests", "name", "family", "seed", "pcie_gb_s", "switch_overhead_s"]  # fmt: skip
    assert said["workflows"]["w0"]["nodes"][0].keys() == {"id", "model", "exec_time", "deps"}
