"""Real processes that run out of memory, on nodes whose GPUs are virtual."""

from pathlib import Path

from tests.acceptance.live import running_cluster
from tests.acceptance.waiting import until

TRAIN = """
import os, sys
if os.environ["GPUYARD_NODE_ID"] == "small":
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.")
print("it fits")
"""


def test_a_task_that_runs_out_of_memory_moves_to_a_larger_gpu_and_is_not_retried_if_there_is_none(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path, nodes=0) as cluster:
        cluster.start_agent("small", 1, kind="A30:24")
        cluster.start_agent("large", 1, kind="A100:80")
        client = cluster.ready(2)
        train = client.submit(
            command=["python3", "-c", TRAIN],
            retries=2,
            gpu_speeds={"A30": 2.0, "A100": 1.0},
            env={"VIRTUAL_GPU_MEMORY_MIB": "23000"},
        )
        too_large = client.submit(command="echo CUDA out of memory; exit 1", gpu_model="A100", retries=2)
        until(lambda: client.task(train.id).status == "success", 60, "the larger GPU is enough")
        done = client.task(train.id)
        assert (done.attempts, done.node_id, done.gpu_memory_mb) == (2, "large", 36 * 1024)
        assert done.gpu_memory_peak_mib == 23000
        until(lambda: client.task(too_large.id).status == "failed", 60, "there is no larger GPU")
        failed = client.task(too_large.id)
        assert (failed.attempts, failed.reason_code) == (1, "out_of_memory_on_largest")
        assert failed.reason is not None
        assert "not retried" in failed.reason
