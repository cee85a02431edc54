"""gpuyard schedules GPU work for people who share GPUs.

    import gpuyard

    yard = gpuyard.connect()
    task = yard.submit("python train.py", gpu_count=1)
    print(yard.wait(task).status)

`gpuyard.live.sdk` has the rest.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client as Client
    from gpuyard.live.sdk import Task as Task
    from gpuyard.live.sdk import YardError as YardError
    from gpuyard.live.sdk import connect as connect
else:

    def __getattr__(name: str) -> object:
        """The client, loaded when somebody asks for it: the scheduler, the agent and `gpuyard --help` never do."""
        if name in {"Client", "Task", "YardError", "connect"}:
            from gpuyard.live import sdk

            return getattr(sdk, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
