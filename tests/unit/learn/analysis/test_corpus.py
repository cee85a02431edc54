"""Scripts of well-known shape: what is claimed about them, and that the claimed orders give their result.

All of them run here in one other order, and in `benchmarks/analysis.py` in two.
"""

from pathlib import Path

import pytest

from gpuyard.learn.analysis import analyze
from tests.unit.learn.analysis.orders import try_scripts

SCRIPTS = {path.stem: path for path in sorted((Path(__file__).parents[4] / "examples" / "analysis").glob("*.py"))}
ARRAYS = {
    "monte_carlo": {"estimate": 4},
    "shards": {"make": 4, "transform": 4},
    "wordcount": {"write_text": 3, "count_words": 3},
}
"""Scripts with loops whose iterations may be separate processes."""
PARTS = {
    "blocks": ["block", "load"],
    "embeddings": ["embed", "embed-2", "index", "search"],
    "etl_csv": ["extract", "clean", "aggregate", "describe"],
    "logs": ["make", "select", "select-2", "slowest"],
    "monte_carlo": ["estimate", "data"],
    "shards": ["make", "transform", "merge"],
    "stages": ["prepare", "features", "statistics", "report"],
    "wordcount": ["write_text", "count_words", "reduce_counts"],
}
"""Scripts that can be divided, and the names of their parts."""
TRAINING = [
    "accumulate", "ddpm", "dqn", "eval_checkpoints", "first_steps", "gan", "lora", "manual_sgd", "nanogpt", "ppo", "seeds",
]  # fmt: skip
"""Scripts with an inline training loop."""
LIBRARIES = ["torch", "torch._dynamo", "numpy", "pandas", "scipy", "lightgbm", "PIL"]
"""Imported once for all runs; an optimizer of torch imports `torch._dynamo`, which takes seconds."""


def test_there_are_at_least_thirty_scripts() -> None:
    assert len(SCRIPTS) >= 30


@pytest.mark.parametrize("name", SCRIPTS)
def test_only_scripts_whose_parts_share_nothing_but_files_are_divided(name: str) -> None:
    graph = analyze(SCRIPTS[name])
    assert [request.name for request in graph.requests] == PARTS.get(name, [name])
    assert {r.name: r.array for r in graph.requests if r.array} == ARRAYS.get(name, {})


@pytest.mark.parametrize("name", TRAINING)
def test_an_inline_training_loop_is_one_step(name: str) -> None:
    graph = analyze(SCRIPTS[name])
    assert [(task.id, task.independent) for task in graph.tasks if task.kind == "training"] == [("training", False)]
    loop = next(task for task in graph.tasks if task.kind == "training")
    later = [task for task in graph.tasks if task.line > loop.line]
    assert all(task.level > loop.level for task in later)


@pytest.mark.slow
def test_the_claimed_orders_give_the_results_of_the_scripts(tmp_path: Path) -> None:
    tried = try_scripts(SCRIPTS, tmp_path, LIBRARIES)
    assert {name: one.wrong for name, one in tried.items() if one.wrong} == {}
