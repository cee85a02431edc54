"""Reading pods and nodes of openb: valid rows are read, invalid ones are named with their line."""

from pathlib import Path

import pytest

from benchmarks.common.openb import gpu_milli, read_openb_nodes, read_openb_pods
from gpuyard.core.domain.task import Resources, Share
from gpuyard.simulator.workloads.trace import WrongTrace

NODES = "sn,cpu_milli,memory_mib,gpu,model\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "openb.csv"
    path.write_text(text)
    return path


def test_nodes_are_read_with_their_gpus(tmp_path: Path) -> None:
    cluster = read_openb_nodes(written(tmp_path, NODES + "a,96000,393216,8,G2\nb,64000,1024,0,\n"))
    assert cluster.gpus == 8
    assert [(node.id, node.cpus, node.memory_mib) for node in cluster.nodes] == [
        ("a", 96000, 393216),
        ("b", 64000, 1024),
    ]
    assert {gpu.model for gpu in cluster.nodes[0].gpus} == {"G2"}


def test_pods_request_whole_gpus_a_share_or_none(tmp_path: Path) -> None:
    rows = "a,8000,1024,8,1000,\nb,4152,2048,1,470,T4|P100|T4\nc,2000,512,0,0,\nd,1,1,1,1000,G2\n"
    pods = read_openb_pods(written(tmp_path, PODS + rows))
    assert pods == [
        Resources(gpus=8, cpus=8000, memory_mib=1024),
        Resources(share=Share(470), models=("P100", "T4"), cpus=4152, memory_mib=2048),
        Resources(cpus=2000, memory_mib=512),
        Resources(gpus=1, models=("G2",), cpus=1, memory_mib=1),
    ]
    assert [gpu_milli(pod) for pod in pods] == [8000, 470, 0, 1000]


def test_pods_may_come_without_models(tmp_path: Path) -> None:
    text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,1,1000\n"
    assert read_openb_pods(written(tmp_path, text)) == [Resources(gpus=1, cpus=1, memory_mib=1)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("cpu_milli,memory_mib,num_gpu\n", "line 1: column gpu_milli is missing; the file has: cpu_milli, memory_mib, num_gpu."),
        (PODS, "there are no pods in it."),
        (PODS + "a,1,1,1,1000,\nb,1,1,2,500,\n", "line 3: gpu_milli is 500, and num_gpu 2; only one GPU can be shared."),
        (PODS + "a,1,1,1,0,\n", "line 2: gpu_milli is 0, and num_gpu 1; a pod with GPUs takes a part of them."),
        (PODS + "a,1,1,1,1001,\n", "line 2: gpu_milli is 1001; it must be between 0 and 1,000."),
        (PODS + "a,1.5,1,1,1000,\n", "line 2: cpu_milli is '1.5'; it must be a whole number."),
        (PODS + "a,1,-1,1,1000,\n", "line 2: memory_mib is -1; it must be between 0 and 1,000,000,000."),
    ],
)  # fmt: skip
def test_an_invalid_pod_is_an_error_with_its_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(WrongTrace) as wrong:
        read_openb_pods(written(tmp_path, text))
    assert str(wrong.value).endswith(sentence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (NODES, "the file contains no nodes."),
        (NODES + "a,1,1,8,G2\na,1,1,8,G2\n", "line 3: there is a node a already."),
        (NODES + "a,1,1,8,\n", "line 2: the node has 8 GPUs and no model."),
        (NODES + "a,1,1,many,G2\n", "line 2: gpu is 'many'; it must be a whole number."),
        (NODES + "a,1,1,65,G2\n", "line 2: gpu is 65; it must be between 0 and 64."),
    ],
)
def test_an_invalid_node_is_an_error_with_its_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(WrongTrace) as wrong:
        read_openb_nodes(written(tmp_path, text))
    assert str(wrong.value).endswith(sentence)
