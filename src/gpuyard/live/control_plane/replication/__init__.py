"""Two schedulers replicate their journal without a database: the driver of `gpuyard.core.replication`."""
