"""Run times, estimated from the tasks that have ended."""
