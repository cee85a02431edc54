"""Pods and nodes of Alibaba's GPU-sharing cluster of 2023 (openb): the requests and the hardware.

    nodes    sn, cpu_milli, memory_mib, gpu, model
    pods     cpu_milli, memory_mib, num_gpu, gpu_milli, and perhaps gpu_spec: models that will do, with a bar between

CPUs are counted in thousandths here, of nodes and pods alike, as the trace does. It does not say how much memory
a GPU has; each gets `CARD_MIB`, so that a share takes the same part of a GPU's memory as of its compute.
An invalid row is an error with its line.
"""

from pathlib import Path

from gpuyard.core.domain.node import Gpu, NodeSpec
from gpuyard.core.domain.task import Resources, Share
from gpuyard.core.domain.values import MILLI, NodeId
from gpuyard.simulator.clusters import MOST_GPUS, Cluster
from gpuyard.simulator.workloads.trace import WrongTrace, rows_of

CARD_MIB = 16_000
"""A multiple of a thousand: no thousandth of a GPU is rounded."""
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
MOST = 10**9


def read_openb_nodes(path: Path) -> Cluster:
    """The nodes of a file."""
    nodes: dict[NodeId, NodeSpec] = {}
    for line, row in rows_of(path, NODE_COLUMNS):
        where = f"{path}, line {line}"
        name = NodeId(row["sn"])
        if name in nodes:
            raise WrongTrace(f"{where}: there is a node {name} already.")
        gpus = _whole(row, "gpu", where, MOST_GPUS)
        if gpus and not row["model"]:
            raise WrongTrace(f"{where}: the node has {gpus} GPUs and no model.")
        cards = (Gpu(row["model"], CARD_MIB),) * gpus
        nodes[name] = NodeSpec(
            name, cards, _whole(row, "cpu_milli", where, MOST), _whole(row, "memory_mib", where, MOST)
        )
    if not nodes:
        raise WrongTrace(f"{path}: the file contains no nodes.")
    return Cluster(tuple(nodes.values()))


def read_openb_pods(path: Path) -> list[Resources]:
    """The request of each pod of a file."""
    pods = []
    for line, row in rows_of(path, POD_COLUMNS):
        where = f"{path}, line {line}"
        gpus = _whole(row, "num_gpu", where, MOST_GPUS)
        milli = _whole(row, "gpu_milli", where, MILLI) if gpus else 0
        if gpus and not milli:
            raise WrongTrace(f"{where}: gpu_milli is 0, and num_gpu {gpus}; a pod with GPUs takes a part of them.")
        if gpus > 1 and milli < MILLI:
            raise WrongTrace(f"{where}: gpu_milli is {milli}, and num_gpu {gpus}; only one GPU can be shared.")
        shared = gpus == 1 and milli < MILLI
        models = {model for model in row.get("gpu_spec", "").split("|") if model}
        pods.append(
            Resources(
                gpus=0 if shared else gpus,
                share=Share(milli) if shared else None,
                models=tuple(sorted(models)) if gpus else (),
                cpus=_whole(row, "cpu_milli", where, MOST),
                memory_mib=_whole(row, "memory_mib", where, MOST),
            )
        )
    if not pods:
        raise WrongTrace(f"{path}: there are no pods in it.")
    return pods


def gpu_milli(ask: Resources) -> int:
    """The GPUs that a pod requests, in thousandths of one."""
    return ask.share.fraction_milli if ask.share is not None else ask.gpus * MILLI


def _whole(row: dict[str, str], name: str, where: str, most: int) -> int:
    text = row[name]
    try:
        number = int(text)
    except ValueError:
        raise WrongTrace(f"{where}: {name} is {text!r}; it must be a whole number.") from None
    if not 0 <= number <= most:
        raise WrongTrace(f"{where}: {name} is {text}; it must be between 0 and {most:,}.")
    return number
