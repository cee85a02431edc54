"""FOR PROGRAMS: the yard from Python.

    yard = gpuyard.connect()                          GPUYARD_SERVER, GPUYARD_TOKEN
    task = yard.submit(["python", "train.py"], gpu_count=2, timeout=3600)
    for line in yard.logs(task, follow=True): ...
    yard.wait(task, check=True)                       TaskFailed unless it succeeded

`client` is what programs call, `connection` speaks HTTP, `waiting` hears of what happens, `values` is what comes back,
`errors` what goes wrong. Python and msgspec are all it needs.
"""

from gpuyard.live.sdk.client import Client, TaskFields, connect
from gpuyard.live.sdk.errors import (
    ClusterError,
    NotAllowed,
    NotFound,
    NotNow,
    Refused,
    TaskFailed,
    TookTooLong,
    Unreachable,
    UntrustedServer,
)
from gpuyard.live.sdk.values import Lease, Page, Task, TaskRef

__all__ = [
    "Client",
    "ClusterError",
    "Lease",
    "NotAllowed",
    "NotFound",
    "NotNow",
    "Page",
    "Refused",
    "Task",
    "TaskFailed",
    "TaskFields",
    "TaskRef",
    "TookTooLong",
    "Unreachable",
    "UntrustedServer",
    "connect",
]
