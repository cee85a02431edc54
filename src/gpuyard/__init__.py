"""gpuyard schedules GPU work for people who share GPUs."""

__version__ = "0.1.0"
