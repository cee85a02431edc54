"""Messages in Chinese from the real program, at a terminal and not, and English where it must stay."""

import json
from collections.abc import Iterator

import pytest

from tests.acceptance.cli_cluster import CliCluster, running_cluster
from tests.acceptance.test_cli_terminal import at_a_terminal

CHINESE = {"GPUYARD_LANG": "", "LC_ALL": "zh_CN.UTF-8", "PYTHONUTF8": "1"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CliCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def test_the_reason_of_the_scheduler_is_translated(cluster: CliCluster) -> None:
    done = cluster.call("submit", "-g", "9", "--", "true", env=CHINESE)
    task = done.stdout.strip()
    assert done.stderr.startswith(
        f"gpuyard: {task} 在等待。任务需要一个节点上有 9 块同型号的 GPU；合适的节点中最大的有 4 块。"
    )
    assert done.stderr.endswith("现有节点都不够大。有合适的节点加入时任务才会启动；否则请取消它并减少请求。\n")
    explained = cluster.call("explain", task, env=CHINESE).stdout
    assert explained.startswith(f"{task} 的状态为 pending。任务需要一个节点上有 9 块同型号的 GPU")
    assert "9 GPUs of one model" in cluster.call("submit", "-g", "9", "--", "true").stderr
    done = cluster.call("cancel", task, env=CHINESE)
    assert done.stdout == f"{task} 已取消。\n"


def test_json_is_the_same_in_every_language(cluster: CliCluster) -> None:
    done = cluster.call("show", "--json", "task-999", env=CHINESE)
    assert json.loads(done.stderr)["error"]["message"] == "Task task-999 does not exist."
    assert cluster.call("show", "task-999", env=CHINESE).stderr == "gpuyard: 任务 task-999 不存在。\n"


def test_help_is_translated_and_options_keep_their_names(cluster: CliCluster) -> None:
    told = cluster.call("submit", "--help", env=CHINESE).stdout
    assert "--gpu-memory SIZE" in told
    assert "每块 GPU 的最小显存" in told
    assert "Minimum memory of each GPU" in cluster.does("submit", "--help")
    english = cluster.call("submit", "--help", env={"GPUYARD_LANG": "", "LC_ALL": "de_DE.UTF-8", "LANGUAGE": ""}).stdout
    assert "Minimum memory of each GPU" in english


def test_help_opens_a_pager_at_a_terminal(cluster: CliCluster) -> None:
    cluster.env["PAGER"] = "sed s/NAME/PAGED/"
    try:
        with at_a_terminal(cluster, "help", "cancel") as terminal:
            assert terminal.ends() == 0
    finally:
        del cluster.env["PAGER"]
    assert b"PAGED" in terminal.shown
    assert cluster.does("help", "cancel").startswith("NAME\n    gpuyard cancel")
