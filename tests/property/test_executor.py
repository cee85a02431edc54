"""Executing plans under random faults: what never happens (safety) and what happens eventually (liveness)."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.plan.executor.execution_state import CallStatus
from tests.property.random_execution import run_scenario

SEEDS = st.integers(0, 2**32)


@given(SEEDS)
@settings(max_examples=300, deadline=None)
def test_safety_no_gpu_runs_two_calls_nothing_counts_twice_and_nothing_begins_early(seed: int) -> None:
    executor, world = run_scenario(seed)
    assert world.broken == [], f"repeat with live({seed})"
    assert len({run.call for run in executor.runs}) == len(executor.runs)


def test_loads_overlap_with_calls_in_many_of_the_scenarios() -> None:
    """Otherwise the rules on overlaps would not be tested."""
    assert sum(run_scenario(seed)[1].overlaps > 0 for seed in range(100)) > 15


@given(SEEDS)
@settings(max_examples=300, deadline=None)
def test_liveness_all_runnable_calls_end_once_all_gpus_are_back(seed: int) -> None:
    executor, _ = run_scenario(seed)
    execution = executor.execution
    impossible = {call for call, model in enumerate(execution.work.model) if not execution.work.firsts[model]}
    for call in range(len(execution.work)):
        if any(before in impossible for before in execution.work.before[call]):
            impossible.add(call)
    waiting = {call for call, status in enumerate(execution.status) if status is not CallStatus.DONE}
    assert waiting == impossible, f"repeat with live({seed})"
