"""Workloads of a simulated cluster: recorded traces, generated jobs, or the journal of a live cluster.

There is one file for each source. Each creates a `Workload`, so the simulator runs all of them in the same way.
"""
