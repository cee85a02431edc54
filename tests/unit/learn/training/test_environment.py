"""The cluster as an environment: the engine's own questions, and rewards that add up to the measured times."""

import threading
from math import exp, inf

import numpy as np
import pytest

from gpuyard.learn.training.environment import MOST, ClusterEnv
from gpuyard.learn.training.regimes import Regime
from gpuyard.simulator.policy_variants import policy_variant
from gpuyard.simulator.run import simulate_policy

DESK = Regime("desk", "1x2:new+1x2:old", 0.7, {"new": (1.0, 1.0), "old": (0.2, 0.6)}, jobs=60)


def env_of(regime: Regime = DESK, horizon: float = inf) -> ClusterEnv:
    return ClusterEnv(lambda seed: regime.workload(seed, {}), horizon=horizon)


def last(mask: np.ndarray) -> int:
    return int(mask.sum()) - 1


def played(env: ClusterEnv, seed: int, *, waits: bool) -> tuple[float, dict[str, float], list[np.ndarray]]:
    """All rewards of an episode, what is said at its end, and what was seen."""
    seen, info = env.reset(seed=seed)
    total, over, rows = info["reward"], False, []
    while not over:
        rows.append(seen["candidates"])
        seen, reward, over, _, info = env.step(last(seen["mask"]) if waits else 0)
        total += float(reward)
    return total, info, rows


@pytest.mark.parametrize("waits", [False, True])
def test_rewards_add_up_to_minus_all_completion_times(waits: bool) -> None:
    total, info, _ = played(env_of(), 3, waits=waits)
    assert total == pytest.approx(-60 * info["avg_jct_s"])


def test_the_first_candidate_is_the_choice_of_a_policy_under_which_no_task_waits_for_faster_gpus() -> None:
    _, info, _ = played(env_of(), 3, waits=False)
    assert info["avg_jct_s"] == pytest.approx(info["reference_jct_s"])
    plain = simulate_policy(DESK.workload(3, {}), policy_variant("srtf")).measures
    assert info["avg_jct_s"] == pytest.approx(plain.avg_jct_s)


@pytest.mark.parametrize("horizon", [inf, 50_000.0])
def test_shaped_rewards_are_zero_while_the_first_candidate_is_taken(horizon: float) -> None:
    env = env_of(horizon=horizon)
    _, info = env.reset(seed=5)
    over = False
    while not over:
        potential = info["potential"]
        _, reward, over, _, info = env.step(0)
        shaped = float(reward) + exp(-info["seconds"] / horizon) * info["potential"] - potential
        assert shaped == pytest.approx(0.0, abs=1e-5)


def test_the_same_seed_is_the_same_episode() -> None:
    one, two = played(env_of(), 4, waits=True), played(env_of(), 4, waits=True)
    assert one[0] == two[0]
    assert all(np.array_equal(row, other) for row, other in zip(one[2], two[2], strict=True))


def test_observations_are_in_the_spaces_and_absent_candidates_are_masked() -> None:
    env = env_of()
    seen, _ = env.reset(seed=3)
    assert env.observation_space.contains(seen)
    assert env.action_space.n == MOST  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="there is no candidate"):
        env.step(MOST - 1)
    env.close()


def test_an_episode_can_be_abandoned() -> None:
    env = env_of()
    env.reset(seed=3)
    first = env.reset(seed=4)[0]
    env.close()
    assert np.array_equal(first["candidates"], env_of().reset(seed=4)[0]["candidates"])


def test_a_step_before_reset_is_an_error() -> None:
    with pytest.raises(AssertionError, match="reset comes before step"):
        env_of().step(0)


def test_closing_twice_or_before_reset_is_harmless() -> None:
    env = env_of()
    env.close()
    env.reset(seed=1)
    env.close()
    env.close()


@pytest.mark.parametrize("action", [-1, MOST, 10_000])
def test_an_absent_candidate_cannot_be_chosen_and_the_episode_continues(action: int) -> None:
    env = env_of()
    seen, _ = env.reset(seed=3)
    with pytest.raises(ValueError, match=f"there is no candidate {action}"):
        env.step(action)
    again, *_ = env.step(0)
    assert not np.array_equal(seen["candidates"], again["candidates"])
    env.close()


def test_an_error_in_the_simulation_is_raised_by_step() -> None:
    class Broken(Exception):
        pass

    class BreaksLater:
        """The rule, until its third question."""

        def __init__(self) -> None:
            self.asked = 0

        def pick(self, _rows: object) -> int:
            self.asked += 1
            if self.asked > 2:
                raise Broken
            return 0

    env = ClusterEnv(lambda seed: DESK.workload(seed, {}), reference=BreaksLater())
    with pytest.raises(Broken):
        env.reset(seed=3)


def test_without_a_seed_the_next_episode_follows_from_the_previous_seed() -> None:
    def second_episode() -> np.ndarray:
        env = env_of()
        env.reset(seed=3)
        rows = env.reset()[0]["candidates"]
        env.close()
        return rows

    assert np.array_equal(second_episode(), second_episode())


def test_always_waiting_is_worse_than_the_reference() -> None:
    env = env_of()
    seen, info = env.reset(seed=3)
    behind, over = [info["behind"]], False
    while not over:
        seen, _, over, _, info = env.step(last(seen["mask"]))
        behind.append(info["behind"])
    assert behind[-1] == 0.0, "at the end no task waits"
    assert max(behind) > 0.0


def test_no_thread_is_left_of_an_episode() -> None:
    before = threading.active_count()
    env = env_of()
    env.reset(seed=3)
    assert threading.active_count() == before + 1
    env.close()
    assert threading.active_count() == before
