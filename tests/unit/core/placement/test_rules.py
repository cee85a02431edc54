"""Placement rules, and the refusal if no node passes."""

import pytest

from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.node import MAPPED_ONLY, Gpu, NodeSpec, user_account_label
from gpuyard.core.domain.task import Resources, Share
from gpuyard.core.domain.values import NodeId
from gpuyard.core.placement.index import Index
from gpuyard.core.placement.rules import RULES
from gpuyard.core.placement.shape import Shape
from gpuyard.testing import node


def new_index() -> Index:
    index = Index()
    index.join(node("small", gpus=2, model="T4", gpu_memory_mib=16_000, cpus=8, memory_mib=32_000, rack="r1"))
    index.join(node("large", gpus=8, model="A100", gpu_memory_mib=80_000, cpus=64, memory_mib=500_000, rack="r2"))
    index.join(node("plain", gpus=0, cpus=128, memory_mib=64_000, zone="z"))
    return index


NEVER: dict[str, tuple[Resources, no.Never]] = {
    "model": (Resources(gpus=1, models=("H100", "H200")), no.UnknownGpuModel(("H100", "H200"), ("A100", "T4"))),
    "GPU memory": (Resources(gpus=1, gpu_memory_mib=90_000), no.GpuMemoryTooSmall(90_000, 80_000)),
    "GPU memory of a model": (
        Resources(gpus=1, models=("T4",), gpu_memory_mib=20_000),
        no.GpuMemoryTooSmall(20_000, 16_000),
    ),
    "a share of a larger GPU": (Resources(share=Share(0, 90_000)), no.GpuMemoryTooSmall(90_000, 80_000)),
    "count": (Resources(gpus=9), no.NodeTooSmall(9, 8)),
    "count of a model": (Resources(gpus=3, models=("T4",)), no.NodeTooSmall(3, 2)),
    "a label that no node has": (Resources(gpus=1, labels=(("rack", "r9"),)), no.NoNodeWithLabels(("rack=r9",))),
    "labels never together": (
        Resources(cpus=1, labels=(("rack", "r1"), ("zone", "z"))),
        no.NoNodeWithLabels(("rack=r1", "zone=z")),
    ),
    "a label on nodes without such GPUs": (
        Resources(gpus=4, labels=(("rack", "r1"),)),
        no.NoNodeWithLabels(("rack=r1",)),
    ),
    "CPUs": (Resources(cpus=129), no.TooFewCpus(129, 128)),
    "CPUs beside GPUs": (Resources(gpus=1, cpus=65), no.TooFewCpus(65, 64)),
    "host memory": (Resources(gpus=1, memory_mib=500_001), no.HostMemoryTooSmall(500_001, 500_000)),
    "a gang": (Resources(gpus=1, nodes=3), no.GangLargerThanCluster(3, 2)),
}


@pytest.mark.parametrize("wrong", sorted(NEVER))
def test_requests_no_node_could_ever_hold_are_refused_with_what_exists(wrong: str) -> None:
    ask, refusal = NEVER[wrong]
    shape = Shape(ask)
    index = new_index()
    assert shape.never(index) == refusal
    shape.refresh(index)
    assert shape.eligible == 0


def test_an_empty_cluster_says_so() -> None:
    assert Shape(Resources(gpus=1)).never(Index()) == no.NoNodesYet()


@pytest.mark.parametrize(
    ("ask", "nodes"),
    [
        (Resources(gpus=1), {"small", "large"}),
        (Resources(gpus=3), {"large"}),
        (Resources(share=Share(500)), {"small", "large"}),
        (Resources(share=Share(0, 20_000)), {"large"}),
        (Resources(cpus=1), {"small", "large", "plain"}),
        (Resources(cpus=100), {"plain"}),
        (Resources(gpus=1, models=("T4", "H100")), {"small"}),
        (Resources(gpus=1, gpu_memory_mib=16_001), {"large"}),
        (Resources(gpus=1, labels=(("rack", "r1"),)), {"small"}),
        (Resources(memory_mib=65_000, gpus=1), {"large"}),
        (Resources(gpus=1, nodes=2), {"small", "large"}),
    ],
)
def test_eligible_nodes_are_exactly_those_that_pass_every_rule(ask: Resources, nodes: set[str]) -> None:
    index = new_index()
    shape = Shape(ask)
    shape.refresh(index)
    assert index.hosts_of(shape.eligible) == nodes
    assert shape.never(index) is None


def test_each_rule_passes_tasks_that_request_nothing_of_it() -> None:
    index = new_index()
    for rule in RULES:
        with_cards = index.everywhere ^ index.without_gpus
        assert rule.device_groups(Resources(gpus=1), index) & with_cards == with_cards


def test_gpus_of_two_models_in_one_node_are_two_device_groups_and_one_node() -> None:
    index = Index()
    index.join(NodeSpec(NodeId("desk"), (Gpu("A100", 1), Gpu("T4", 1), Gpu("A100", 1)), cpus=4))
    shape = Shape(Resources(gpus=2))
    shape.refresh(index)
    assert [index.device_group(number).model for number in range(2)] == ["A100", "T4"]
    assert shape.eligible == 1
    assert Shape(Resources(gpus=3)).never(index) == no.NodeTooSmall(3, 2)
    assert Shape(Resources(gpus=1, nodes=2)).never(index) == no.GangLargerThanCluster(2, 1)


def test_a_task_without_gpus_is_eligible_once_in_every_node() -> None:
    index = Index()
    index.join(NodeSpec(NodeId("desk"), (Gpu("A100", 1), Gpu("T4", 1)), cpus=4))
    shape = Shape(Resources(cpus=1))
    shape.refresh(index)
    assert shape.eligible.bit_count() == 1


def test_a_task_without_a_system_account_goes_where_it_has_one_or_needs_none() -> None:
    index = Index()
    index.join(NodeSpec(NodeId("root"), (Gpu("A100", 1),), labels=(MAPPED_ONLY, user_account_label("anna"))))
    anna, ben = (Shape(Resources(gpus=1, account=("physics", user))) for user in ("anna", "ben"))
    assert (anna.never(index), ben.never(index)) == (None, no.NoSystemUser("physics", "ben"))
    index.join(NodeSpec(NodeId("shared"), (Gpu("A100", 1),)))
    assert ben.never(index) is None
    assert Shape(Resources(gpus=1)).never(index) is None
