"""Fragmentation on a handful of nodes: the room that other tasks will need is kept."""

import pytest

from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.task import Resources, Share
from gpuyard.core.domain.values import NodeId
from gpuyard.core.placement import fragmentation_search
from gpuyard.core.placement.choose import choose
from gpuyard.core.placement.demand import Demand
from gpuyard.core.placement.index import Index
from gpuyard.core.placement.scores import SCORES
from gpuyard.core.placement.shape import Shape
from gpuyard.testing import ClusterStory, cpu_task, node, share, task

CARD_MIB = 1000
BOTH_WAYS = pytest.mark.parametrize("names", [("left", "right"), ("right", "left")])
"""Ties are broken by the order of joining; other answers must not depend on it."""


def taken(index: Index, name: str, milli: int) -> None:
    index.take(Placement((Slice(NodeId(name), (0,), milli, milli),)))


def chosen(index: Index, ask: Resources, score: str, *open_tasks: Resources) -> str:
    demand = Demand()
    for other in open_tasks:
        demand.count(other, 1)
    shape = Shape(ask)
    shape.refresh(index)
    placement = choose(shape, index, SCORES[score](ask.gpus, index, demand, Settings()))
    assert placement is not None
    return placement.nodes[0]


@BOTH_WAYS
def test_a_task_without_gpus_leaves_cpus_to_the_gpus_that_would_lack_them(names: tuple[str, str]) -> None:
    cluster = ClusterStory(score="fragmentation")
    for name in names:
        cluster.has_node(node(name, gpus=2, cpus=64 if name == "left" else 16))
    cluster.submits(
        task("typical", cpus=8, gpus=1, models=("H100",)), task("like it", cpus=8, gpus=1, models=("H100",))
    )
    cluster.submits(cpu_task("host", cpus=4))
    assert cluster.nodes_of("host") == ("left",)


@BOTH_WAYS
def test_a_task_with_many_cpus_takes_the_node_with_cpus_to_spare(names: tuple[str, str]) -> None:
    index = Index()
    for name in names:
        index.join(node(name, gpus=2, cpus=64 if name == "left" else 16))
    typical = [Resources(gpus=1, cpus=8)] * 4
    assert chosen(index, Resources(gpus=1, cpus=14), "fragmentation", *typical) == "left"


@BOTH_WAYS
def test_a_task_with_few_cpus_takes_the_gpu_that_others_could_not_use(names: tuple[str, str]) -> None:
    index = Index()
    for name in names:
        index.join(node(name, gpus=2, cpus=16 if name == "left" else 4))
    typical = [Resources(gpus=1, cpus=8)] * 4
    assert chosen(index, Resources(gpus=1, cpus=1), "fragmentation", *typical) == "right"


@BOTH_WAYS
def test_memory_counts_as_cpus_do(names: tuple[str, str]) -> None:
    index = Index()
    for name in names:
        index.join(node(name, gpus=2, memory_mib=64_000 if name == "left" else 16_000))
    typical = [Resources(gpus=1, memory_mib=8_000)] * 4
    assert chosen(index, Resources(gpus=1, memory_mib=14_000), "fragmentation", *typical) == "left"


@BOTH_WAYS
def test_models_that_tasks_require_are_left_to_them(names: tuple[str, str]) -> None:
    index = Index()
    for name in names:
        index.join(node(name, gpus=2, model="T4" if name == "left" else "A100"))
    for ask in (Resources(gpus=1), Resources(share=Share(500)), Resources(gpus=1, cpus=1)):
        assert chosen(index, ask, "fragmentation", Resources(gpus=1, models=("T4",))) == "right"
        assert chosen(index, ask, "fragmentation", Resources(gpus=1, models=("A100",))) == "left"


@BOTH_WAYS
def test_a_node_with_many_cpus_is_left_to_the_large_tasks_that_need_them(names: tuple[str, str]) -> None:
    index = Index()
    for name in names:
        index.join(node(name, gpus=8, cpus=128 if name == "left" else 104))
    large = [Resources(gpus=8, cpus=88)] * 4 + [Resources(gpus=8, cpus=120)]
    assert chosen(index, Resources(cpus=9), "fragmentation", *large) == "right"


def test_a_third_goes_beside_a_third_and_a_half_stays_for_a_half() -> None:
    index = Index()
    for name, milli in (("a half is left", 500), ("two thirds are left", 300)):
        index.join(node(name, gpus=1, gpu_memory_mib=CARD_MIB))
        taken(index, name, milli)
    open_tasks = [Resources(share=Share(milli)) for milli in (500, 500, 300) * 5]
    assert chosen(index, Resources(share=Share(300)), "best_fit", *open_tasks) == "a half is left"
    assert chosen(index, Resources(share=Share(300)), "fragmentation", *open_tasks) == "two thirds are left"


def test_a_share_by_memory_counts_as_its_part_of_a_gpu() -> None:
    cluster = ClusterStory(score="fragmentation")
    cluster.has_nodes(1, gpus_each=2, gpu_memory_mib=24_576)
    cluster.submits(share("half", fraction=0.5), share("memory", memory_mib=10_000), share("large", memory_mib=20_000))
    assert cluster.running() == ["half", "memory", "large"]
    assert [cluster.gpus_of(name)[0][1] for name in ("half", "memory", "large")] == [(0,), (0,), (1,)]


def test_ended_tasks_no_longer_count() -> None:
    cluster = ClusterStory(score="fragmentation")
    cluster.has_nodes(1, gpus_each=8)
    cluster.submits(*(task(f"{place}", gpus=2) for place in range(4)))
    assert dict(cluster.state.demand.asks()) == {Resources(gpus=2): 4}
    cluster.finishes("0")
    assert dict(cluster.state.demand.asks()) == {Resources(gpus=2): 3}


def test_the_number_of_compared_nodes_is_limited_and_room_is_found_behind_any_number_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = Index()
    index.join(node("last", gpus=1, cpus=15))
    for place in range(100):
        index.join(node(f"n{place}", gpus=1, cpus=14))
    monkeypatch.setattr(fragmentation_search, "LOOKS", 1)
    assert chosen(index, Resources(gpus=1, cpus=15), "fragmentation", Resources(gpus=1, cpus=1)) == "last"
    assert chosen(index, Resources(gpus=1, cpus=14), "fragmentation", Resources(gpus=1, cpus=1)) == "n99"
