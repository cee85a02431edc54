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

from gpuyard.version import __version__ as __version__

TYPE_CHECKING = False  # importing `typing` would take longer than everything else here
if TYPE_CHECKING:
    from gpuyard import aio as aio
    from gpuyard import plan as plan
    from gpuyard import simulator as simulator
    from gpuyard.core.domain.errors import WrongInput as WrongInput
    from gpuyard.learn.performance.api import predict as predict
    from gpuyard.learn.performance.api import predict_serving as predict_serving
    from gpuyard.live.sdk import Client as Client
    from gpuyard.live.sdk import ClusterError as ClusterError
    from gpuyard.live.sdk import Task as Task
    from gpuyard.live.sdk import connect as connect
    from gpuyard.simulator import simulate as simulate
else:
    _HOMES = {
        **dict.fromkeys(("Client", "Task", "ClusterError", "connect"), "gpuyard.live.sdk"),
        "WrongInput": "gpuyard.core.domain.errors",
        **dict.fromkeys(("predict", "predict_serving"), "gpuyard.learn.performance.api"),
        "simulate": "gpuyard.simulator",
    }

    def __getattr__(name: str) -> object:
        """Load a front door when it is used: the scheduler, the agent and `gpuyard --help` never do."""
        if name in _HOMES:
            return getattr(import_module(_HOMES[name]), name)
        if name in {"aio", "plan", "simulator"}:
            return import_module(f"gpuyard.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
