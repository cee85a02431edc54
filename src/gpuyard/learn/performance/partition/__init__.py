"""Divide a PyTorch model over GPUs: pipeline stages and data-parallel replicas, balanced by predicted time.

    file, Name ─► count_model (own process, torch's meta device) ─► counts ─► plans ─► Partitioning, the best plan first
                                          predicted time per stage ─────────────┘

`partition` is the entry point; `gpuyard partition` prints its result. Only `count_model` runs user code.
"""

from gpuyard.learn.performance.partition.partitioning import Partitioning, partition

__all__ = ["Partitioning", "partition"]
