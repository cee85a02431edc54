"""Simulated nodes: a number of nodes with a number of GPUs each, of one or several kinds, or read from a file."""

import re
from dataclasses import dataclass
from pathlib import Path

from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.values import NodeId
from gpuyard.input.error_location import shortened
from gpuyard.input.files import shown_path
from gpuyard.simulator.workloads.trace import WrongTrace, rows_of

MODEL, MEMORY_MIB = "GPU", 32_768
POOL = "pool"
"""The label of nodes and tasks that divides a cluster into pools."""
MOST_NODES, MOST_GPUS = 100_000, 64


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes of a simulation."""

    nodes: tuple[NodeSpec, ...]

    @property
    def gpus(self) -> int:
        """Number of GPUs in the cluster."""
        return sum(len(node.gpus) for node in self.nodes)

    def sizes(self, pool: str, models: tuple[str, ...] = ()) -> list[int]:
        """Return the GPU count of each node of this pool and these models; empty arguments match every node."""
        return [
            len(node.gpus)
            for node in self.nodes
            if (not pool or (POOL, pool) in node.labels) and (not models or node.gpus[0].model in models)
        ]


def parse_cluster(text: str, name: str = "cluster") -> Cluster:
    """Parse `72x8` (72 nodes of 8 GPUs), `72x8:A100` (with the model) or `2x4:V100+6x4:K80` (several kinds).

    `name` is what the user calls it, for errors.
    """
    nodes: list[NodeSpec] = []
    for kind in text.split("+"):
        found = re.fullmatch(r"(\d+)[xX](\d+)(?::([\w.-]+))?", kind)
        if found is None:
            example = "72x8, 72x8:A100 or 2x4:V100+6x4:K80"
            raise WrongTrace(f"{name} is {shortened(text)!r}; it must be NODESxGPUS, such as {example}.")
        count, gpus = _checked(int(found[1]), int(found[2]), f"{name} {text}")
        nodes += [_node(f"node-{len(nodes) + place + 1:04}", gpus, found[3] or MODEL, "") for place in range(count)]
    return Cluster(tuple(nodes))


def read_nodes(path: Path, pool: str | None = None) -> Cluster:
    """Read a file of node kinds: `nodes`, and optionally `gpus_per_node` (default 8), `model` and the pool column."""
    found: list[NodeSpec] = []
    shown = shown_path(path)
    for line, row in rows_of(path, ("nodes", pool) if pool else ("nodes",)):
        where = f"{shown}, line {line}"
        try:
            counts = int(row["nodes"]), int(row.get("gpus_per_node") or 8)
        except ValueError:
            raise WrongTrace(f"{where}: nodes and gpus_per_node must be whole numbers.") from None
        nodes, gpus = _checked(*counts, where)
        model, name = row.get("model") or MODEL, row[pool] if pool else ""
        if pool and not name:
            raise WrongTrace(f"{where}: {pool} is empty; it must be the pool of the nodes.")
        found += [_node(f"{name or 'node'}-{len(found) + place + 1:04}", gpus, model, name) for place in range(nodes)]
    if not found:
        raise WrongTrace(f"{shown}: the file contains no nodes.")
    return Cluster(tuple(found))


def _checked(nodes: int, gpus: int, where: str) -> tuple[int, int]:
    if not 1 <= nodes <= MOST_NODES or not 1 <= gpus <= MOST_GPUS:
        raise WrongTrace(f"{where}: it must be 1 to {MOST_NODES:,} nodes with 1 to {MOST_GPUS} GPUs each.")
    return nodes, gpus


def _node(name: str, gpus: int, model: str, pool: str) -> NodeSpec:
    return NodeSpec(
        NodeId(name), tuple(Gpu(model, MEMORY_MIB) for _ in range(gpus)), 0, 0, ((POOL, pool),) if pool else ()
    )
