"""The network: its output before training, and the stakes."""

from math import log1p, log2

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.core.engine.scheduling.advice import FEATURES
from gpuyard.learn.training.network import LEAST_RUN, MOST_BEHIND, MOST_RUN, RULE, UNIT, Net, stakes


def rows(*by_name: dict[str, float]) -> torch.Tensor:
    """Candidates of one question, by the figures that matter."""
    found = torch.zeros(1, len(by_name), len(FEATURES))
    for place, figures in enumerate(by_name):
        for name, value in figures.items():
            found[0, place, FEATURES.index(name)] = value
    return found


def first(seconds: float, gpus: int = 1, waiting: float = 0.0) -> torch.Tensor:
    figures = {"log_seconds_here": log1p(seconds), "log2_gpus": log2(gpus + 1), "log_tasks_waiting": log1p(waiting)}
    return rows(figures)[:, 0]


def test_an_untrained_network_ranks_candidates_like_the_rule_of_thumb() -> None:
    question = rows({"rule": 0.0, "log_seconds_here": 8.0}, {"rule": 0.4}, {"rule": -0.2})
    worth = Net()(question, torch.zeros(1))[0].detach()
    assert worth.argsort().tolist() == [2, 0, 1]
    assert worth[1] == pytest.approx(0.0), "doing what the rule does is what the value of the state is about"


def test_the_stake_is_the_run_of_the_task_for_itself_and_for_all_waiting_tasks() -> None:
    assert stakes(first(3600.0)).item() == pytest.approx(3600 / UNIT)
    assert stakes(first(3600.0, gpus=2, waiting=3)).item() == pytest.approx(3600 / UNIT * (1 + 2 * 3), rel=1e-4)


@given(seconds=st.floats(0, 1e9), gpus=st.integers(1, 1000), waiting=st.floats(0, 1e6))
@settings(deadline=None)
def test_stakes_are_bounded_for_every_question(seconds: float, gpus: int, waiting: float) -> None:
    at_stake = stakes(first(seconds, gpus, waiting)).item()
    assert LEAST_RUN / UNIT * 0.99 <= at_stake <= MOST_RUN / UNIT * MOST_BEHIND * 1.01


def test_constant_features_do_not_divide_by_zero() -> None:
    net = Net()
    net.look_at(torch.ones(5, len(FEATURES)))
    assert (net.scale > 0).all()
    assert torch.isfinite(net(rows({"rule": 1.0}, {}), torch.zeros(1))).all()


def test_the_normalization_is_stored_with_the_network() -> None:
    net, copy = Net(), Net()
    net.look_at(torch.randn(100, len(FEATURES)) * 3 + 7)
    copy.load_state_dict(net.state_dict())
    assert torch.equal(copy.mean, net.mean)
    assert copy.mean[RULE] != 0


def test_a_batch_of_questions_is_answered_like_single_ones() -> None:
    torch.manual_seed(3)
    net = Net()
    torch.nn.init.normal_(net.advantage[-1].weight)  # type: ignore[arg-type]
    questions, behind = torch.randn(4, 6, len(FEATURES)), torch.randn(4)
    together = net(questions, behind)
    for place in range(4):
        assert torch.allclose(
            together[place], net(questions[place : place + 1], behind[place : place + 1])[0], atol=1e-5
        )
