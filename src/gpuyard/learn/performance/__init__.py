"""The GPU performance model: predicts time, memory and utilization from what is known before a task runs."""
