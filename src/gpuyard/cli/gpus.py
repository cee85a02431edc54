"""`gpuyard gpus`: all GPUs and what they do."""

from typing import TYPE_CHECKING

from gpuyard.cli.output.listing import Listing, list_command

if TYPE_CHECKING:
    from gpuyard.live.sdk import Client

NAMES = ("ID", "MODEL", "MEMORY", "STATUS", "TASKS", "USED", "MEM USED", "TEMP", "NOTE")


@list_command
def gpus(cluster: "Client") -> Listing:
    """List all GPUs and their state."""
    rows = (
        (
            gpu.id,
            gpu.model,
            f"{gpu.memory / 1024:.0f} GB",
            gpu.status,
            gpu.tasks,
            None if gpu.utilization is None else f"{gpu.utilization:.0f}%",
            None if gpu.memory_used is None else f"{gpu.memory_used / 1024:.1f} GB",
            None if gpu.temperature is None else f"{gpu.temperature:.0f} °C",
            gpu.why or ("virtual" if gpu.virtual else None),
        )
        for gpu in cluster.gpus().gpus
    )
    return Listing(NAMES, rows, right=("MEMORY", "USED", "MEM USED", "TEMP"))
