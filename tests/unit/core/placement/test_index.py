"""The index: nodes join, leave, close and fail, and it always offers what is free."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.placement import Placement, Slice
from gpuyard.core.domain.values import GpuHealth, NodeId
from gpuyard.core.placement.device_group_mask import members
from gpuyard.core.placement.index import Index
from gpuyard.testing import node

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def new_index(*names: NodeId, gpus: int = 4) -> Index:
    index = Index()
    for name in names:
        index.join(node(name, gpus=gpus, cpus=8, memory_mib=100, rack=name))
    return index


def offered(index: Index) -> dict[str, int]:
    """Open nodes by their free GPUs, as a search sees them."""
    return {
        index.device_group(number).host.spec.id: free
        for free, device_groups in enumerate(index.by_free)
        for number in sorted(members(device_groups))
    }


def take(index: Index, name: NodeId, *gpus: int, cpus: int = 0, memory_mib: int = 0) -> Placement:
    placement = Placement((Slice(name, gpus, cpus=cpus, memory_mib=memory_mib),))
    index.take(placement)
    return placement


def test_device_groups_are_numbered_in_the_order_nodes_join() -> None:
    index = new_index(A, B)
    index.join(NodeSpec(C, (Gpu("A100", 1), Gpu("T4", 1), Gpu("A100", 2))))
    assert [device_group.number for device_group in index.hosts[C].device_groups] == [2, 3, 4]
    assert [device_group.host.spec.id for device_group in index.all_device_groups()] == [A, B, C, C, C]


def test_the_number_of_a_node_that_left_is_given_to_the_next_one() -> None:
    index = new_index(A, B, C)
    index.remove(B)
    index.remove(A)
    index.join(node("d"))
    assert index.hosts[NodeId("d")].device_groups[0].number == 0
    index.join(node("e"))
    assert index.hosts[NodeId("e")].device_groups[0].number == 1
    assert len(index.device_groups) == 3


def test_a_node_can_be_given_the_number_it_had() -> None:
    index = Index()
    index.join(node("b"), (2,))
    index.join(node("a"), (0,))
    assert [device_group and device_group.host.spec.id for device_group in index.device_groups] == [A, None, B]
    index.join(node("c"))
    assert index.hosts[C].device_groups[0].number == 1


def test_a_node_that_left_is_found_nowhere() -> None:
    index = new_index(A, B)
    index.remove(A)
    assert offered(index) == {B: 4}
    assert index.hosts_of(index.everywhere) == index.hosts_of(index.open) == index.hosts_of(index.idle) == {B}
    assert ("rack", A) not in index.by_label
    assert index.gpus_up == 4
    assert index.device_groups_of((A,)) == 0


def test_changed_hardware_changes_the_version_and_tasks_or_cordons_do_not() -> None:
    index = new_index(A)
    before = index.version
    take(index, A, 0)
    index.set_state(A, cordoned=True)
    assert index.version == before
    index.set_health(A, 1, GpuHealth.OFFLINE)
    assert index.version > before


@pytest.mark.parametrize("how", ["lost", "cordoned"])
def test_a_closed_node_is_not_offered_and_returns_with_its_attempts(how: str) -> None:
    index = new_index(A, B)
    placement = take(index, A, 0, 1, cpus=3, memory_mib=60)
    index.set_state(A, **{how: True})
    assert offered(index) == {B: 4}
    assert A not in index.hosts_of(index.by_cpus_free.may_have(1))
    index.give(placement)
    take(index, A, 3, cpus=1)
    index.set_state(A, **{how: False})
    assert offered(index) == {A: 3, B: 4}
    assert index.hosts[A].cpus_free == 7
    assert A in index.hosts_of(index.by_cpus_free.may_have(7))


def test_a_node_that_is_lost_and_cordoned_opens_when_it_is_neither() -> None:
    index = new_index(A)
    index.set_state(A, lost=True)
    index.set_state(A, cordoned=True, draining=True)
    index.set_state(A, lost=False)
    assert offered(index) == {}
    index.set_state(A, cordoned=False)
    assert offered(index) == {A: 4}


def test_lost_nodes_and_broken_gpus_do_not_count_for_the_split_and_externally_used_gpus_do() -> None:
    index = new_index(A, B)
    index.set_health(A, 0, GpuHealth.OFFLINE)
    index.set_health(A, 1, GpuHealth.EXTERNAL)
    assert index.gpus_up == 7
    index.set_state(A, lost=True)
    assert index.gpus_up == 4
    index.set_health(A, 1, GpuHealth.OFFLINE)
    index.set_state(A, lost=False)
    assert index.gpus_up == 6
    index.remove(A)
    assert index.gpus_up == 4


def test_a_gpu_that_breaks_in_use_is_free_only_when_it_is_repaired_and_released() -> None:
    index = new_index(A)
    placement = take(index, A, 0, 1)
    index.set_health(A, 0, GpuHealth.OFFLINE)
    assert offered(index) == {A: 2}
    index.give(placement)
    assert offered(index) == {A: 3}
    assert index.hosts_of(index.idle) == {A}
    index.set_health(A, 0, GpuHealth.OK)
    assert offered(index) == {A: 4}


def test_a_shared_gpu_is_whole_again_when_the_last_share_ends() -> None:
    index = new_index(A, gpus=1)
    halves = [Placement((Slice(A, (0,), 500, 10),)) for _ in range(2)]
    for half in halves:
        index.take(half)
    assert (offered(index), index.hosts[A].device_groups[0].lefts) == ({A: 0}, {0})
    index.give(halves[0])
    assert (offered(index), index.hosts[A].device_groups[0].lefts) == ({A: 0}, {500})
    index.give(halves[1])
    assert offered(index) == {A: 1}
    assert index.hosts[A].device_groups[0].shared == {}


def test_a_suspended_attempt_keeps_its_host_memory() -> None:
    index = new_index(A)
    placement = take(index, A, 0, cpus=2, memory_mib=40)
    index.give(placement, keep_memory=True)
    assert (index.hosts[A].cpus_free, index.hosts[A].memory_free) == (8, 60)
    index.give_memory(placement)
    assert index.hosts[A].memory_free == 100


@pytest.mark.parametrize(
    ("first", "second", "complaint"),
    [
        (Slice(A, (0,)), Slice(A, (0, 1)), "given twice"),
        (Slice(A, (0,)), Slice(A, (0,), 500, 10), "whole and shared"),
        (Slice(A, (0,), 600, 10), Slice(A, (0,), 500, 10), "above its compute"),
        (Slice(A, (0,), 100, 30_000), Slice(A, (0,), 100, 30_000), "above its memory"),
        (Slice(A, cpus=5), Slice(A, cpus=5), "CPUs"),
        (Slice(A, memory_mib=60), Slice(A, memory_mib=60), "memory"),
    ],
)
def test_nothing_is_allocated_twice(first: Slice, second: Slice, complaint: str) -> None:
    index = new_index(A)
    index.take(Placement((first,)))
    with pytest.raises(AssertionError, match=complaint):
        index.take(Placement((second,)))


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30))
def test_numbers_are_never_shared_and_the_smallest_free_one_is_used_next(steps: list[tuple[int, bool]]) -> None:
    index = Index()
    for place, joins in steps:
        name = NodeId(f"n{place}")
        if joins and name not in index.hosts:
            taken = {device_group.number for device_group in index.all_device_groups()}
            index.join(node(name, gpus=1))
            assert index.hosts[name].device_groups[0].number == min(set(range(len(taken) + 1)) - taken)
        elif not joins and name in index.hosts:
            index.remove(name)
        numbers = [device_group.number for device_group in index.all_device_groups()]
        assert len(numbers) == len(set(numbers)) == len(index.hosts)
        assert index.everywhere == sum(1 << number for number in numbers)
