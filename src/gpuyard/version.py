"""The version of gpuyard."""

__version__ = "0.1.0"
