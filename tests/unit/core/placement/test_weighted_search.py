"""The score `weighted` on a handful of nodes: each weight moves the choice, and so does the idle rate."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.task import Resources
from gpuyard.core.domain.values import NodeId
from gpuyard.core.placement.choose import choose
from gpuyard.core.placement.demand import Demand
from gpuyard.core.placement.index import Index
from gpuyard.core.placement.scores import SCORES
from gpuyard.core.placement.scores.weighted import WeightedCosts, idle_rate
from gpuyard.core.placement.shape import Shape
from gpuyard.testing import ClusterStory, gang, node, share, task

SPEEDS = (("T4", 0.5), ("V100", 1.0))
"""A T4 takes twice the time and 140 W · s where a V100 takes 300."""
NOTHING = {"weight_time": 0.0, "weight_energy": 0.0, "weight_balance": 0.0, "weight_fragmentation": 0.0}
EITHER_ORDER = pytest.mark.parametrize("backwards", [False, True])


def new_index(*names: str, gpus: int = 4, backwards: bool = False) -> Index:
    """Nodes of four GPUs, of the model that their names begin with."""
    index = Index()
    for name in reversed(names) if backwards else names:
        index.join(node(name, gpus=gpus, model=name.split("-")[0]))
    return index


def takes(index: Index, name: str, gpus: int) -> None:
    index.take(Placement((Slice(NodeId(name), tuple(range(gpus))),)))


def chosen(index: Index, ask: Resources, *open_tasks: Resources, **weights: Any) -> str:
    demand = Demand()
    for other in open_tasks:
        demand.count(other, 1)
    shape = Shape(ask)
    shape.refresh(index)
    settings = Settings(score="weighted", **{**NOTHING, "weights_follow_idle": False, **weights})
    placement = choose(shape, index, SCORES["weighted"](ask.gpus, index, demand, settings))
    assert placement is not None
    return placement.nodes[0]


@EITHER_ORDER
@pytest.mark.parametrize(
    ("weights", "name"),
    [
        ({"weight_time": 1.0}, "V100"),
        ({"weight_energy": 1.0}, "T4"),
        ({"weight_time": 1.0, "weight_energy": 0.8}, "V100"),
        ({"weight_time": 1.0, "weight_energy": 0.9}, "T4"),
    ],
)
def test_time_and_energy_are_weighed_by_their_relative_increase(
    weights: dict[str, float], name: str, backwards: bool
) -> None:
    """The T4 takes 100 % more time, the V100 114 % more energy."""
    index = new_index("T4", "V100", backwards=backwards)
    assert chosen(index, Resources(gpus=1, speeds=SPEEDS), **weights) == name


@EITHER_ORDER
def test_balance_takes_the_emptier_node_and_no_weight_at_all_the_fuller_one(backwards: bool) -> None:
    index = new_index("A100-empty", "A100-used", backwards=backwards)
    takes(index, "A100-used", 1)
    assert chosen(index, Resources(gpus=1), weight_balance=1.0) == "A100-empty"
    assert chosen(index, Resources(gpus=1)) == "A100-used"


@EITHER_ORDER
def test_fragmentation_keeps_the_room_that_open_tasks_need(backwards: bool) -> None:
    index = new_index("A100-three", "A100-four", backwards=backwards)
    takes(index, "A100-three", 1)
    three = [Resources(gpus=3)] * 5
    assert chosen(index, Resources(gpus=1), *three, weight_fragmentation=1.0) == "A100-four"
    assert chosen(index, Resources(gpus=1), *[Resources(gpus=4)] * 5, weight_fragmentation=1.0) == "A100-three"


@EITHER_ORDER
def test_the_idle_rate_decides_between_balance_and_fragmentation(backwards: bool) -> None:
    """In an idle cluster the task goes to the empty node; in a full one it leaves that for tasks that need it."""
    nodes = ["A100-empty", "A100-used", *(f"A100-{place}" for place in range(6))]
    both = {"weight_balance": 1.0, "weight_fragmentation": 1.0, "weights_follow_idle": True}
    four = [Resources(gpus=4)] * 5
    idle = new_index(*nodes, backwards=backwards)
    takes(idle, "A100-used", 1)
    assert idle_rate(idle) == 31 / 32
    assert chosen(idle, Resources(gpus=1), *four, **both) != "A100-used"
    full = new_index(*nodes, backwards=backwards)
    for place in range(6):
        takes(full, f"A100-{place}", 4)
    takes(full, "A100-used", 1)
    assert idle_rate(full) == 7 / 32
    assert chosen(full, Resources(gpus=1), *four, **both) == "A100-used"


@EITHER_ORDER
def test_energy_counts_as_much_as_the_cluster_is_idle(backwards: bool) -> None:
    weights = {"weight_time": 1.0, "weight_energy": 1.5, "weights_follow_idle": True}
    ask = Resources(gpus=1, speeds=SPEEDS)
    idle = new_index("T4", "V100", "V100-2", backwards=backwards)
    assert chosen(idle, ask, **weights) == "T4"
    takes(idle, "V100-2", 4)
    takes(idle, "V100", 2)
    assert chosen(idle, ask, **weights) == "V100"


def test_a_task_without_speeds_is_not_sent_to_the_gpus_with_the_least_power() -> None:
    index = new_index("V100", "T4")
    takes(index, "V100", 1)
    assert chosen(index, Resources(gpus=1), weight_energy=100.0, weight_time=1.0) == "V100"


def test_an_index_without_nodes_has_no_room_and_is_not_idle() -> None:
    index = Index()
    shape = Shape(Resources(gpus=1))
    shape.refresh(index)
    costs = SCORES["weighted"](1, index, Demand(), Settings())
    assert isinstance(costs, WeightedCosts)
    assert choose(shape, index, costs) is None
    assert idle_rate(index) == 0.0


@given(
    free=st.lists(st.integers(0, 4), min_size=3, max_size=3),
    weights=st.lists(st.floats(0, 10), min_size=4, max_size=4),
    follow=st.booleans(),
    wanted=st.integers(1, 4),
)
def test_a_place_is_found_if_and_only_if_there_is_one(
    free: list[int], weights: list[float], follow: bool, wanted: int
) -> None:
    index = new_index("T4", "V100", "A100")
    for name, count in zip(("T4", "V100", "A100"), free, strict=True):
        if count < 4:
            takes(index, name, 4 - count)
    shape = Shape(Resources(gpus=wanted, speeds=SPEEDS))
    shape.refresh(index)
    settings = Settings(**dict(zip(NOTHING, weights, strict=True)), weights_follow_idle=follow)  # type: ignore[arg-type]
    placement = choose(shape, index, SCORES["weighted"](wanted, index, Demand(), settings))
    assert (placement is not None) == (max(free) >= wanted)


def test_gangs_and_shares_take_the_fastest_place_as_with_other_scores() -> None:
    cluster = ClusterStory(score="weighted", weight_energy=100.0)
    cluster.is_split(online=0.0)
    for name in ("T4-1", "T4-2", "V100-1", "V100-2"):
        cluster.has_node(node(name, gpus=2, model=name.split("-")[0]))
    cluster.submits(gang("train", members=2, gpus_each=1, speeds=SPEEDS), share("small", fraction=0.5, speeds=SPEEDS))
    assert set(cluster.nodes_of("train")) == {"V100-1", "V100-2"}
    assert cluster.nodes_of("small")[0].startswith("V100")
    cluster.submits(task("one", speeds=SPEEDS))
    assert cluster.nodes_of("one")[0].startswith("T4")


def test_a_change_of_the_weights_moves_the_next_task() -> None:
    cluster = ClusterStory(score="weighted", weight_energy=0.0)
    cluster.is_split(online=0.0)
    for name in ("T4", "V100"):
        cluster.has_node(node(name, gpus=4, model=name))
    cluster.submits(task("fast", speeds=SPEEDS))
    cluster.decides_by(score="weighted", weight_energy=50.0)
    cluster.submits(task("frugal", speeds=SPEEDS))
    assert (cluster.nodes_of("fast"), cluster.nodes_of("frugal")) == (("V100",), ("T4",))
