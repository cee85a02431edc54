"""Choosing against brute force: on random clusters, a placement is found if and only if a search of every GPU finds one."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.core.domain import refusals as no
from gpuyard.core.domain.node import NodeSpec
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.refusals import Never
from gpuyard.core.domain.settings import Settings
from gpuyard.core.domain.task import Resources, Share
from gpuyard.core.domain.values import MILLI, GpuHealth, Link, NodeId
from gpuyard.core.placement.choose import choose, groups_with_room, why_not
from gpuyard.core.placement.demand import Demand
from gpuyard.core.placement.index import Index
from gpuyard.core.placement.scores import SCORES
from gpuyard.core.placement.shape import Shape
from gpuyard.testing import node

CARD_MIB = 1000


class Naive:
    """The same cluster as plain counts; every question is answered by looking at every GPU."""

    def __init__(self) -> None:
        self.nodes: dict[NodeId, NodeSpec] = {}
        self.closed: set[NodeId] = set()
        self.broken: set[tuple[NodeId, int]] = set()
        self.milli: Counter[tuple[NodeId, int]] = Counter()
        self.memory: Counter[tuple[NodeId, int]] = Counter()
        self.cpus: Counter[NodeId] = Counter()
        self.host_memory: Counter[NodeId] = Counter()

    def book(self, placement: Placement, sign: int) -> None:
        for part in placement.slices:
            for gpu in part.gpus:
                self.milli[part.node, gpu] += sign * part.milli
                self.memory[part.node, gpu] += sign * part.gpu_memory_mib
            self.cpus[part.node] += sign * part.cpus
            self.host_memory[part.node] += sign * part.memory_mib

    def check(self) -> None:
        assert all(0 <= used <= MILLI for used in self.milli.values()), "the compute of a GPU is allocated twice"
        assert all(0 <= used <= CARD_MIB for used in self.memory.values()), "the memory of a GPU is allocated twice"
        assert all(0 <= used <= self.nodes[name].cpus for name, used in self.cpus.items())
        assert all(0 <= used <= self.nodes[name].memory_mib for name, used in self.host_memory.items())

    def usable(self, name: NodeId) -> list[int]:
        return [gpu for gpu in range(len(self.nodes[name].gpus)) if (name, gpu) not in self.broken]

    def free(self, name: NodeId) -> list[int]:
        return [gpu for gpu in self.usable(name) if not self.milli[name, gpu]]

    def fits(self, ask: Resources, name: NodeId) -> bool:
        spec = self.nodes[name]
        if name in self.closed or not set(ask.labels) <= set(spec.labels):
            return False
        if ask.models and not any(gpu.model in ask.models for gpu in spec.gpus):
            return False
        if spec.cpus - self.cpus[name] < ask.cpus or spec.memory_mib - self.host_memory[name] < ask.memory_mib:
            return False
        if ask.share is not None:
            return any(self._has_share(ask.share, name, gpu) for gpu in self.usable(name))
        if ask.whole_nodes:
            return len(self.free(name)) == len(self.usable(name)) >= ask.gpus
        return len(self.free(name)) >= ask.gpus

    def _has_share(self, share: Share, name: NodeId, gpu: int) -> bool:
        memory = share.memory_mib or -(-share.fraction_milli * CARD_MIB // MILLI)
        milli = max(share.fraction_milli, -(-share.memory_mib * MILLI // CARD_MIB))
        return self.milli[name, gpu] + milli <= MILLI and self.memory[name, gpu] + memory <= CARD_MIB

    def fitting(self, ask: Resources) -> list[NodeId]:
        could_ever = [name for name, spec in self.nodes.items() if len(spec.gpus) >= (1 if ask.share else ask.gpus)]
        return [name for name in could_ever if self.fits(ask, name)]


specs = st.lists(
    st.tuples(
        st.sampled_from((0, 1, 2, 4, 8)), st.sampled_from(("A100", "T4")), st.integers(0, 8), st.sampled_from("ab")
    ),
    min_size=1,
    max_size=5,
)
common = {
    "models": st.sampled_from(((), (), ("A100",), ("T4", "H100"))),
    "labels": st.sampled_from(((), (), (("rack", "a"),))),
    "cpus": st.sampled_from((0, 0, 1, 3)),
    "memory_mib": st.sampled_from((0, 0, 30, 64)),
    "link": st.sampled_from(list(Link)),
}
asks = st.one_of(
    st.builds(Resources, gpus=st.integers(1, 8), **common),
    st.builds(Resources, gpus=st.integers(1, 4), nodes=st.integers(2, 3), whole_nodes=st.booleans(), **common),
    st.builds(Resources, gpus=st.integers(1, 4), whole_nodes=st.just(True), **common),
    st.builds(
        Resources,
        share=st.builds(Share, st.sampled_from((0, 250, 400, 1000)), st.sampled_from((100, 500, 700))),
        **common,
    ),
    st.builds(Resources, share=st.builds(Share, st.sampled_from((1, 333, 500))), **common),
    st.builds(Resources, cpus=st.integers(1, 6), labels=common["labels"], memory_mib=common["memory_mib"]),
)
steps = st.lists(
    st.one_of(
        asks,
        st.integers(0, 30),  # give that placement back
        st.tuples(st.integers(0, 4), st.booleans()),  # close or open that node
        st.tuples(st.integers(0, 4), st.integers(0, 7), st.sampled_from(list(GpuHealth))),
    ),
    max_size=40,
)


@pytest.mark.slow
@pytest.mark.parametrize("score", sorted(SCORES))
@settings(max_examples=300, deadline=None)
@given(sizes=specs, life=steps)
def test_a_placement_is_found_exactly_when_brute_force_finds_one(
    score: str, sizes: list[tuple[int, str, int, str]], life: list[object]
) -> None:
    index, demand, naive = Index(), Demand(), Naive()
    for place, (gpus, model, cpus, rack) in enumerate(sizes):
        spec = node(f"n{place}", gpus=gpus, model=model, gpu_memory_mib=CARD_MIB, cpus=cpus, memory_mib=64, rack=rack)
        index.join(spec)
        naive.nodes[spec.id] = spec
    given_out: list[Placement] = []
    for step in life:
        if isinstance(step, Resources):
            _try(step, score, index, demand, naive, given_out)
        elif isinstance(step, int):
            if step < len(given_out):
                naive.book(placement := given_out.pop(step), -1)
                index.give(placement)
        elif isinstance(step, tuple):
            _change(step, index, naive)
        naive.check()


def _try(ask: Resources, score: str, index: Index, demand: Demand, naive: Naive, given_out: list[Placement]) -> None:
    demand.count(ask, 1)
    shape = Shape(ask)
    shape.refresh(index)
    placement = choose(shape, index, SCORES[score](ask.gpus, index, demand, Settings()))
    fitting = naive.fitting(ask)
    assert (placement is not None) == (len(fitting) >= ask.nodes), f"{ask} fits {fitting}"
    assert {device_group.host.spec.id for device_group in groups_with_room(shape, index)} == set(
        fitting
    ) or not shape.eligible
    if placement is None:
        refusal = why_not(shape, index)
        assert isinstance(refusal, no.NotNow | Never)
        assert refusal.sentence()
        return
    assert len(set(placement.nodes)) == ask.nodes
    assert set(placement.nodes) <= set(fitting)
    for part in placement.slices:
        assert (part.cpus, part.memory_mib) == (ask.cpus, ask.memory_mib)
        assert set(part.gpus) <= set(naive.usable(part.node))
        if ask.share is None:
            assert set(part.gpus) <= set(naive.free(part.node))
            assert len(part.gpus) == (len(naive.usable(part.node)) if ask.whole_nodes else ask.gpus)
    if score == "best_fit" and ask.gpus and ask.nodes == 1:
        assert len(naive.free(placement.nodes[0])) == min(len(naive.free(name)) for name in fitting)
    if score == "spread" and ask.gpus and ask.nodes == 1:
        assert len(naive.free(placement.nodes[0])) == max(len(naive.free(name)) for name in fitting)
    naive.book(placement, 1)
    index.take(placement)
    given_out.append(placement)


def _change(step: tuple[int, bool] | tuple[int, int, GpuHealth], index: Index, naive: Naive) -> None:
    name = NodeId(f"n{step[0]}")
    if name not in naive.nodes:
        return
    if len(step) == 2:
        index.set_state(name, cordoned=step[1])
        (naive.closed.add if step[1] else naive.closed.discard)(name)
    elif step[1] < len(naive.nodes[name].gpus):
        index.set_health(name, step[1], step[2])
        (naive.broken.discard if step[2] is GpuHealth.OK else naive.broken.add)((name, step[1]))


def order_for(gpus: int) -> range:
    return range(gpus, 9)


def test_a_share_goes_to_the_fullest_gpu_that_has_room() -> None:
    index = Index()
    index.join(node("n", gpus=3, gpu_memory_mib=CARD_MIB))
    cards = []
    for milli in (500, 300, 600, 400, 200):
        shape = Shape(Resources(share=Share(milli)))
        shape.refresh(index)
        placement = choose(shape, index, order_for(0))
        assert placement is not None
        cards.append(placement.slices[0].gpus[0])
        index.take(placement)
    assert cards[0] == cards[1] == cards[4] != cards[2] == cards[3]


def test_a_share_finds_the_fullest_gpu_among_any_number_of_nodes() -> None:
    index = Index()
    for place in range(60):
        index.join(node(f"n{place}", gpus=1, gpu_memory_mib=CARD_MIB))
        milli = 300 if place == 20 else 100
        index.take(Placement((Slice(NodeId(f"n{place}"), (0,), milli, milli),)))
    shape = Shape(Resources(share=Share(200)))
    shape.refresh(index)
    placement = choose(shape, index, order_for(0))
    assert placement is not None
    assert placement.nodes == ("n20",)


def test_a_task_without_gpus_takes_a_node_without_gpus_if_there_is_one() -> None:
    index = Index()
    for name, gpus in (("a", 8), ("b", 0), ("c", 8)):
        index.join(node(name, gpus=gpus, cpus=4))
    chosen: list[NodeId] = []
    for _ in range(3):
        shape = Shape(Resources(cpus=4))
        shape.refresh(index)
        placement = choose(shape, index, order_for(0))
        assert placement is not None
        chosen += placement.nodes
        index.take(placement)
    assert chosen[0] == "b"
    assert sorted(chosen) == ["a", "b", "c"]


def test_excluded_nodes_are_not_chosen() -> None:
    index = Index()
    index.join(node("a", gpus=2))
    index.join(node("b", gpus=2))
    for ask in (Resources(gpus=1), Resources(gpus=1, cpus=1), Resources(share=Share(500)), Resources(gpus=1, nodes=2)):
        shape = Shape(ask)
        shape.refresh(index)
        placement = choose(shape, index, order_for(ask.gpus), index.device_groups_of((NodeId("b"),)))
        assert (placement.nodes if placement else ()) == (() if ask.nodes > 1 else ("a",))


def test_a_preference_for_nvlink_prefers_the_node_with_linked_free_gpus() -> None:
    index = Index()
    for name in ("a", "b", "c"):
        index.join(node(name, gpus=4))
    index.take(_cards("a", 0, 2))
    index.take(_cards("b", 0, 1))
    index.take(_cards("c", 1, 3))
    shape = Shape(Resources(gpus=2, link=Link.NVLINK))
    shape.refresh(index)
    placement = choose(shape, index, order_for(2))
    assert placement is not None
    assert (placement.nodes, placement.slices[0].gpus) == (("b",), (2, 3))


def _cards(name: str, *gpus: int) -> Placement:
    return Placement((Slice(NodeId(name), gpus),))


def test_a_reason_distinguishes_permanent_from_temporary_obstacles() -> None:
    index = Index()
    index.join(node("a", gpus=4, cpus=8))
    index.join(node("b", gpus=4, cpus=8))
    gang, one, cpus = Resources(gpus=4, nodes=2), Resources(gpus=3), Resources(gpus=1, cpus=8)
    index.take(_cards("a", 0, 1))
    index.take(_cards("b", 0, 1))
    assert why_not(Shape(gang), index) == no.GangIncomplete(2, 0)
    assert why_not(Shape(one), index) == no.NoRoom(3, 2, 2)
    index.take(Placement((*_with_cpus("a"), *_with_cpus("b"))))
    assert why_not(Shape(cpus), index) == no.NoCpuRoom(8, 0)
    index.set_state(NodeId("a"), lost=True)
    assert why_not(Shape(gang), index) == no.NodesClosed(2, 2, 1)
    index.set_health(NodeId("b"), 3, GpuHealth.OFFLINE)
    assert why_not(Shape(Resources(gpus=4)), index) == no.NodesClosed(1, 2, 0)
    assert why_not(Shape(Resources(gpus=5)), index) == no.NodeTooSmall(5, 4)


def _with_cpus(name: str) -> tuple[Slice, ...]:
    return (Slice(NodeId(name), cpus=1),)
