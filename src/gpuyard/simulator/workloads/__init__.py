"""What comes to a simulated yard: jobs from recorded traces, or what once came to a live one.

A reader is a file; what each makes of its source is a `Workload`, so whatever plays one plays them all.
"""
