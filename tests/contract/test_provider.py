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


class Hiring(NamedTuple):
    """A provider, and how to wait until everything it was asked for is up or has failed."""

    provider: Provider
    settle: Callable[[], None]


def in_memory(_: Path, *, fails: bool) -> Hiring:
    times = [0.0]

    def settle() -> None:
        times[0] += 10

    return Hiring(MemoryProvider(lambda: times[0], boot_seconds=10, fails=lambda: fails), settle)


def by_command(folder: Path, *, fails: bool) -> Hiring:
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

    return Hiring(provider, settle)


Make = Callable[[bool], Hiring]


@pytest.fixture(params=[in_memory, by_command], ids=lambda make: make.__name__)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    return lambda fails: request.param(tmp_path, fails=fails)


def states(hiring: Hiring) -> dict[NodeId, PoolNodeState]:
    return {hired.node: hired.state for hired in hiring.provider.nodes()}


def test_a_provider_starts_with_no_nodes(make: Make) -> None:
    assert list(make(False).provider.nodes()) == []


def test_nodes_boot_and_become_ready(make: Make) -> None:
    hiring = make(False)
    hiring.provider.boot([ONE, TWO])
    assert list(states(hiring)) == [ONE, TWO]
    hiring.settle()
    assert states(hiring) == {ONE: PoolNodeState.READY, TWO: PoolNodeState.READY}


def test_a_node_that_failed_to_boot_is_reported_until_it_is_released(make: Make) -> None:
    hiring = make(True)
    hiring.provider.boot([ONE])
    hiring.settle()
    assert states(hiring) == {ONE: PoolNodeState.FAILED}
    hiring.provider.release([ONE])
    hiring.settle()
    assert states(hiring) == {ONE: PoolNodeState.GONE}


def test_a_node_is_not_booted_twice(make: Make) -> None:
    hiring = make(False)
    hiring.provider.boot([ONE])
    hiring.settle()
    since = [hired.since for hired in hiring.provider.nodes()]
    hiring.provider.boot([ONE])
    hiring.settle()
    assert [hired.since for hired in hiring.provider.nodes()] == since


def test_a_released_node_is_down_and_then_forgotten(make: Make) -> None:
    hiring = make(False)
    hiring.provider.boot([ONE, TWO])
    hiring.settle()
    hiring.provider.release([ONE])
    assert states(hiring)[ONE] in {PoolNodeState.LEAVING, PoolNodeState.GONE}
    hiring.settle()
    assert states(hiring) == {ONE: PoolNodeState.GONE, TWO: PoolNodeState.READY}
    for _ in range(2):
        hiring.provider.release([ONE])
        assert states(hiring) == {TWO: PoolNodeState.READY}


def test_a_forgotten_node_can_be_requested_again(make: Make) -> None:
    hiring = make(False)
    hiring.provider.boot([ONE])
    hiring.settle()
    hiring.provider.release([ONE])
    hiring.settle()
    hiring.provider.boot([ONE])
    assert states(hiring) == {ONE: PoolNodeState.GONE}
    hiring.provider.release([ONE])
    hiring.provider.boot([ONE])
    hiring.settle()
    assert states(hiring) == {ONE: PoolNodeState.READY}


def test_a_node_can_be_released_while_it_boots(make: Make) -> None:
    hiring = make(False)
    hiring.provider.boot([ONE])
    hiring.provider.release([ONE])
    hiring.settle()
    assert states(hiring) == {ONE: PoolNodeState.GONE}
