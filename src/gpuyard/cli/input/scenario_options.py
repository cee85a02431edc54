"""`gpuyard simulate --elastic …, --suspend-idle …, --failures …`: parse the scenario options."""

from collections.abc import Iterator, Sequence
from math import inf, isfinite
from random import Random
from typing import TYPE_CHECKING

from gpuyard.core.domain.errors import WrongInput
from gpuyard.input.nearest_name import closest_word

if TYPE_CHECKING:
    from gpuyard.core.domain.node import NodeSpec
    from gpuyard.core.domain.task import Resources
    from gpuyard.simulator.failures import NodeRandom, RandomDraw
    from gpuyard.simulator.scenarios import ElasticNodes, FailingNodes, Scenario, SuspendedNodes
    from gpuyard.simulator.workloads.arrival import Workload

BOOT_SECONDS, WAKE_SECONDS = 180.0, 60.0
"""Default boot and wake-up times."""
NOTICE_SECONDS = 120.0
"""Default notice before a spot node is taken away; cloud providers give 30 to 120 seconds."""
MOST = 1e9
_OF_POOL = ("gpus", "model", "price", "spot", "notice")
"""What a pool may have by name."""


class WrongCondition(WrongInput):
    """The conditions of a simulation cannot be."""


def scenario_of(
    seed: int, *, elastic: Sequence[str], suspend_idle: str | None, price: float | None, failures: str | None
) -> "dict[str, Scenario]":
    """Return the scenarios by the suffix that they add to a policy's name; the fixed cluster comes first."""
    from gpuyard.input.arguments import Seed, argument
    from gpuyard.simulator.scenarios import Scenario

    argument("seed", seed, Seed)
    if price is not None and not 0 <= price <= MOST:
        raise WrongCondition(f"--price is {price}; it must be the price of one GPU for an hour, 0 or more.")
    repair = _repair(failures) if failures is not None else None
    pools: dict[str, tuple[ElasticNodes, ...] | SuspendedNodes | None] = {"": None}
    if elastic:
        pools["+elastic"] = found = tuple(_elastic(text) for text in elastic)
        if price is None and len({pool.price is None for pool in found}) > 1:
            raise WrongCondition("--elastic: give every pool a price, or --price for those without one.")
    if suspend_idle is not None:
        pools["+suspend"] = _sleep(suspend_idle)
    metered = bool(elastic) or suspend_idle is not None or price is not None
    return {name: Scenario(pool, repair, metered, price, _chance(seed)) for name, pool in pools.items()}


def check_pools(scenario: "dict[str, Scenario]", workload: "Workload") -> None:
    """Check that a workload can run under these scenarios."""
    from gpuyard.simulator.scenarios import elastic_pools, kinds_of
    from gpuyard.simulator.workloads.on_cluster import JobsOnCluster, resources

    for each in scenario.values():
        if pools := elastic_pools(each):
            assert isinstance(workload, JobsOnCluster)
            kinds = kinds_of(workload.cluster.nodes)
            if len(kinds) > 1 and any(pool.model is None or pool.gpus is None for pool in pools):
                raise WrongCondition(
                    f"--elastic needs nodes of one kind, and this cluster has {len(kinds)} kinds; name gpus= and model= "
                    "of every pool."
                )
            largest = max(len(kind.gpus) for kind in kinds)
            like = next(iter(kinds))
            found = [(pool.kind(like, ""), pool.settings.max_nodes) for pool in pools]
            for ask in {resources(job, largest) for job in workload.jobs}:
                most = max((count for kind, count in found if _fits(ask, kind)), default=0)
                if ask.nodes > most:
                    nodes = f"{ask.nodes:,} nodes" if ask.nodes > 1 else "a node"
                    models = f" ({' or '.join(ask.models)})" if ask.models else ""
                    have = f"at most {most:,}" if most else "none"
                    raise WrongCondition(
                        f"--elastic: a job needs {nodes} with {ask.gpus} GPUs{models}, and a pool has {have}."
                    )


def _fits(ask: "Resources", kind: "NodeSpec") -> bool:
    return ask.gpus <= len(kind.gpus) and (not ask.models or kind.gpus[0].model in ask.models)


def _elastic(text: str) -> "ElasticNodes":
    from gpuyard.core.domain.pool import PoolSettings
    from gpuyard.simulator.clusters import MOST_GPUS, MOST_NODES
    from gpuyard.simulator.scenarios import ElasticNodes

    wrong = WrongCondition(
        f"--elastic is {text!r}; it must be MIN:MAX[:BOOT_SECONDS[:FAILING]], such as 8:72:180, or "
        "8:72:180:0.05 if 5 % of the boots fail, optionally followed by gpus=, model=, price=, spot= and notice=."
    )
    words = text.split(":")
    named = {name: value for name, _, value in (word.partition("=") for word in words if "=" in word)}
    plain = [word for word in words if "=" not in word]
    if unknown := named.keys() - set(_OF_POOL):
        near = closest_word(min(unknown), _OF_POOL)
        hint = f"did you mean {near}?" if near else "a pool has gpus, model, price, spot and notice."
        raise WrongCondition(f"--elastic: {min(unknown)!r} is unknown; {hint}")
    if words[: len(plain)] != plain or len(words) != len(plain) + len(named):
        raise wrong
    least, most, boot, failing = _numbers(":".join(plain), 2, (BOOT_SECONDS, 0.0), wrong)
    if least != int(least) or most != int(most) or not least <= most or not 1 <= most <= MOST_NODES or failing >= 1:
        raise wrong
    gpus, price, spot, notice = (_named(named, name) for name in ("gpus", "price", "spot", "notice"))
    if gpus is not None and (gpus != int(gpus) or not 1 <= gpus <= MOST_GPUS):
        raise WrongCondition(f"--elastic: gpus is {gpus:g}; it must be the GPUs of a node, 1 to {MOST_GPUS}.")
    if spot is not None and not spot:
        raise WrongCondition("--elastic: spot is 0; it must be the mean hours until a node is taken away.")
    if notice is not None and spot is None:
        raise WrongCondition("--elastic: notice needs spot, the mean hours until a node is taken away.")
    if "model" in named and not named["model"]:
        raise wrong
    return ElasticNodes(
        PoolSettings(int(least), int(most), boot_limit_seconds=inf),
        boot,
        failing,
        None if gpus is None else int(gpus),
        named.get("model"),
        price,
        spot,
        NOTICE_SECONDS if notice is None else notice,
    )


def _named(named: dict[str, str], name: str) -> float | None:
    if name not in named:
        return None
    wrong = WrongCondition(f"--elastic: {name} is {named[name]!r}; it must be a number, 0 or more.")
    return next(_numbers(named[name], 1, (), wrong))


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
