"""The Python client of a cluster.

    cluster = gpuyard.connect()                       GPUYARD_SERVER, GPUYARD_TOKEN
    task = cluster.submit(["python", "train.py"], gpu_count=2, timeout=3600)
    for line in cluster.logs(task, follow=True): ...
    cluster.wait(task, check=True)                    TaskFailed unless it succeeded

`client` has the methods that programs call, `connection` the HTTP, `waiting` listens for events, `values` are the
results, `errors` the errors. It needs only Python and msgspec.
"""

from gpuyard.live.sdk.calls import RemoteCall
from gpuyard.live.sdk.client import Client, TaskFields, connect
from gpuyard.live.sdk.errors import (
    CallCancelled,
    CallFailed,
    CallKilled,
    CallLost,
    CallOutOfMemory,
    CallTimedOut,
    ClusterError,
    NotAllowed,
    NotFound,
    Refused,
    RemoteError,
    ResultUnreadable,
    TaskFailed,
    TemporarilyRefused,
    TookTooLong,
    Unreachable,
    UntrustedServer,
)
from gpuyard.live.sdk.values import Lease, Page, Task, TaskRef

__all__ = [
    "CallCancelled",
    "CallFailed",
    "CallKilled",
    "CallLost",
    "CallOutOfMemory",
    "CallTimedOut",
    "Client",
    "ClusterError",
    "Lease",
    "NotAllowed",
    "NotFound",
    "Page",
    "Refused",
    "RemoteCall",
    "RemoteError",
    "ResultUnreadable",
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
