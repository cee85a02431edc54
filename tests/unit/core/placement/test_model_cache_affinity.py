"""Where a model ran last, and how that affects placement."""

import pytest

from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.task import Resources, Share
from gpuyard.core.domain.values import Link, NodeId
from gpuyard.core.placement.choose import choose
from gpuyard.core.placement.demand import Demand
from gpuyard.core.placement.index import Index
from gpuyard.core.placement.model_cache_affinity import ModelKey
from gpuyard.core.placement.scores import SCORES
from gpuyard.core.placement.shape import Shape
from gpuyard.testing import node

LLAMA: ModelKey = "team/llama"
WHISPER: ModelKey = "team/whisper"


def new_index(*names: str, gpus: int = 4) -> Index:
    index = Index()
    for name in names:
        index.join(node(name, gpus=gpus))
    return index


def ran(index: Index, name: str, gpus: tuple[int, ...], model: ModelKey | None) -> None:
    """A task of a model ran there and has ended."""
    index.note_model(Placement((Slice(NodeId(name), gpus),)), model)


def chosen(index: Index, ask: Resources, model: ModelKey | None, score: str = "best_fit") -> Placement:
    shape = Shape(ask)
    shape.refresh(index)
    found = choose(shape, index, SCORES[score](ask.gpus, index, Demand(), Settings()), model=model)
    assert found is not None
    return found


ASKS = {
    "one GPU": Resources(gpus=1),
    "two GPUs that hang together": Resources(gpus=2, link=Link.NVLINK),
    "a GPU with CPUs": Resources(gpus=1, cpus=8),
    "a whole node": Resources(gpus=1, whole_nodes=True),
    "part of a GPU": Resources(share=Share(500)),
}


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
@pytest.mark.parametrize("where", ["a", "b", "c"])
def test_of_equally_good_nodes_the_one_where_the_model_ran_last_is_chosen(
    ask: Resources, where: str, score: str
) -> None:
    index = new_index("a", "b", "c")
    ran(index, where, (1,), LLAMA)
    assert chosen(index, ask, LLAMA, score).nodes == (where,)


def test_a_gang_takes_such_nodes_first() -> None:
    index = new_index("a", "b", "c", "d")
    ran(index, "a", (0,), LLAMA)
    ran(index, "c", (0,), LLAMA)
    assert set(chosen(index, Resources(gpus=2, nodes=2), LLAMA).nodes) == {"a", "c"}


def test_a_node_that_fits_better_is_chosen_anyway() -> None:
    index = new_index("a", "b")
    ran(index, "a", (0,), LLAMA)
    index.take(Placement((Slice(NodeId("b"), (0, 1)),)))
    assert chosen(index, Resources(gpus=1), LLAMA).nodes == ("b",)


def test_on_its_node_a_task_gets_the_gpus_it_had() -> None:
    index = new_index("a")
    ran(index, "a", (2,), LLAMA)
    assert chosen(index, Resources(gpus=1), LLAMA).slices[0].gpus == (2,)


def test_a_new_model_avoids_the_gpus_of_others_while_there_are_unused_ones() -> None:
    index = new_index("a")
    ran(index, "a", (0,), LLAMA)
    assert chosen(index, Resources(gpus=1), WHISPER).slices[0].gpus == (1,)
    ran(index, "a", (1, 2, 3), LLAMA)
    assert chosen(index, Resources(gpus=1), WHISPER).slices[0].gpus == (0,)


def test_affinity_does_not_split_gpus_into_more_pieces() -> None:
    index = new_index("a")
    ran(index, "a", (1,), LLAMA)
    ran(index, "a", (2,), LLAMA)
    assert chosen(index, Resources(gpus=2), LLAMA).slices[0].gpus == (0, 1)


def test_any_later_task_clears_the_affinity_of_a_gpu() -> None:
    index = new_index("a", "b")
    ran(index, "a", (1,), LLAMA)
    ran(index, "a", (1,), None)
    assert index.model_cache.device_groups(LLAMA) == 0
    assert chosen(index, Resources(gpus=1), LLAMA).nodes == ("b",)


def test_models_of_other_tenants_are_different_models() -> None:
    index = new_index("a", "b")
    ran(index, "a", (1,), LLAMA)
    assert chosen(index, Resources(gpus=1), "other/llama").nodes == ("b",)


def test_a_node_that_was_lost_or_left_has_no_affinity() -> None:
    index = new_index("a", "b")
    for name in ("a", "b"):
        ran(index, name, (1,), LLAMA)
    index.set_state(NodeId("a"), lost=True)
    index.set_state(NodeId("a"), lost=False)
    index.remove(NodeId("b"))
    assert index.model_cache.device_groups(LLAMA) == 0
