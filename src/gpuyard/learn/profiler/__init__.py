"""Profiler: measures PyTorch models on a real GPU, one row per configuration; the peaks of a GPU; and any command.

    zoo (what can be measured) ─► sweep (which configurations) ─► measure (time, memory, power) ─► rows (a CSV file)

The FLOPs and bytes of a step are counted by `performance.flops` without a device. torch is imported only for a
measurement.
"""
