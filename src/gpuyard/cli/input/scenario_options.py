"""`gpuyard simulate --elastic …, --suspend-idle …, --failures …`: parse the scenario options."""

from collections.abc import Iterator
from math import inf, isfinite
from random import Random
from typing import TYPE_CHECKING

from gpuyard.core.domain.errors import WrongInput

if TYPE_CHECKING:
    from gpuyard.simulator.failures import NodeRandom, RandomDraw
    from gpuyard.simulator.scenarios import ElasticNodes, FailingNodes, Scenario, SuspendedNodes
    from gpuyard.simulator.workloads.arrival import Workload

BOOT_SECONDS, WAKE_SECONDS = 180.0, 60.0
"""Default boot and wake-up times."""
MOST = 1e9


class WrongCondition(WrongInput):
    """The conditions of a simulation cannot be."""


def scenario_of(
    seed: int, *, elastic: str | None, suspend_idle: str | None, price: float | None, failures: str | None
) -> "dict[str, Scenario]":
    """Return the scenarios by the suffix that they add to a policy's name; the fixed cluster comes first."""
    from gpuyard.input.arguments import Seed, argument
    from gpuyard.simulator.scenarios import Scenario

    argument("seed", seed, Seed)
    if price is not None and not 0 <= price <= MOST:
        raise WrongCondition(f"--price is {price}; it must be the price of one GPU for an hour, 0 or more.")
    repair = _repair(failures) if failures is not None else None
    pools: dict[str, ElasticNodes | SuspendedNodes | None] = {"": None}
    if elastic is not None:
        pools["+elastic"] = _elastic(elastic)
    if suspend_idle is not None:
        pools["+suspend"] = _sleep(suspend_idle)
    metered = elastic is not None or suspend_idle is not None or price is not None
    return {name: Scenario(pool, repair, metered, price, _chance(seed)) for name, pool in pools.items()}


def check_pools(scenario: "dict[str, Scenario]", workload: "Workload") -> None:
    """Check that a workload can run under these scenarios."""
    from gpuyard.simulator.scenarios import ElasticNodes, kinds_of
    from gpuyard.simulator.workloads.on_cluster import JobsOnCluster, resources

    for each in scenario.values():
        if isinstance(each.pool, ElasticNodes):
            assert isinstance(workload, JobsOnCluster)
            kinds = kinds_of(workload.cluster.nodes)
            if len(kinds) > 1:
                raise WrongCondition(f"--elastic needs nodes of one kind; this cluster has {len(kinds)} kinds.")
            gpus = len(next(iter(kinds)).gpus)
            needed, most = max(resources(job, gpus).nodes for job in workload.jobs), each.pool.settings.max_nodes
            if needed > most:
                raise WrongCondition(f"--elastic: a job needs {needed:,} nodes, and the pool has at most {most:,}.")


def _elastic(text: str) -> "ElasticNodes":
    from gpuyard.core.domain.pool import PoolSettings
    from gpuyard.simulator.clusters import MOST_NODES
    from gpuyard.simulator.scenarios import ElasticNodes

    wrong = WrongCondition(
        f"--elastic is {text!r}; it must be MIN:MAX[:BOOT_SECONDS[:FAILING]], such as 8:72:180, or "
        "8:72:180:0.05 if 5 % of the boots fail."
    )
    least, most, boot, failing = _numbers(text, 2, (BOOT_SECONDS, 0.0), wrong)
    if least != int(least) or most != int(most) or not least <= most or not 1 <= most <= MOST_NODES or failing >= 1:
        raise wrong
    return ElasticNodes(PoolSettings(int(least), int(most), boot_limit_seconds=inf), boot, failing)


def _sleep(text: str) -> "SuspendedNodes":
    from gpuyard.simulator.scenarios import SuspendedNodes

    wrong = WrongCondition(
        f"--suspend-idle is {text!r}; it must be IDLE_SECONDS[:WAKE_SECONDS], such as 600 or 600:90."
    )
    idle, wake = _numbers(text, 1, (WAKE_SECONDS,), wrong)
    return SuspendedNodes(idle, wake)


def _repair(text: str) -> "FailingNodes":
    from gpuyard.simulator.scenarios import FailingNodes

    wrong = WrongCondition(f"--failures is {text!r}; it must be MTBF_HOURS:REPAIR_HOURS, such as 1000:4.")
    up, repair = _numbers(text, 2, (), wrong)
    if not up:
        raise wrong
    return FailingNodes(up, repair)


def _numbers(text: str, needed: int, usual: tuple[float, ...], wrong: WrongCondition) -> Iterator[float]:
    """Parse numbers between colons: `needed` of them, then optional ones with defaults."""
    words = text.split(":")
    try:
        found = [float(word) for word in words]
    except ValueError:
        raise wrong from None
    if not needed <= len(found) <= needed + len(usual) or not all(isfinite(it) and 0 <= it <= MOST for it in found):
        raise wrong
    return iter([*found, *usual[len(found) - needed :]])


def _chance(seed: int) -> "NodeRandom":
    """Return a random stream for every name, the same for every policy."""

    def stream(name: str) -> "RandomDraw":
        return Random(f"{seed} {name}").random  # noqa: S311 - failures, not secrets

    return stream
