"""Tools for developers of gpuyard; not installed."""
