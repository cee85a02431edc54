"""Scripts of well-known shape: what is claimed about them, and that the claimed orders give their result.

All of them run in `benchmarks/analysis.py`; a few of every kind run here.
"""

from pathlib import Path

import pytest

from gpuyard.learn.analysis import analyze
from tests.unit.learn.analysis.orders import Tried, try_scripts

SCRIPTS = {path.stem: path for path in sorted((Path(__file__).parents[4] / "examples" / "analysis").glob("*.py"))}
ARRAYS = {"shards": {"make": 4, "transform": 4}, "wordcount": {"write_text": 3, "count_words": 3}}
"""Scripts with loops whose iterations may be separate processes."""
PARTS = {
    "blocks": ["block", "load"],
    "embeddings": ["embed", "embed-2", "index", "search"],
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
RUN = [
    "blocks",
    "embeddings",
    "etl_csv",
    "first_steps",
    "jax_loop",
    "lightning",
    "logs",
    "shards",
    "stages",
    "wordcount",
]
"""Scripts that run in the tests."""


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


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tried]:
    scripts = {name: SCRIPTS[name] for name in RUN}
    return try_scripts(scripts, tmp_path_factory.mktemp("corpus"), ["torch", "numpy", "PIL"])


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_the_claimed_order_gives_the_result_of_the_script(tried: dict[str, Tried], name: str) -> None:
    assert tried[name].wrong == []
