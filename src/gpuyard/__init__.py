"""gpuyard schedules GPU work for people who share GPUs.

import gpuyard

cluster = gpuyard.connect()                      # a live cluster: gpuyard.live.sdk
task = cluster.submit("python train.py", gpu_count=1)
print(cluster.wait(task).status)

jobs = gpuyard.simulator.generated_jobs(200, cluster="4x8")
for run in gpuyard.simulate(jobs, policies=("fifo", "default")):
    print(run.name, run.measures.avg_jct_s)      # policies compared: gpuyard.simulator
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gpuyard import simulator as simulator
    from gpuyard.live.sdk import Client as Client
    from gpuyard.live.sdk import ClusterError as ClusterError
    from gpuyard.live.sdk import Task as Task
    from gpuyard.live.sdk import connect as connect
    from gpuyard.simulator import simulate as simulate
else:
    _HOMES = {
        **dict.fromkeys(("Client", "Task", "ClusterError", "connect"), "gpuyard.live.sdk"),
        "simulate": "gpuyard.simulator",
    }

    def __getattr__(name: str) -> object:
        """Load a front door when it is used: the scheduler, the agent and `gpuyard --help` never do."""
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        if name == "simulator":
            return import_module("gpuyard.simulator")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
