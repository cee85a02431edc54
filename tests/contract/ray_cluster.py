"""A Ray cluster of two nodes on this machine, in a network namespace with only loopback.

Run as a program it makes the cluster, runs another program with its address as the last word, and ends with its code.
"""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
ALONE = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def can_run() -> bool:
    """Ray is installed, and namespaces can be made here."""
    if find_spec("ray") is None or shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run([*ALONE, "true"], check=False, capture_output=True).returncode == 0


def beside_a_cluster(words: list[str]) -> list[str]:
    """The words that run a program beside a cluster, with the cluster's address as its last word."""
    return [*ALONE, sys.executable, "-m", "tests.contract.ray_cluster", *words]


def main() -> int:
    from ray.cluster_utils import Cluster

    ports = {"min_worker_port": 31000, "max_worker_port": 31999, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "gcs_server_port": 26379, **ports})
    try:
        cluster.add_node(num_cpus=2, min_worker_port=32000, max_worker_port=32999)
        return subprocess.run([*sys.argv[1:], cluster.address], check=False, cwd=REPOSITORY).returncode
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main())
