"""FOLLOW THE PLAN: (plan, events) -> commands. Pure: work stealing, drift, retries, lost GPUs, planning again."""
