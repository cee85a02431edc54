"""Tasks with declared work in a live cluster with two models of virtual GPUs."""

import shutil
import urllib.request
from pathlib import Path

import pytest

from gpuyard.learn.performance.model import SHIPPED
from gpuyard.live.sdk import Refused
from tests.acceptance.live import running_cluster
from tests.acceptance.waiting import until

WORK = {"model": "resnet50", "batch": 64, "precision": "amp", "steps": 100}


def test_tasks_go_to_the_fastest_gpu_are_refused_if_they_cannot_fit_and_the_accuracy_is_shown(
    tmp_path: Path,
) -> None:
    model = tmp_path / "yard.model"
    with running_cluster(tmp_path, nodes=0, prediction={"model": str(model)}) as cluster:
        cluster.start_agent("slow", 1, kind="T4:16")
        cluster.start_agent("fast", 1, kind="H100:80")
        client = cluster.ready(2)
        train = client.submit("sleep 0.5", work=WORK, env={"VIRTUAL_GPU_MEMORY_MIB": "6000"})
        until(lambda: client.task(train.id).status == "success", 40, "it runs")
        done = client.task(train.id)
        assert (done.ran_on, done.node_id, done.gpu_memory_peak_mib) == ("H100", "fast", 6000)
        assert {one.gpu_model for one in done.forecasts} == {"T4", "H100"}
        assert done.estimated_seconds is not None
        with pytest.raises(
            Refused, match=r"is predicted to need .* MiB on each GPU with batch size 4096; the largest GPU .* 81920"
        ):
            client.submit("true", work={**WORK, "batch": 4096})
        with pytest.raises(Refused, match="Unknown model"):
            client.submit("true", work={"model": "nothing like it"})
        shutil.copyfile(SHIPPED, model)
        until(lambda: (it := client.predictions().model) is not None and it.file == str(model), 40, "it is taken")
        scores = {one.predictor: one.tasks for one in client.predictions().scores}
        assert scores == {"history": 0, "performance": 1, "corrected": 0, "memory": 1}
        with urllib.request.urlopen(f"http://127.0.0.1:{cluster.http}/metrics", timeout=10) as answer:
            assert b'gpuyard_prediction_tasks{predictor="performance"} 1' in answer.read()
