"""Simulated nodes: from a word, or from a file."""

from pathlib import Path

import pytest

from gpuyard.simulator.clusters import parse_cluster, read_nodes
from gpuyard.simulator.workloads.trace import WrongTrace


def test_a_cluster_is_given_in_one_word() -> None:
    cluster = parse_cluster("3x4:A100")
    assert [len(node.gpus) for node in cluster.nodes] == [4, 4, 4]
    assert {gpu.model for node in cluster.nodes for gpu in node.gpus} == {"A100"}


def test_a_cluster_may_have_several_gpu_models() -> None:
    cluster = parse_cluster("2x4:V100+1x8:K80")
    assert [(node.id, len(node.gpus), node.gpus[0].model) for node in cluster.nodes] == [
        ("node-0001", 4, "V100"),
        ("node-0002", 4, "V100"),
        ("node-0003", 8, "K80"),
    ]
    assert cluster.sizes("", ("V100",)) == [4, 4]


@pytest.mark.parametrize(
    "text", ["2x4+", "2x4+x", "", "8", "x8", "3x", "3x8:", "-1x8", "3x8x2", "0x8", "3x0", "3x1000", "9999999x8"]
)
def test_an_invalid_word_is_reported_in_one_sentence(text: str) -> None:
    with pytest.raises(WrongTrace, match=r"^cluster "):
        parse_cluster(text)


def test_a_node_file_gives_pools_sizes_and_models(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("vc,nodes,gpus_per_node,model\nleft,2,8,V100\nright,1,4,A100\n")
    cluster = read_nodes(path, "vc")
    assert (cluster.gpus, cluster.sizes("left"), cluster.sizes("right")) == (20, [8, 8], [4])
    assert cluster.sizes("") == [8, 8, 4]


def test_nodes_have_eight_gpus_unless_the_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("vc,nodes\nleft,2\n")
    assert read_nodes(path).gpus == 16


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("vc\nleft\n", "line 1: column nodes is missing"),
        ("nodes\nmany\n", "line 2: nodes and gpus_per_node must be whole numbers"),
        ("nodes\n-3\n", "line 2: it must be 1 to"),
        ("nodes\n", "the file contains no nodes"),
    ],
)
def test_an_invalid_node_file_is_named_with_its_line(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text(text)
    with pytest.raises(WrongTrace, match=sentence):
        read_nodes(path)


def test_nodes_without_a_pool_are_named(tmp_path: Path) -> None:
    path = tmp_path / "nodes.csv"
    path.write_text("vc,nodes\nleft,1\n,2\n")
    with pytest.raises(WrongTrace, match="line 3: vc is empty; it must be the pool of the nodes"):
        read_nodes(path, "vc")
