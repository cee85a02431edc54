"""What comes to a simulated yard: jobs from recorded traces, or drawn with a seed.

A reader or generator is a file; all of them make the same `Job`s, so whatever runs one workload runs them all.
"""
