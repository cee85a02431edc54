"""The contract of node providers, checked on each implementation."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from gpuyard.core.domain.pool import PoolNodeState
from gpuyard.core.domain.values import NodeId
from gpuyard.live.pool.command import CommandProvider
from gpuyard.live.pool.provider import Provider
from gpuyard.testing import MemoryProvider
from tests.acceptance.waiting import until

ONE, TWO = NodeId("pool-0001"), NodeId("pool-0002")


class Provisioning(NamedTuple):
    """A provider, and how to wait until everything it was asked for is up or has failed."""

    provider: Provider
    settle: Callable[[], None]


def in_memory(_: Path, *, fails: bool) -> Provisioning:
    times = [0.0]

    def settle() -> None:
        times[0] += 10

    return Provisioning(MemoryProvider(lambda: times[0], boot_seconds=10, fails=lambda: fails), settle)


def by_command(folder: Path, *, fails: bool) -> Provisioning:
    """Nodes are files that the commands make and take away."""
    up = folder / "up"
    up.mkdir()
    boot = "exit 3" if fails else f"echo {{kind}} > {up}/{{node}}"
    provider = CommandProvider(folder / "pool", "a100", boot, f"rm -f {up}/{{node}}")

    def settled() -> bool:
        return all(it.state not in {PoolNodeState.BOOTING, PoolNodeState.LEAVING} for it in provider.nodes())

    def settle() -> None:
        until(settled)
        assert {path.name for path in up.iterdir()} == {
            it.node for it in provider.nodes() if it.state is PoolNodeState.READY
        }

    return Provisioning(provider, settle)


Make = Callable[[bool], Provisioning]


@pytest.fixture(params=[in_memory, by_command], ids=lambda make: make.__name__)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    return lambda fails: request.param(tmp_path, fails=fails)


def states(provisioning: Provisioning) -> dict[NodeId, PoolNodeState]:
    return {provisioned.node: provisioned.state for provisioned in provisioning.provider.nodes()}


def test_a_provider_starts_with_no_nodes(make: Make) -> None:
    assert list(make(False).provider.nodes()) == []


def test_nodes_boot_and_become_ready(make: Make) -> None:
    provisioning = make(False)
    provisioning.provider.boot([ONE, TWO])
    assert list(states(provisioning)) == [ONE, TWO]
    provisioning.settle()
    assert states(provisioning) == {ONE: PoolNodeState.READY, TWO: PoolNodeState.READY}


def test_a_node_that_failed_to_boot_is_reported_until_it_is_released(make: Make) -> None:
    provisioning = make(True)
    provisioning.provider.boot([ONE])
    provisioning.settle()
    assert states(provisioning) == {ONE: PoolNodeState.FAILED}
    provisioning.provider.release([ONE])
    provisioning.settle()
    assert states(provisioning) == {ONE: PoolNodeState.GONE}


def test_a_node_is_not_booted_twice(make: Make) -> None:
    provisioning = make(False)
    provisioning.provider.boot([ONE])
    provisioning.settle()
    since = [provisioned.since for provisioned in provisioning.provider.nodes()]
    provisioning.provider.boot([ONE])
    provisioning.settle()
    assert [provisioned.since for provisioned in provisioning.provider.nodes()] == since


def test_a_released_node_is_down_and_then_forgotten(make: Make) -> None:
    provisioning = make(False)
    provisioning.provider.boot([ONE, TWO])
    provisioning.settle()
    provisioning.provider.release([ONE])
    assert states(provisioning)[ONE] in {PoolNodeState.LEAVING, PoolNodeState.GONE}
    provisioning.settle()
    assert states(provisioning) == {ONE: PoolNodeState.GONE, TWO: PoolNodeState.READY}
    for _ in range(2):
        provisioning.provider.release([ONE])
        assert states(provisioning) == {TWO: PoolNodeState.READY}


def test_a_forgotten_node_can_be_requested_again(make: Make) -> None:
    provisioning = make(False)
    provisioning.provider.boot([ONE])
    provisioning.settle()
    provisioning.provider.release([ONE])
    provisioning.settle()
    provisioning.provider.boot([ONE])
    assert states(provisioning) == {ONE: PoolNodeState.GONE}
    provisioning.provider.release([ONE])
    provisioning.provider.boot([ONE])
    provisioning.settle()
    assert states(provisioning) == {ONE: PoolNodeState.READY}


def test_a_node_can_be_released_while_it_boots(make: Make) -> None:
    provisioning = make(False)
    provisioning.provider.boot([ONE])
    provisioning.provider.release([ONE])
    provisioning.settle()
    assert states(provisioning) == {ONE: PoolNodeState.GONE}
