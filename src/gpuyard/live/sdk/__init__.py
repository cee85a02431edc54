"""The Python client of a cluster.

    cluster = gpuyard.connect()                       GPUYARD_SERVER, GPUYARD_TOKEN
    task = cluster.submit(["python", "train.py"], gpu_count=2, timeout=3600)
    for line in cluster.logs(task, follow=True): ...
    cluster.wait(task, check=True)                    TaskFailed unless it succeeded

`client` has the methods that programs call, `connection` the HTTP, `waiting` listens for events, `values` are the
results, `errors` the errors. It needs only Python and msgspec.
"""

from gpuyard.live.sdk.client import Client, TaskFields, connect
from gpuyard.live.sdk.errors import (
    ClusterError,
    NotAllowed,
    NotFound,
    Refused,
    TaskFailed,
    TemporarilyRefused,
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
    "Page",
    "Refused",
    "Task",
    "TaskFailed",
    "TaskFields",
    "TaskRef",
    "TemporarilyRefused",
    "TookTooLong",
    "Unreachable",
    "UntrustedServer",
    "connect",
]
