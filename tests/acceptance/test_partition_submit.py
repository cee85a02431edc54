"""`gpuyard partition --submit`: the proposed division runs as a real gang, with PyTorch on virtual GPUs."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.live import GPUYARD, running_cluster
from tests.unit.learn.performance.test_divided_training import MODEL

OPTIONS = ("--gpus", "2", "--gpu", "H100", "--input", "16x8", "--precision", "fp32", "--micro-batches", "2",
           "--data", "data", "--loss", "loss", "--learning-rate", "0.01", "--steps", "5")  # fmt: skip


@pytest.mark.slow
def test_a_pipeline_on_one_node_and_replicas_on_two_take_the_same_steps(tmp_path: Path) -> None:
    model = tmp_path / "net.py"
    model.write_text(MODEL)
    with running_cluster(tmp_path, nodes=2, gpus=2) as cluster:
        client = cluster.ready(2)
        runs = []
        for more in (("--stages", "2"), ("--stages", "1", "--nodes", "2")):
            words = [*GPUYARD, "partition", str(model), "Net", *OPTIONS, *more, "--submit", "--json",
                     "--server", f"http://127.0.0.1:{cluster.http}"]  # fmt: skip
            done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, done.stderr
            task = client.wait(json.loads(done.stdout)["submitted"], timeout=300)
            output = b"".join(client.logs(task, node=task.node_ids[0])).decode()
            assert task.status == "success", output
            runs.append((task, output))
        (one, first), (gang, second) = runs
        assert (one.gpu_count, one.nodes, one.name) == (2, 1, "Net")
        assert (gang.gpu_count, gang.nodes, len(set(gang.node_ids))) == (1, 2, 2)
        steps = [[float(loss) for loss in re.findall(r"loss (\S+)", output)] for output in (first, second)]
        assert len(steps[0]) == 5
        assert steps[0] == pytest.approx(steps[1], rel=1e-4)
        assert "; predicted: " in first


@pytest.mark.parametrize("option", ["--stages", "--nodes", "--steps", "--learning-rate"])
def test_these_options_are_only_for_a_submission(tmp_path: Path, option: str) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    words = [sys.executable, "-m", "gpuyard.cli", "partition", str(tmp_path / "net.py"), "Net", "--input", "16x8"]
    done = subprocess.run([*words, option, "2"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stderr
    assert f"{option} requires --submit." in done.stderr
