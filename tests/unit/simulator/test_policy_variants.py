"""Policies by name, each with its own settings."""

import pytest

from gpuyard.core.domain.settings import Backfill
from gpuyard.simulator.policy_variants import NoSuchPolicy, policy_variant


def test_a_policy_may_be_followed_by_settings() -> None:
    fair = policy_variant("default:level_seconds=3600:backfill=none")
    assert fair.name == "default:level_seconds=3600:backfill=none"
    assert (fair.settings.level_seconds, fair.settings.backfill) == (3600.0, Backfill.NONE)
    assert fair.estimate_source is policy_variant("default").estimate_source
    assert policy_variant("fifo+backfill:search_depth=5").settings.backfill is Backfill.GREEDY


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nobody", "Unknown policy 'nobody'; available policies: fifo"),
        ("default:level_second=1", "did you mean 'level_seconds'?"),
        ("default:policy=fifo", "'policy=fifo' is not a setting of the engine"),
        ("default:preemption_limit=often", "'often' is not a valid value of preemption_limit"),
        ("default:level_seconds=0", "level_seconds is 0"),
        ("default:level_seconds=-5", "level_seconds"),
        ("default:", "'' is not a setting of the engine."),
    ],
)
def test_invalid_policies_are_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(NoSuchPolicy) as caught:
        policy_variant(name)
    assert sentence in str(caught.value)


def test_the_weights_of_a_score_can_be_set() -> None:
    settings = policy_variant("default:score=weighted:weight_energy=3:weights_follow_idle=false").settings
    assert (settings.score, settings.weight_energy, settings.weights_follow_idle) == ("weighted", 3.0, False)
    with pytest.raises(NoSuchPolicy, match="weight_energy"):
        policy_variant("default:weight_energy=-1")
